"""The peers, behind the same `predict`, and the training they share with the studies."""

from .bundle import Bundle
from .class_answer import ClassAnswer
from .class_laplace import LaplaceClassifier
from .class_members import DropoutClassifier, EnsembleClassifier
from .class_methods import CLASS_METHODS
from .constant_noise import ConstantNoise
from .convolutional import cnn
from .dropout import MCDropout
from .ensemble import Ensemble
from .landmark_gp import LandmarkGP
from .laplace_posterior import KronPosterior
from .laplace_predictive import LaplaceGLM, LaplaceSampled
from .methods import METHODS, Fitted, Method, fit_methods
from .propagation import PropagatedDropout
from .softmax import SoftmaxClassifier
from .subset_gp import SubsetGP
from .training import mlp, train, train_many
from .trusted import TrustGP

__all__ = [  # noqa: RUF022  grouped by what they are for
    # error bars from the network alone
    "ConstantNoise",
    "KronPosterior",
    "LaplaceGLM",
    "LaplaceSampled",
    "SubsetGP",
    "LandmarkGP",
    "TrustGP",
    # error bars that need networks of their own
    "Ensemble",
    "MCDropout",
    "PropagatedDropout",
    # classes
    "ClassAnswer",
    "SoftmaxClassifier",
    "LaplaceClassifier",
    "EnsembleClassifier",
    "DropoutClassifier",
    # all of them by name
    "METHODS",
    "CLASS_METHODS",
    "Method",
    "Bundle",
    "Fitted",
    "fit_methods",
    # networks
    "mlp",
    "cnn",
    "train",
    "train_many",
]
