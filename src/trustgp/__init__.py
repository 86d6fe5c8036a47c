"""Honest error bars for a network that is already trained."""

from importlib import import_module as _import_module

from .data.version import __version__ as __version__

# Public names, grouped by purpose, with their modules. They are imported on first use, which keeps `import
# trustgp` and `trustgp --help` fast; `__init__.pyi` lists them for type checkers.
_NAMES = {
    # fit and use
    ".api": ("fit", "load", "paper"),
    ".model": ("UncertaintyModel", "DenseModel"),
    ".likelihoods.dense": ("DensePrediction",),
    ".likelihoods.prediction": ("Prediction", "ClassPrediction"),
    ".likelihoods.multilabel": ("LabelPrediction",),
    ".detection.model": ("DetectionModel",),
    ".likelihoods.detections": ("Detections",),
    ".state.conformal": ("ConformalIntervals", "ConformalSets"),
    ".state.joint": ("JointPrediction",),
    # make it small
    ".fitting.compress": ("compress",),
    ".fitting.budget": ("BudgetError",),
    # take it elsewhere
    ".export": ("export_onnx", "compile", "ExportError"),
    ".monitor.monitor": ("Monitor", "Verdict"),
    # look at it
    ".metrics.evaluate": ("evaluate",),
    ".metrics.class_evaluation": ("ClassEvaluation", "LabelEvaluation"),
    ".metrics.evaluation": ("Evaluation",),
    ".metrics.detection_evaluation": ("DetectionEvaluation",),
    "": ("metrics", "plots"),
    # what to choose
    ".likelihoods": ("Regression", "Classification", "MultiLabel"),
    ".detection.adapter": ("Detection",),
    ".tangents": ("LayerFactors", "JacobianRows", "Sketch"),
    ".experts.neighbours": ("Patchwork",),
    ".experts.gate": ("Division",),
    ".experts.witness": ("Witness",),
    ".executors": ("Threads",),
    # data and errors
    ".data.rows": ("Rows",),
    ".detection.pictures": ("BoxTargets",),
    ".data.tensor_file": ("ArtifactError",),
    ".math.evidence": ("FactorisationError",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
_SUBPACKAGES = (  # attributes that need no import of their own
    *("api", "data", "detection", "executors", "experts", "export", "fitting", "likelihoods", "logs", "math"),
    *("metrics", "model", "monitor", "plots", "sklearn", "state", "tangents"),
)

__all__ = list(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    if name in _SUBPACKAGES:
        return _import_module(f".{name}", __name__)
    if name not in _MODULES:
        raise AttributeError(f"module 'trustgp' has no attribute {name!r}")
    globals()[name] = value = getattr(_import_module(_MODULES[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBPACKAGES})
