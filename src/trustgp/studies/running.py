"""Which studies there are. A further one is a file with `run(setting) -> Result`, and its line here."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from .base import Result, Setting

STUDIES = {
    "toy": "the paper's 1-D figure: bands with and without patchwork",
    "ablation": "likelihood against each setting of the method",
    "transfer": "every method, trained on one arm and tested on all: the paper's Table 1",
    "sequence": "a GRU over windows of past states on the real arms: torques and their error bars",
    "classification": "CNNs on Fashion-MNIST and MNIST: probabilities, and whether foreign images are told",
    "continuity": "jumps of the variance at the borders of experts, in 21 dimensions",
    "scale": "time and memory of a fit from ten thousand rows to two million, stage by stage",
    "bound": "the kernel's approximation bound against the number of experts",
    "distributed": "time to solve the experts against workers: threads, processes, Ray; streams on a GPU",
    "detection": "a detector's boxes and classes: novel things told, edges calibrated, the cost of it",
    "runtime": "time of a call beside the peers: eager, compiled and onnxruntime, from an MLP to a DETR",
}
"""Name of the module here, and what it is about."""


def run_study(name: str, out: Path, **setting: Any) -> Result:
    """Run a study and write `out/name/result.json`, with its figures beside it.

    Args:
        name: One of `STUDIES`.
        out: Folder of all results.
        setting: See `Setting`.
    """
    if name not in STUDIES:
        raise ValueError(f"study {name!r} is unknown; choose one of {', '.join(STUDIES)}.")
    asked = Setting(out / name, **setting)
    result = import_module(f".{name}", __package__).run(asked)
    result.write(asked.out)
    return result
