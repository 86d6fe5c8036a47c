"""What a detector's error bar consists of, and its file: no pickle, refused with any other detector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import tangents
from ..data.fingerprint import network_fingerprint
from ..data.tensor_file import ArtifactError, Reader, inside, write
from ..likelihoods.base import NoveltyThreshold, novelty_tensors, read_novelty
from ..math.search import least_from_zero, sloped
from ..model import UncertaintyModel
from ..state.model_file import DETECTOR, model_tensors, model_text, read_model
from ..tangents.modules import clone_module
from .detector import Detector
from .query_rows import Detection

PART = "finding"
ALIKE = "alike."  # begins the names of what enters the decoder's last layer for all pictures of a size
FLOOR = 0.05  # of the root mean square error of an edge: the least a
STEPS = 200  # in search of a and b
PROBES = 3  # pictures of noise with which the detector is taken apart again


@dataclass(frozen=True)
class Edges:
    r"""How far off left, top, right and bottom of a box are, in pixels, by how little is known of it.

    The edges share the kernel of the classes, each with a scale of its own: with the novelty
    :math:`\nu(x)`, the latent variance over that of the prior, the variance of edge c is

    .. math:: \sigma_c^2(x) = a_c^2 + b_c^2 \, \nu(x).

    A kernel of the edges' own gradients costs a second pass, and told less about them where it was measured.
    """

    noise: Tensor  # a [4]
    latent: Tensor  # b [4]

    def std(self, novelty: Tensor) -> Tensor:
        """The standard deviation of each edge, float64, [k, 4], at some novelty, [k] or [k, 4]."""
        noise, latent = self.noise.to(novelty.device), self.latent.to(novelty.device)
        unknown = novelty.double() if novelty.ndim == 2 else novelty.double()[:, None]
        return (noise.square() + latent.square() * unknown).sqrt()

    @classmethod
    def fit(cls, errors: Tensor, novelty: Tensor) -> Edges:
        """The likeliest a and b, from held-out boxes that have found a thing: errors and novelty, [m, 4]."""
        errors, novelty = errors.detach().cpu().double(), novelty.detach().cpu().double()
        typical = errors.square().mean(dim=0).sqrt().clamp_min(1e-6)
        floor = FLOOR * typical
        share = novelty.mean().clamp_min(1e-6).sqrt()

        def scaled(free: Tensor) -> Edges:
            return cls(floor + typical * free[:4].exp(), typical / share * free[4:].exp())

        def loss(free: Tensor) -> Tensor:
            std = scaled(free).std(novelty)
            return (0.5 * (errors / std).square() + std.log()).mean()

        found = least_from_zero(sloped(loss), 8, max_iter=STEPS)
        return scaled(torch.zeros(8, dtype=torch.float64) if found is None else torch.from_numpy(found))


@dataclass(frozen=True, eq=False)
class DetectorState:
    """A detector and its error bar: how sure its classes are, and, from the same kernel, its edges.
    `held_scores` are the novelty of the held-out detections that have found a thing, float64, [k]."""

    network: Any  # a private copy
    finding: UncertaintyModel  # fitted on rows, each a query of a picture: is there anything, and what?
    edges: Edges
    names: tuple[str, ...]  # of what enters the decoder's last layer and differs from picture to picture
    size: tuple[int, int]  # height and width of the pictures
    settings: Detection
    held_scores: Tensor
    threshold: NoveltyThreshold | None = None

    @property
    def detector(self) -> Detector:
        """The network, as rows are made with it."""
        alone = bool(self.finding.network.get_submodule("tail").each)  # a row needs its own query only
        return Detector(self.network, alone=alone, whole=self.settings.whole)


def save_detector(state: DetectorState, path: str | Path) -> None:
    """Write the error bar whole or not at all. The detector is not in the file."""
    finding, chosen = state.finding.state, state.settings.tangents
    settings = {one.name: getattr(state.settings, one.name) for one in fields(state.settings)}
    settings["tangents"] = chosen and {"kind": type(chosen).__name__, "settings": chosen.settings()}
    text = {
        "network": network_fingerprint(state.network),
        "detector": type(state.network).__name__,
        "names": list(state.names),
        "size": list(state.size),
        "settings": settings,
        PART: model_text(finding),
    }
    tail: Any = finding.network.get_submodule("tail")
    table = {f"{ALIKE}{name}": tail.get_buffer(f"alike_{name}") for name in tail.alike}
    table |= {f"{PART}.{name}": value for name, value in model_tensors(finding).items()}
    table |= {f"edges.{one.name}": getattr(state.edges, one.name) for one in fields(Edges)}
    table |= novelty_tensors(state.held_scores, state.threshold)
    write(Path(path), kind=DETECTOR, text=text, tensors=table)


def read_detector(
    text: dict[str, Any], table: Mapping[str, Tensor], network: Any, *, where: str
) -> DetectorState:
    """The state of a file's text and tensors; another detector than the one it was fitted to is refused."""
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
    edges = Edges(*(reader.positive(f"edges.{one.name}", 4, zero=True) for one in fields(Edges)))
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
