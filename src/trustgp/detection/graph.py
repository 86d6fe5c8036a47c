"""A detector and its error bar as one module of plain tensor operations: pictures in, a dict of answers out.

Every query answers, so that no shape depends on the picture; `trustgp.export.detector_file` selects the
detections.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..export.detector_file import ANSWERS
from ..export.errors import refuse_network
from ..export.module.experts import one_of
from ..metrics.boxes import corners
from .class_gaussians import ClassGaussians
from .query_rows import probabilities, with_background
from .state import DetectorState


class DetectorGraph(nn.Module):
    """The computations of `DetectionModel.predict` for all queries, by the state's own code where possible.

    Of a picture that is not valid, since it or the detector's output is not finite, every confidence is 0,
    every novelty 1, and every deviation infinite. For `plain` see `trustgp.export.module.experts`.
    """

    def __init__(self, state: DetectorState, *, plain: bool) -> None:
        super().__init__()
        refuse_network(state.network)
        self.network, self.state, self.detector = state.network, state, state.detector
        place = self.detector.place
        experts = [ClassExpert(state.classes, label).to(place) for label in range(len(state.classes.centre))]
        stacked = StackedExperts(state.classes, slice(None)).to(place)
        self.by_class = stacked if plain else one_of(experts, [experts[0].centre], plain=False)
        self.by_picture = ClassExpert(state.pictures, 0).to(place)

    @torch.no_grad()
    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """For pictures [n, channels, height, width], by name: "boxes" and "std" [n, Q, 4], left, top, right,
        bottom in pixels; "labels", int64, "confidence" and "novelty" [n, Q]; "probabilities" [n, Q, C + 1];
        "picture_novelty" and "valid", bool, [n]."""
        outputs, state, classes = self.detector(images), self.state, self.detector.labels
        n, queries = outputs.logits.shape[:2]
        confidence, labels = probabilities(outputs.logits, classes).max(dim=2)
        boxes = corners(outputs.boxes) * outputs.boxes.new_tensor([images.shape[3], images.shape[2]] * 2)
        (variance,) = self.by_class(labels.flatten(), outputs.features.flatten(0, 1))  # u, [n * Q]
        (picture,) = self.by_picture(outputs.features.mean(dim=1))  # w, [n]
        logits = with_background(outputs.logits, classes).flatten(0, 1)
        chances = state.temperature(logits, variance).unflatten(0, (n, queries))
        each = picture[:, None].expand(n, queries).flatten()
        std = state.edges.std(variance, each).unflatten(0, (n, queries))
        parts = (images.to(boxes), outputs.logits, outputs.boxes, outputs.features, picture)
        # anything but a finite number, times 0, is not 0
        valid = torch.stack([(part.reshape(n, -1) * 0.0).sum(dim=1) for part in parts]).sum(dim=0) == 0
        nothing = torch.tensor([0.0] * classes + [1.0]).to(boxes)
        by_query = valid[:, None]
        answers = {
            "boxes": torch.where(by_query[..., None], boxes, 0.0),
            "std": torch.where(by_query[..., None], std.to(boxes), math.inf),
            "labels": labels,
            "confidence": torch.where(by_query, confidence, 0.0),
            "probabilities": torch.where(by_query[..., None], chances.to(boxes), nothing),
            "novelty": torch.where(by_query, _novelty(variance).unflatten(0, (n, queries)), 1.0),
            "picture_novelty": torch.where(valid, _novelty(picture), 1.0),
            "valid": valid,
        }
        return {name: answers[name] for name in ANSWERS}


class ClassExpert(nn.Module):
    """One class of `ClassGaussians`, or several: u of features [..., d], in the precision of the network."""

    centre: Tensor  # m_c [..., d]
    root: Tensor  # R_c [..., d, d]

    def __init__(self, gaussians: ClassGaussians, label: int | slice) -> None:
        super().__init__()
        self.register_buffer("centre", gaussians.centre[label].clone())
        self.register_buffer("root", gaussians.root[label].clone())

    def forward(self, features: Tensor) -> tuple[Tensor]:
        """u, [...]."""
        white = (features - self.centre)[..., None, :] @ self.root  # [..., 1, d]
        return ((white * white).sum(dim=(-2, -1)),)


class StackedExperts(ClassExpert):
    """Those of all classes for rows of any class; a compiler sums without storing [m, d, d] numbers."""

    def forward(self, labels: Tensor, features: Tensor) -> tuple[Tensor]:  # pyright: ignore
        """u [m] of rows [m, d] and their classes [m]."""
        away = features - self.centre[labels]
        white = (away[:, :, None] * self.root[labels]).sum(dim=1)
        return ((white * white).sum(dim=-1),)


def _novelty(variance: Tensor) -> Tensor:
    """u / (1 + u), and 1 where u has overflowed."""
    return (variance / (1.0 + variance)).nan_to_num(1.0)
