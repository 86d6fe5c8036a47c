"""The public names, for type checkers: `__init__.py` imports each when it is first asked for."""

from . import api as api
from . import data as data
from . import detection as detection
from . import executors as executors
from . import experts as experts
from . import export as export
from . import fitting as fitting
from . import likelihoods as likelihoods
from . import logs as logs
from . import math as math
from . import metrics as metrics
from . import model as model
from . import monitor as monitor
from . import plots as plots
from . import sklearn as sklearn
from . import state as state
from . import tangents as tangents
from .api import fit, load, paper
from .data.rows import Rows
from .data.tensor_file import ArtifactError
from .detection.adapter import Detection
from .detection.model import DetectionModel
from .detection.pictures import BoxTargets
from .executors import Threads
from .experts.gate import Division
from .experts.neighbours import Patchwork
from .experts.witness import Witness
from .export import ExportError, compile, export_onnx
from .fitting.budget import BudgetError
from .fitting.compress import compress
from .likelihoods.classification import Classification
from .likelihoods.dense import DensePrediction
from .likelihoods.detections import Detections
from .likelihoods.multilabel import LabelPrediction, MultiLabel
from .likelihoods.prediction import ClassPrediction, Prediction
from .likelihoods.regression import Regression
from .math.evidence import FactorisationError
from .metrics.class_evaluation import ClassEvaluation, LabelEvaluation
from .metrics.detection_evaluation import DetectionEvaluation
from .metrics.evaluate import evaluate
from .metrics.evaluation import Evaluation
from .model import DenseModel, UncertaintyModel
from .monitor.monitor import Monitor, Verdict
from .state.conformal import ConformalIntervals, ConformalSets
from .state.joint import JointPrediction
from .tangents import JacobianRows, LayerFactors, Sketch

__version__: str
__all__ = [
    "ArtifactError", "BoxTargets", "BudgetError", "ClassEvaluation", "ClassPrediction", "Classification",
    "ConformalIntervals", "ConformalSets", "DenseModel", "DensePrediction", "Detection",
    "DetectionEvaluation", "DetectionModel", "Detections", "Division", "Evaluation", "ExportError",
    "FactorisationError", "JacobianRows", "JointPrediction", "LabelEvaluation", "LabelPrediction",
    "LayerFactors", "Monitor", "MultiLabel", "Patchwork", "Prediction", "Regression", "Rows", "Sketch",
    "Threads", "UncertaintyModel", "Verdict", "Witness", "compile", "compress", "evaluate", "export_onnx",
    "fit", "load", "metrics", "paper", "plots",
]  # fmt: skip
