"""A detector with an error bar: boxes and classes unchanged, with how sure they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..class_prediction import ClassPrediction
from ..metrics.boxes import corners
from ..model import UncertaintyModel
from .pictures import as_pictures
from .rows import PICTURES, kept, probabilities
from .settings import Detection
from .splitting import Detector, rows_of


@dataclass(frozen=True)
class Detections:
    """What was found in one picture, the surest first.

    Args:
        boxes: Left, top, right, bottom in pixels, as the detector says, [k, 4].
        std: How sure each edge is, in pixels, [k, 4].
        labels: The detector's classes, int64, [k].
        confidence: The detector's own probability of that class, [k].
        probabilities: Of all classes and, last, of no object, with the error bar, [k, C + 1].
        novelty: How far from what it was trained on, in [0, 1]: the latent variance of whether there is
            anything, over what it would be without training rows, [k].
        box_novelty: The same of the edges, [k].
    """

    boxes: Tensor
    std: Tensor
    labels: Tensor
    confidence: Tensor
    probabilities: Tensor
    novelty: Tensor
    box_novelty: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def entropy(self) -> Tensor:
        """Of the probabilities, in nats, [k]."""
        return torch.special.entr(self.probabilities).sum(dim=1)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Lower and upper end of each edge, in pixels, [k, 4] each, of a normal distribution.

        Args:
            level: Probability within, in (0, 1).
        """
        if not 0.0 < level < 1.0:
            raise ValueError(f"level={level}; it must lie between 0 and 1.")
        reach = (
            torch.special.ndtri(torch.tensor(0.5 + level / 2, dtype=torch.float64)).to(self.std) * self.std
        )
        return self.boxes - reach, self.boxes + reach

    @property
    def summary(self) -> dict[str, float]:
        """Of the picture: how many, and the largest novelty, entropy and deviation; 0 without any."""
        if not len(self):
            return {"detections": 0, "novelty": 0.0, "entropy": 0.0, "std": 0.0}
        return {
            "detections": len(self),
            "novelty": float(self.novelty.max()),
            "entropy": float(self.entropy.max()),
            "std": float(self.std.max()),
        }


class DetectionModel(nn.Module):
    """A detector and two error bars: one for the edges of its boxes, one for its classes.

    Args:
        network: A private copy of the detector.
        edges, classes: Fitted on rows, each a query of a picture.
        names: Of the tensors that go into the decoder's last layer and differ from picture to picture.
        size: Height and width of the pictures.
        settings: What the user said.
    """

    def __init__(
        self,
        network: Any,
        edges: UncertaintyModel,
        classes: UncertaintyModel,
        names: tuple[str, ...],
        size: tuple[int, int],
        settings: Detection,
    ) -> None:
        super().__init__()
        self.network, self.edges, self.classes = network, edges, classes
        self.names, self.size, self.settings = names, size, settings

    @property
    def alone(self) -> bool:
        """Whether a row needs its own query only."""
        return bool(self.edges.network.get_submodule("tail").each)

    @property
    def nbytes(self) -> int:
        """What the error bars hold in memory, the network itself not counted."""
        return self.edges.nbytes + self.classes.nbytes

    def forward(self, images: Any) -> list[Detections]:
        """The same as `predict`."""
        return self.predict(images)

    @torch.no_grad()
    def predict(self, images: Any) -> list[Detections]:
        """Detections of each picture.

        Args:
            images: As the detector takes them, [n, channels, height, width], one of them, or a list.
        """
        pictures = as_pictures(images, channels=self.network.config.num_channels, size=self.size)
        return [found for part in pictures.split(PICTURES) if len(part) for found in self._predict(part)]

    def traced(self) -> DetectionModel:
        """The same model with its error bars recorded as graphs: exact to rounding, and faster for few rows.

        Takes a few seconds. Boxes and classes are the detector's own all the same.
        """
        from .tracing import TracedModel

        return TracedModel(self)

    def _told(self, rows: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of each row: std of the edges, probabilities of the classes, novelty of these and of the edges."""
        edges, classes = self.edges.predict(rows), self.classes.predict(rows)
        assert isinstance(classes, ClassPrediction)
        return edges.std, classes.probabilities, classes.score, edges.score

    def _predict(self, images: Tensor) -> list[Detections]:
        device = next(self.network.parameters()).device
        seen = Detector(self.network, alone=self.alone)(images.to(device))
        labels = self.network.config.num_labels
        chances = probabilities(seen.logits, labels)
        image, query = kept(chances, self.settings)
        size = images.new_tensor([images.shape[3], images.shape[2]] * 2).to(device)
        boxes = (corners(seen.boxes) * size)[image, query]
        confidence, kind = chances[image, query].max(dim=1)
        if not len(image):
            nothing = boxes.new_zeros(0)
            std, told, score, wide = boxes, chances.new_zeros(0, labels + 1), nothing, nothing
        else:
            std, told, score, wide = self._told(rows_of(seen, self.names, image, query))
        sizes = torch.bincount(image, minlength=len(images)).tolist()
        parts = (boxes, std, kind, confidence, told, score, wide)
        return [Detections(*lot) for lot in zip(*(part.split(sizes) for part in parts), strict=True)]
