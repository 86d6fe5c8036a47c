"""Honest error bars for a network that is already trained."""

from . import metrics, plots
from .artifact import load
from .class_evaluation import ClassEvaluation
from .class_prediction import ClassPrediction
from .compressing import compress
from .conformal import ConformalIntervals, ConformalSets
from .data import Rows
from .detection import Detection, DetectionModel, Detections, Things
from .evaluating import evaluate
from .evaluation import Evaluation
from .executors import Threads
from .export import ExportError, compile, export_onnx
from .fit import fit
from .gating import Division
from .likelihoods import Classification, Regression
from .math.evidence import FactorisationError
from .model import UncertaintyModel
from .monitor import Monitor, Verdict
from .patchwork import Patchwork
from .prediction import Prediction
from .safefile import ArtifactError
from .tangents import JacobianRows, LayerFactors, Sketch
from .tuning import Tuning, tune
from .witness import Witness

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022  grouped by what they are for
    # fit and use
    "fit",
    "load",
    "UncertaintyModel",
    "Prediction",
    "ClassPrediction",
    "DetectionModel",
    "Detections",
    "ConformalIntervals",
    "ConformalSets",
    # make it small
    "compress",
    "tune",
    "Tuning",
    # take it elsewhere
    "export_onnx",
    "compile",
    "Monitor",
    "Verdict",
    # look at it
    "evaluate",
    "Evaluation",
    "ClassEvaluation",
    "metrics",
    "plots",
    # what to choose
    "Regression",
    "Classification",
    "Detection",
    "LayerFactors",
    "JacobianRows",
    "Sketch",
    "Patchwork",
    "Division",
    "Witness",
    "Threads",
    # data and errors
    "Rows",
    "Things",
    "ArtifactError",
    "ExportError",
    "FactorisationError",
]
