"""The peers, behind the same `predict`, and the training they share with the studies.

Every `fit` takes a trained network in eval mode and rows, which are (inputs, targets), a Dataset or a
DataLoader: ``train``, those it was trained on, and ``validation``, others, by which error bars are sized.
``seed`` is of everything random in it. `predict` takes inputs as the network does, a tensor, a tuple or a
dict, and gives a `trustgp.Prediction`, or for classes a `ClassAnswer`.
"""

from ..training.train import cnn, mlp, train, train_many
from .laplace_posterior import KronPosterior
from .laplace_predictive import LaplaceClassifier, LaplaceGLM, LaplaceSampled
from .members import (
    ConstantNoise,
    DropoutClassifier,
    Ensemble,
    EnsembleClassifier,
    MCDropout,
    PropagatedDropout,
    SoftmaxClassifier,
)
from .registry import CLASS_METHODS, METHODS, Bundle, Fitted, Method, fit_methods
from .trusted import LandmarkGP, SubsetGP, TrustGP
from .tuning import ClassAnswer

__all__ = [  # noqa: RUF022  grouped by what they are for
    # error bars from the network alone
    "ConstantNoise", "KronPosterior", "LaplaceGLM", "LaplaceSampled", "SubsetGP", "LandmarkGP", "TrustGP",
    # error bars that need networks of their own
    "Ensemble", "MCDropout", "PropagatedDropout",
    # classes
    "ClassAnswer", "SoftmaxClassifier", "LaplaceClassifier", "EnsembleClassifier", "DropoutClassifier",
    # all of them by name
    "METHODS", "CLASS_METHODS", "Method", "Bundle", "Fitted", "fit_methods",
    # networks
    "mlp", "cnn", "train", "train_many",
]  # fmt: skip
