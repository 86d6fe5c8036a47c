"""The peers, behind the same `predict`, and the training they share with the studies.

Every `fit` takes a trained network in eval mode and rows, which are (inputs, targets), a Dataset or a
DataLoader: ``train``, those it was trained on, and ``validation``, others, by which error bars are sized.
``seed`` is of everything random in it. `predict` takes inputs as the network does, a tensor, a tuple or a
dict, and gives a `trustgp.Prediction`, or for classes a `ClassAnswer`.
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
