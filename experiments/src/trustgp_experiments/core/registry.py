"""Names of the studies, and one line about each. Nothing heavy is imported before one of them runs.

A new study needs a folder with a `study.py` that defines `run(setting) -> Result`, and a line here.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .result import Result

STUDIES = {
    "toy": "the paper's 1-D figure: bands with and without patchwork",
    "ablation": "likelihood against each setting of the method",
    "transfer": "every method, trained on one arm and tested on all: the paper's Table 1",
    "tables": "twelve UCI tables on their public splits, and four more: every method and its cost",
    "control": "a simulated arm in closed loop: a controller that falls back on flagged rows",
    "sequence": "a GRU over windows of past states on the real arms: torques and their error bars",
    "classification": "CNNs on Fashion-MNIST and MNIST: probabilities, and the detection of novel images",
    "scale": "time and memory of a fit from ten thousand rows to two million, stage by stage",
    "distributed": "time to solve the experts against workers: threads and Ray; streams on a GPU",
    "detection": "a detector's boxes and classes: novel objects, calibrated edges, and the cost",
    "runtime": "time of a call beside the peers: eager, compiled and onnxruntime, from an MLP to a DETR",
}
"""Subject of each study, by the name of its folder below `studies`."""
# extras that are checked before the study's module is imported
NEEDED: dict[str, tuple[str, ...]] = {"detection": ("plots", "detection", "peers")}
NEEDED |= dict.fromkeys(("transfer", "classification", "tables", "control"), ("peers",))
PEERS = (
    'pip install "./experiments[peers]"',
    "pip install --no-deps laplace-torch backpack-for-pytorch curvlinops-for-pytorch",
)
MODULES = {"plots": ["matplotlib"], "detection": ["transformers", "PIL"]}
MODULES |= {"hf": ["transformers"], "peers": ["laplace"]}
"""Modules whose presence is checked, by extra of the distribution."""


def run_study(name: str, out: Path, **setting: Any) -> Result:
    """Run one of `STUDIES` and write `out/name/result.json`, with its figures beside it; see `Setting`."""
    if name not in STUDIES:
        raise ValueError(f"study {name!r} is unknown; choose one of {', '.join(STUDIES)}.")
    require_extras(f"The study {name}", NEEDED.get(name, ()))
    options = import_module("trustgp_experiments.core.result").Setting(out / name, **setting)
    result = import_module(f"trustgp_experiments.studies.{name}.study").run(options)
    result.write(options.out)
    return result


def require_extras(what: str, extras: Iterable[str]) -> None:
    """Raise ImportError, with commands to install what is missing, unless `what` has all of its extras."""
    gone = {extra: [name for name in MODULES[extra] if find_spec(name) is None] for extra in extras}
    missing = [extra for extra, names in gone.items() if names]
    if missing:
        modules = ", ".join(dict.fromkeys(name for names in gone.values() for name in names))
        library = ",".join(extra for extra in missing if extra != "peers")
        commands = [f'pip install "trustgp[{library}]"'] if library else []
        commands += PEERS if "peers" in missing else ()
        raise ImportError(f"{what} needs {modules}, which is not installed: {'; then '.join(commands)}")
