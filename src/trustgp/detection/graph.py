"""A detector and its error bar as one module of plain tensor operations: pictures in, a dict of answers out.

Every query answers, so that no size depends on what is in a picture; which of them are detections is said by
`trustgp.export.detector_file`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..export.detector_file import ANSWERS
from ..export.errors import refuse_network
from ..export.module.experts import one_of
from ..metrics.boxes import corners
from .query_rows import probabilities, with_background
from .readout import Readout
from .state import DetectorState


class DetectorGraph(nn.Module):
    """What `DetectionModel.predict` computes, for all queries; the state's own code, where it can be.

    Of a picture that is not valid, since it or what the detector says of it is not finite, every confidence
    is 0, every novelty 1, and every deviation infinite. For `plain` see `trustgp.export.module.experts`.
    """

    def __init__(self, state: DetectorState, *, plain: bool) -> None:
        super().__init__()
        refuse_network(state.network)
        self.network, self.state, self.detector = state.network, state, state.detector
        place = self.detector.place
        experts = [ClassExpert(state.readout, kind).to(place) for kind in range(len(state.readout.centre))]
        self.known = SideBySide(experts) if plain else one_of(experts, [experts[0].centre], plain=False)
        self.whole = ClassExpert(state.pictures, 0).to(place)

    @torch.no_grad()
    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """For pictures [n, channels, height, width], by name: "boxes" and "std" [n, Q, 4], left, top, right,
        bottom in pixels; "labels", int64, "confidence" and "novelty" [n, Q]; "probabilities" [n, Q, C + 1];
        "picture_novelty" and "valid", bool, [n]."""
        said, state, labels = self.detector(images), self.state, self.detector.labels
        n, queries = said.logits.shape[:2]
        confidence, kinds = probabilities(said.logits, labels).max(dim=2)
        boxes = corners(said.boxes) * said.boxes.new_tensor([images.shape[3], images.shape[2]] * 2)
        (unknown,) = self.known(kinds.flatten(), said.seen.flatten(0, 1))  # u, [n * Q]
        (whole,) = self.whole(said.seen.mean(dim=1))  # w, [n]
        logits = with_background(said.logits, labels).flatten(0, 1)
        told = state.temperature(logits, unknown).unflatten(0, (n, queries))
        each = whole[:, None].expand(n, queries).flatten()
        std = state.edges.std(unknown, each).unflatten(0, (n, queries))
        parts = (images.to(boxes), said.logits, said.boxes, said.seen, whole)
        # anything but a finite number, times 0, is not 0
        valid = torch.stack([(part.reshape(n, -1) * 0.0).sum(dim=1) for part in parts]).sum(dim=0) == 0
        nothing = torch.tensor([0.0] * labels + [1.0]).to(boxes)
        by_query = valid[:, None]
        answers = {
            "boxes": torch.where(by_query[..., None], boxes, 0.0),
            "std": torch.where(by_query[..., None], std.to(boxes), math.inf),
            "labels": kinds,
            "confidence": torch.where(by_query, confidence, 0.0),
            "probabilities": torch.where(by_query[..., None], told.to(boxes), nothing),
            "novelty": torch.where(by_query, _novelty(unknown).unflatten(0, (n, queries)), 1.0),
            "picture_novelty": torch.where(valid, _novelty(whole), 1.0),
            "valid": valid,
        }
        return {name: answers[name] for name in ANSWERS}


class ClassExpert(nn.Module):
    """One class of a `Readout`: u of what was seen, [..., d], in the precision of the network."""

    centre: Tensor  # m_c [..., d]
    root: Tensor  # R_c [..., d, d]

    def __init__(self, readout: Readout, kind: int) -> None:
        super().__init__()
        self.register_buffer("centre", readout.centre[kind].clone())
        self.register_buffer("root", readout.root[kind].clone())

    def forward(self, seen: Tensor) -> tuple[Tensor]:
        """u, [...]."""
        white = (seen - self.centre)[..., None, :] @ self.root  # [..., 1, d]
        return ((white * white).sum(dim=(-2, -1)),)


class SideBySide(nn.Module):
    """The experts of all classes for rows of any class; a compiler sums without writing [m, d, d] numbers."""

    centre: Tensor  # m [C, d]
    root: Tensor  # R [C, d, d]

    def __init__(self, experts: list[ClassExpert]) -> None:
        super().__init__()
        self.register_buffer("centre", torch.stack([one.centre for one in experts]))
        self.register_buffer("root", torch.stack([one.root for one in experts]))

    def forward(self, kinds: Tensor, seen: Tensor) -> tuple[Tensor]:
        """u [m] of rows [m, d] and their classes [m]."""
        away = seen - self.centre[kinds]
        white = (away[:, :, None] * self.root[kinds]).sum(dim=1)
        return ((white * white).sum(dim=-1),)


def _novelty(unknown: Tensor) -> Tensor:
    """u / (1 + u), and 1 where u has overflowed."""
    return (unknown / (1.0 + unknown)).nan_to_num(1.0)
