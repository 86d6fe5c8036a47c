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
from .api import fit as fit
from .api import load as load
from .api import paper as paper
from .data.rows import Rows as Rows
from .data.tensor_file import ArtifactError as ArtifactError
from .detection.adapter import Detection as Detection
from .detection.model import DetectionModel as DetectionModel
from .detection.pictures import BoxTargets as BoxTargets
from .executors import Threads as Threads
from .experts.gate import Division as Division
from .experts.neighbours import Patchwork as Patchwork
from .experts.witness import Witness as Witness
from .export import ExportError as ExportError
from .export import compile as compile
from .export import export_onnx as export_onnx
from .fitting.budget import BudgetError as BudgetError
from .fitting.compress import compress as compress
from .likelihoods.classification import Classification as Classification
from .likelihoods.dense import DensePrediction as DensePrediction
from .likelihoods.detections import Detections as Detections
from .likelihoods.multilabel import LabelPrediction as LabelPrediction
from .likelihoods.multilabel import MultiLabel as MultiLabel
from .likelihoods.prediction import ClassPrediction as ClassPrediction
from .likelihoods.prediction import Prediction as Prediction
from .likelihoods.regression import Regression as Regression
from .math.evidence import FactorisationError as FactorisationError
from .metrics.class_evaluation import ClassEvaluation as ClassEvaluation
from .metrics.class_evaluation import LabelEvaluation as LabelEvaluation
from .metrics.detection_evaluation import DetectionEvaluation as DetectionEvaluation
from .metrics.evaluate import evaluate as evaluate
from .metrics.evaluation import Evaluation as Evaluation
from .model import DenseModel as DenseModel
from .model import UncertaintyModel as UncertaintyModel
from .monitor.monitor import Monitor as Monitor
from .monitor.monitor import Verdict as Verdict
from .state.conformal import ConformalIntervals as ConformalIntervals
from .state.conformal import ConformalSets as ConformalSets
from .state.joint import JointPrediction as JointPrediction
from .tangents import JacobianRows as JacobianRows
from .tangents import LayerFactors as LayerFactors
from .tangents import Sketch as Sketch

__version__: str
__all__ = [
    "ArtifactError",
    "BoxTargets",
    "BudgetError",
    "ClassEvaluation",
    "ClassPrediction",
    "Classification",
    "ConformalIntervals",
    "ConformalSets",
    "DenseModel",
    "DensePrediction",
    "Detection",
    "DetectionEvaluation",
    "DetectionModel",
    "Detections",
    "Division",
    "Evaluation",
    "ExportError",
    "FactorisationError",
    "JacobianRows",
    "LabelEvaluation",
    "LabelPrediction",
    "LayerFactors",
    "Monitor",
    "MultiLabel",
    "Patchwork",
    "Prediction",
    "Regression",
    "Rows",
    "Sketch",
    "Threads",
    "UncertaintyModel",
    "Verdict",
    "Witness",
    "compile",
    "compress",
    "evaluate",
    "export_onnx",
    "fit",
    "load",
    "metrics",
    "plots",
]
