"""What else puts an error bar on a detector: passes with dropout, an ensemble, Laplace on the last layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from trustgp.detection.query_rows import kept, probabilities
from trustgp.detection.settings import Detection
from trustgp.metrics.boxes import corners, overlaps

from ...peers import LaplaceClassifier
from .pictures import PictureSet

PASSES = 20
BATCH = 25  # pictures at a time
SAME = 0.5  # overlap from which a member has found the same thing


@dataclass(frozen=True)
class Found:
    """Detections of some pictures, all methods' the same ones: those of the one detector.

    Args:
        pictures: In which they are.
        image: Of each, [m].
        boxes: In pixels, [m, 4].
        logits: Of the classes and, last, of no object, [m, C + 1].
        hidden: What the head was given, [m, d].
        passes: Probabilities and boxes of each pass with dropout, [P, m, C + 1] and [P, m, 4].
        members: The same of each member of an ensemble, the detector itself first.
    """

    pictures: PictureSet
    image: Tensor
    boxes: Tensor
    logits: Tensor
    hidden: Tensor
    passes: tuple[Tensor, Tensor]
    members: tuple[Tensor, Tensor]


def find(
    network: Any, others: Sequence[Any], pictures: PictureSet, settings: Detection, *, passes: int = PASSES
) -> Found:
    """All that peers need, in one sweep; `others` are further members of the ensemble."""
    parts = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of the masks
        for start in range(0, len(pictures), BATCH):
            part = _batch(network, others, pictures[start : start + BATCH], settings, passes)
            parts.append(replace(part, image=part.image + start))

    def joined(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts])

    def pair(name: str) -> tuple[Tensor, Tensor]:
        told, places = (torch.cat([getattr(part, name)[k] for part in parts], dim=1) for k in (0, 1))
        return told, places

    plain = (joined(name) for name in ("image", "boxes", "logits", "hidden"))
    return Found(pictures, *plain, passes=pair("passes"), members=pair("members"))


@torch.no_grad()
def _batch(
    network: Any, others: Sequence[Any], pictures: PictureSet, settings: Detection, passes: int
) -> Found:
    labels, images = network.config.num_labels, pictures.images
    size = torch.tensor([images.shape[3], images.shape[2]] * 2, dtype=images.dtype)
    watched = Decoder(network)
    found = watched(images)
    image, query = kept(probabilities(found.logits, labels), settings)
    boxes = (corners(found.pred_boxes) * size)[image, query]
    logits = with_background(found.logits, labels)[image, query]
    told, places = [logits.softmax(dim=1)], [boxes]
    for other in others:
        said = other(images)
        chances = with_background(said.logits, labels).softmax(dim=2)
        p, b = _same(chances, corners(said.pred_boxes) * size, image, boxes)
        told.append(p)
        places.append(b)
    again = [watched.again(image, query, size) for _ in range(passes)]
    return Found(
        pictures,
        image,
        boxes,
        logits,
        watched.hidden[image, query],
        (torch.stack([p for p, _ in again]), torch.stack([b for _, b in again])),
        (torch.stack(told), torch.stack(places)),
    )


def with_background(logits: Tensor, labels: int) -> Tensor:
    """With a logit for no object last: 0 where each class is a yes or no, which leaves its odds."""
    return nn.functional.pad(logits, (0, 1)) if logits.shape[-1] == labels else logits


class Decoder:
    """A detector whose decoder can be run again with dropout: what comes before has none.

    Args:
        network: Of the DETR family.
    """

    def __init__(self, network: Any) -> None:
        self.network = network
        self.hidden = torch.zeros(0)

    def __call__(self, images: Tensor) -> Any:
        """The detector's own answer; remembers what went into the decoder."""
        caught: dict[str, Any] = {}

        def entered(module: nn.Module, arguments: tuple, named: dict[str, Any]) -> None:
            caught["given"] = (arguments, named)

        def headed(module: nn.Module, arguments: tuple) -> None:
            caught["hidden"] = arguments[0]

        hooks = [
            self.network.model.decoder.register_forward_pre_hook(entered, with_kwargs=True),
            self.network.class_labels_classifier.register_forward_pre_hook(headed),
        ]
        try:
            found = self.network(images)
        finally:
            for hook in hooks:
                hook.remove()
        self.given, self.hidden = caught["given"], caught["hidden"]
        # what is added to the box head's numbers: reference points, where there are any
        head = self.network.bbox_predictor(self.hidden)
        self.offset = torch.special.logit(found.pred_boxes.double()) - head.double()
        return found

    def again(self, image: Tensor, query: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities [m, C + 1] and boxes in pixels [m, 4] of one pass with dropout.

        Args:
            image, query: Which detections, [m] each.
            size: Width and height twice, [4].
        """
        decoder = self.network.model.decoder.train()
        try:
            hidden = decoder(*self.given[0], **self.given[1]).last_hidden_state[image, query]
        finally:
            decoder.eval()
        logits = with_background(self.network.class_labels_classifier(hidden), self.network.config.num_labels)
        boxes = (self.network.bbox_predictor(hidden) + self.offset[image, query]).sigmoid()
        return logits.softmax(dim=1), corners(boxes).to(size) * size


def _same(chances: Tensor, boxes: Tensor, image: Tensor, mine: Tensor) -> tuple[Tensor, Tensor]:
    """What another member says of the same things: its surest query there, or "no object"."""
    told = torch.zeros(len(image), chances.shape[2])
    told[:, -1] = 1.0
    places = mine.clone()
    for row, (i, box) in enumerate(zip(image.tolist(), mine, strict=True)):
        near = (overlaps(box[None], boxes[i])[0] >= SAME).nonzero().flatten()
        if len(near):
            best = near[chances[i, near, -1].argmin()]
            told[row], places[row] = chances[i, best], boxes[i, best]
    return told, places


def last_layer_laplace(network: Any, train: Found, labels: Tensor, held: Found, held_labels: Tensor) -> Any:
    """laplace-torch's Kronecker posterior of the class head alone, on what it is given.

    Args:
        network: The detector.
        train, held: Detections of training and of validation pictures.
        labels, held_labels: What they have found; the last class: nothing.
    """
    head, linear = network.class_labels_classifier, nn.Linear(train.hidden.shape[1], train.logits.shape[1])
    for own, given in ((linear.weight, head.weight), (linear.bias, head.bias)):
        own.data.zero_()[: len(given)] = given.data
    pairs = (train.hidden, labels), (held.hidden, held_labels)
    return LaplaceClassifier.fit(nn.Sequential(nn.Identity(), linear).eval(), *pairs, last_layer=True)
