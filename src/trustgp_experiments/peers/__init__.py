"""The peers, behind the same `predict`, and the training they share with the studies."""

from ..training.networks import cnn
from ..training.train import mlp, train, train_many
from .bundle import Bundle
from .class_answer import ClassAnswer
from .class_laplace import LaplaceClassifier
from .constant_noise import ConstantNoise
from .dropout import DropoutClassifier, MCDropout
from .ensemble import Ensemble, EnsembleClassifier
from .landmark_gp import LandmarkGP
from .laplace_posterior import KronPosterior
from .laplace_predictive import LaplaceGLM, LaplaceSampled
from .propagation import PropagatedDropout
from .registry import CLASS_METHODS, METHODS, Fitted, Method, fit_methods
from .softmax import SoftmaxClassifier
from .subset_gp import SubsetGP
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
