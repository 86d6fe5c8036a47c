"""Peer methods with a common `predict`, and the training that they share with the studies.

Every `fit` takes a `Bundle`, or a trained network in eval mode and rows: (inputs, targets), a Dataset or a
DataLoader. ``train`` are its training rows, ``validation`` held-out rows that size the error bars, and
``seed`` fixes everything random. `predict` takes inputs as the network does, a tensor, a tuple or a dict, and
returns a `trustgp.Prediction`, an `IntervalPrediction`, or for classes a `ClassAnswer`.
"""

from ..training.train import cnn, mlp, train, train_many
from .classifiers import DropoutClassifier, EnsembleClassifier, SoftmaxClassifier
from .conformal import IntervalPrediction, QuantileConformal, SplitConformal
from .heteroscedastic import Heteroscedastic
from .laplace_posterior import KronPosterior
from .laplace_predictive import LaplaceClassifier, LaplaceGLM, LaplaceSampled
from .members import ConstantNoise, Ensemble, MCDropout, PropagatedDropout
from .registry import CLASS_METHODS, INTERVAL_METHODS, METHODS, Bundle, Fitted, Method, fit_methods
from .sampled import Swag, SwagClassifier
from .sfr import Sfr
from .trusted import SubsetGP, TrustGP
from .tuning import ClassAnswer
from .vbll import Vbll

__all__ = [  # noqa: RUF022  grouped by what they are for
    "ConstantNoise", "KronPosterior", "LaplaceGLM", "LaplaceSampled", "SubsetGP", "Sfr", "TrustGP",
    "Ensemble", "MCDropout", "PropagatedDropout", "Heteroscedastic", "Swag", "Vbll",
    "IntervalPrediction", "SplitConformal", "QuantileConformal",
    "ClassAnswer", "SoftmaxClassifier", "LaplaceClassifier", "EnsembleClassifier", "DropoutClassifier",
    "SwagClassifier",
    "METHODS", "INTERVAL_METHODS", "CLASS_METHODS", "Method", "Bundle", "Fitted", "fit_methods",
    "mlp", "cnn", "train", "train_many",
]  # fmt: skip
