"""Honest error bars for a network that is already trained."""

from importlib import import_module as _import_module
from warnings import warn as _warn

from .data.version import __version__ as __version__

# Public names, grouped by purpose, with their modules. They are imported on first use, which keeps `import
# trustgp` and `trustgp --help` fast; `__init__.pyi` lists them for type checkers.
_MODULES = {
    # fit and use
    "fit": ".api",
    "load": ".api",
    "paper": ".api",
    "UncertaintyModel": ".model",
    "Prediction": ".likelihoods.prediction",
    "ClassPrediction": ".likelihoods.prediction",
    "DetectionModel": ".detection.model",
    "Detections": ".likelihoods.detections",
    "ConformalIntervals": ".state.conformal",
    "ConformalSets": ".state.conformal",
    # make it small
    "compress": ".fitting.compress",
    "BudgetError": ".fitting.budget",
    # take it elsewhere
    "export_onnx": ".export",
    "compile": ".export",
    "Monitor": ".monitor.monitor",
    "Verdict": ".monitor.monitor",
    # look at it
    "evaluate": ".metrics.evaluate",
    "Evaluation": ".metrics.evaluation",
    "ClassEvaluation": ".metrics.evaluation",
    "DetectionEvaluation": ".metrics.detection_evaluation",
    "metrics": "",
    "plots": "",
    # what to choose
    "Regression": ".likelihoods.regression",
    "Classification": ".likelihoods.classification",
    "Detection": ".detection.query_rows",
    "LayerFactors": ".tangents",
    "JacobianRows": ".tangents",
    "Sketch": ".tangents",
    "Patchwork": ".experts.neighbours",
    "Division": ".experts.gate",
    "Witness": ".experts.witness",
    "Threads": ".executors",
    # data and errors
    "Rows": ".data.rows",
    "BoxTargets": ".detection.targets",
    "ArtifactError": ".data.tensor_file",
    "ExportError": ".export",
    "FactorisationError": ".math.evidence",
}
_REMOVED = {  # for one release
    "tune": 'use trustgp.compress(model, rank=64), or trustgp.fit(..., budget="16 MiB")',
    "Tuning": "trustgp.compress returns the smaller model itself",
}
_RENAMED = {"Things": "BoxTargets"}  # for one release
_SUBPACKAGES = (  # attributes that need no import of their own
    *("api", "data", "detection", "executors", "experts", "export", "fitting", "likelihoods", "logs", "math"),
    *("metrics", "model", "monitor", "plots", "sklearn", "state", "tangents"),
)

__all__ = list(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    if name in _SUBPACKAGES:
        return _import_module(f".{name}", __name__)
    if name in _RENAMED:
        _warn(f"trustgp.{name} is now called {_RENAMED[name]}.", DeprecationWarning, stacklevel=2)
        name = _RENAMED[name]
    if name in _REMOVED:
        return _removed(name)
    if name not in _MODULES:
        raise AttributeError(f"module 'trustgp' has no attribute {name!r}")
    globals()[name] = value = getattr(_import_module(_MODULES[name], __name__), name)
    return value


def _removed(name: str):
    def call(*given, **options):
        raise NotImplementedError(f"trustgp.{name} was removed: {_REMOVED[name]}.")

    return call


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBPACKAGES})
