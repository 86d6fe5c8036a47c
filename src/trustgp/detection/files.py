"""One file for a detector's error bar: no pickle, refused with any other detector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import tangents
from ..data.fingerprint import network_fingerprint
from ..data.tensor_file import ArtifactError, Reader, inside, write
from ..likelihoods.novelty import novelty_tensors, read_novelty
from ..model import UncertaintyModel
from ..state.model_file import DETECTOR, model_tensors, model_text, read_model
from ..tangents.modules import clone_module
from .detector import Detector
from .edge_noise import read_edges
from .settings import Detection
from .state import DetectorState

PART = "finding"
ALIKE = "alike."  # begins the names of what enters the decoder's last layer for all pictures of a size
PROBES = 3  # pictures of noise with which the detector is taken apart again


def save_detector(state: DetectorState, path: str | Path) -> None:
    """Write the error bar whole or not at all. The detector is not in the file."""
    finding = state.finding.state
    text = {
        "network": network_fingerprint(state.network),
        "detector": type(state.network).__name__,
        "names": list(state.names),
        "size": list(state.size),
        "settings": _settings_text(state.settings),
        PART: model_text(finding),
    }
    tail: Any = finding.network.get_submodule("tail")
    table = {f"{ALIKE}{name}": tail.get_buffer(f"alike_{name}") for name in tail.alike}
    table |= {f"{PART}.{name}": value for name, value in model_tensors(finding).items()}
    table |= state.edges.tensors() | novelty_tensors(state.held_scores, state.threshold)
    write(Path(path), kind=DETECTOR, text=text, tensors=table)


def read_detector(
    text: dict[str, Any], table: Mapping[str, Tensor], network: Any, *, where: str
) -> DetectorState:
    """The state of a file's text and tensors.

    Args:
        text, table: As `save_detector` wrote them.
        network: The detector; another than the one it was fitted to is refused.
        where: What to call the file in an error.
    """
    private = clone_module(network).eval()
    if network_fingerprint(private) != text.get("network"):
        raise ArtifactError(
            f"{where}: was fitted to another detector; classes, names or weights differ. Load it with the "
            "detector it was fitted to, or fit again."
        )
    names, size, settings = _read_text(text, where)
    detector = Detector(private, whole=settings.whole)
    reader = Reader({k: table[k] for k in table if not k.startswith(f"{PART}.")}, where=where)
    held_scores, threshold = read_novelty(reader)
    edges = read_edges(reader)
    alike = {}
    for name in reader.matching(ALIKE):
        value = table[f"{ALIKE}{name}"]
        alike[name] = reader.take(f"{ALIKE}{name}", value.dtype, *value.shape).to(detector.place.device)
    reader.finish()
    noise = torch.randn(PROBES, detector.channels, *size, generator=torch.Generator().manual_seed(0))
    try:
        tail = detector.tail(noise, alike)
        entering = detector(noise[:1]).entering
    except (ValueError, RuntimeError) as error:
        raise ArtifactError(f"{where}: does not fit the detector: {error}") from error
    if set(entering) != {*names, *alike}:
        raise ArtifactError(
            f"{where}: other tensors enter the decoder's last layer; is transformers as it was?"
        )
    finding = UncertaintyModel(read_model(text[PART], inside(table, f"{PART}."), tail, where=where))
    return DetectorState(private, finding, edges, names, size, settings, held_scores, threshold)


def _settings_text(settings: Detection) -> dict[str, Any]:
    plain = {field.name: getattr(settings, field.name) for field in fields(settings)}
    chosen = settings.tangents
    plain["tangents"] = chosen and {"kind": type(chosen).__name__, "settings": chosen.settings()}
    return plain


def _read_text(text: dict[str, Any], where: str) -> tuple[tuple[str, ...], tuple[int, int], Detection]:
    """Names, size and settings."""
    try:
        names, (height, width), plain = tuple(text["names"]), text["size"], dict(text["settings"])
        chosen = plain["tangents"]
        plain["tangents"] = chosen and tangents.KINDS[chosen["kind"]](**chosen["settings"])
        settings = Detection(**plain)
        sane = all(isinstance(name, str) for name in names) and all(type(n) is int for n in (height, width))
        sane = sane and min(height, width) > 0 and isinstance(text[PART], dict)
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{where}: its description is damaged or unknown ({error}).") from error
    if not sane:
        raise ArtifactError(f"{where}: its description does not fit together.")
    return names, (height, width), settings
