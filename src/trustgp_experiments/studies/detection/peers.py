"""Pictures of the detection study, and other error bars of a detector: dropout, an ensemble, Laplace."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from trustgp.detection import Things
from trustgp.detection.query_rows import Detection, kept, probabilities, with_background
from trustgp.metrics.boxes import corners, overlaps

from ...datasets.scenes import CLASSES, load_photographs, scenes
from ...peers import LaplaceClassifier
from ...training.detector_network import pixels

FAMILIAR = "familiar"
NOVEL = "novel things"
LOOKED_AT = "novel things that choices were made with"
SEEDS = {"validation": 10, "test": 20}  # of scenes: the first of each; the detectors were trained on seed 0


@dataclass(frozen=True)
class PictureSet:
    """Images as the detector takes them, and what is in them; `known` says which things it was trained on."""

    images: Tensor
    things: list[Things]
    known: int

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class World:
    """What one detector is studied on."""

    detector: tuple[str, ...]  # names of the weights: its own, and of the other members of an ensemble
    classes: tuple[str, ...]  # names of what it finds
    fit: PictureSet  # it was trained on these
    validation: PictureSet
    tests: dict[str, PictureSet]  # `FAMILIAR` is what the others are told apart from


def make_scenes(*, seed: int, many: int, some: int) -> World:
    """Rendered: many in carry style to fit on, and some in carry, flight and novel styles to test."""

    def drawn(n: int, style: str, **options: int) -> PictureSet:
        return _labelled(scenes(n, style, **options), len(CLASSES))

    styles = {FAMILIAR: "carry", "flight": "flight", NOVEL: "unknown", LOOKED_AT: "novel"}
    return World(
        detector=("scenes", "scenes-1", "scenes-2"),
        classes=CLASSES,
        fit=drawn(many, "carry", seed=0, first=seed * many),
        validation=drawn(some, "carry", seed=SEEDS["validation"] + seed),
        tests={name: drawn(some, style, seed=SEEDS["test"] + seed) for name, style in styles.items()},
    )


def make_cells(*, quick: bool) -> World:
    """BCCD's own split, and all raccoons."""

    most = 24 if quick else None
    parts = [load_photographs("bccd", part) for part in ("train", "val", "test")]
    fit, held, test = (_labelled(part, len(part.kinds), most) for part in parts)
    raccoons = _labelled(load_photographs("raccoon", "all"), 0, most)
    return World(("cells",), parts[0].kinds, fit, held, {FAMILIAR: test, "raccoons": raccoons})


def _labelled(found: Any, known: int, most: int | None = None) -> PictureSet:
    """Of `Scenes` or `Photographs`; so many of their kinds are known."""
    things = list(map(Things, found.boxes[:most], found.labels[:most]))
    return PictureSet(pixels(found.images[:most]), things, known)


def counted(pictures: PictureSet, names: Sequence[str]) -> dict[str, int]:
    """How many pictures and things of each kind."""
    labels = [int(k) for one in pictures.things for k in one.labels]
    kinds = {name: labels.count(i) for i, name in enumerate(names)} if pictures.known else {}
    return {"pictures": len(pictures), "things": len(labels), **kinds}


PASSES = 20
BATCH = 25  # pictures at a time
SAME = 0.5  # overlap from which a member has found the same thing


@dataclass(frozen=True)
class Found:
    """Detections of some pictures, all methods' the same ones: those of the one detector."""

    pictures: PictureSet
    image: Tensor  # of each, [m]
    boxes: Tensor  # in pixels, [m, 4]
    logits: Tensor  # of the classes and, last, of no object, [m, C + 1]
    hidden: Tensor  # what the head was given, [m, d]
    passes: tuple[Tensor, Tensor]  # probabilities and boxes with dropout, [P, m, C + 1] and [P, m, 4]
    members: tuple[Tensor, Tensor]  # the same of each member of an ensemble, the detector itself first


def find(
    network: Any, others: Sequence[Any], pictures: PictureSet, settings: Detection, *, passes: int = PASSES
) -> Found:
    """All that peers need, in one sweep; `others` are further members of the ensemble."""
    parts = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)  # of the masks
        for start in range(0, len(pictures), BATCH):
            images = pictures.images[start : start + BATCH]
            image, *rest = _batch(network, others, images, settings, passes)
            parts.append((image + start, *rest))
    # detections are the first dimension, and the second of what several passes or members say
    joined = [torch.cat(part, dim=part[0].ndim // 3) for part in zip(*parts, strict=True)]
    image, boxes, logits, hidden, *several = joined
    return Found(pictures, image, boxes, logits, hidden, (several[0], several[1]), (several[2], several[3]))


def _batch(
    network: Any, others: Sequence[Any], images: Tensor, settings: Detection, passes: int
) -> tuple[Tensor, ...]:
    """Image, boxes, logits and hidden, probabilities and boxes of passes, and of members: see `Found`."""
    labels = network.config.num_labels
    size = torch.tensor([images.shape[3], images.shape[2]] * 2, dtype=images.dtype)
    watched = Decoder(network)
    found = watched(images)
    image, query = kept(probabilities(found.logits, labels), found.pred_boxes, settings)
    boxes = (corners(found.pred_boxes) * size)[image, query]
    logits = with_background(found.logits, labels)[image, query]
    members = [(logits.softmax(dim=1), boxes)]
    for said in (other(images) for other in others):
        chances = with_background(said.logits, labels).softmax(dim=2)
        members.append(_same(chances, corners(said.pred_boxes) * size, image, boxes))
    again = [watched.again(image, query, size) for _ in range(passes)]
    several = (torch.stack(side) for pairs in (again, members) for side in zip(*pairs, strict=True))
    return image, boxes, logits, found.last_hidden_state[image, query], *several


@contextmanager
def dropping_decoder(network: Any) -> Iterator[Any]:
    """The decoder, which drops units inside."""
    try:
        yield network.model.decoder.train()
    finally:
        network.model.decoder.eval()


class Decoder:
    """A detector of the DETR family whose decoder can run again with dropout: what comes before has none."""

    def __init__(self, network: Any) -> None:
        self.network, self.given = network, ((), {})

    def __call__(self, images: Tensor) -> Any:
        """The detector's own answer; remembers what went into the decoder."""

        def entered(module: nn.Module, arguments: tuple, named: dict[str, Any]) -> None:
            self.given = (arguments, named)

        hook = self.network.model.decoder.register_forward_pre_hook(entered, with_kwargs=True)
        try:
            found = self.network(images)
        finally:
            hook.remove()
        # what is added to the box head's numbers: reference points, where there are any
        head = self.network.bbox_predictor(found.last_hidden_state)
        self.offset = torch.special.logit(found.pred_boxes.double()) - head.double()
        return found

    def again(self, image: Tensor, query: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities [m, C + 1] and boxes [m, 4] of a pass with dropout; image, query: detections [m]."""
        with dropping_decoder(self.network) as decoder:
            hidden = decoder(*self.given[0], **self.given[1]).last_hidden_state[image, query]
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


@dataclass(frozen=True)
class FeatureScores:
    """How foreign detections are by what the head is given: to a Gaussian of each class with one covariance
    (Mahalanobis), to the fifth nearest of the training detections (by angle), and by the logits (energy)."""

    means: Tensor  # of the classes, [C, d]
    inverse: Tensor  # of their common covariance, [d, d]
    rows: Tensor  # of length 1, [m, d]

    @classmethod
    def fit(cls, train: Found, labels: Tensor) -> Self:
        """From detections that have found a thing; labels: its class, or C."""
        classes = train.logits.shape[1] - 1
        hidden, kinds = train.hidden[labels < classes].double(), labels[labels < classes]
        means = torch.stack([hidden[kinds == c].mean(dim=0) for c in range(classes)])
        apart = hidden - means[kinds]
        spread = apart.T @ apart / len(apart)
        spread += 1e-3 * spread.diagonal().mean() * torch.eye(len(spread)).to(spread)
        return cls(means, torch.linalg.inv(spread), nn.functional.normalize(hidden, dim=1))

    def __call__(self, found: Found) -> dict[str, Tensor]:
        """By name, [m] each."""
        hidden = found.hidden.double()
        away = hidden[:, None] - self.means
        nearest = 1.0 - (nn.functional.normalize(hidden, dim=1) @ self.rows.T).topk(5, dim=1).values[:, -1]
        return {
            "Mahalanobis": ((away @ self.inverse) * away).sum(dim=2).amin(dim=1),
            "nearest neighbours": nearest,
            "energy": -found.logits.double().logsumexp(dim=1),
        }


def last_layer_laplace(network: Any, train: Found, labels: Tensor, held: Found, held_labels: Tensor) -> Any:
    """laplace-torch's posterior of the class head, on what it is given; labels: what was found, or none."""
    head, linear = network.class_labels_classifier, nn.Linear(train.hidden.shape[1], train.logits.shape[1])
    for own, given in ((linear.weight, head.weight), (linear.bias, head.bias)):
        own.data.zero_()[: len(given)] = given.data
    pairs = (train.hidden, labels), (held.hidden, held_labels)
    return LaplaceClassifier.fit(nn.Sequential(nn.Identity(), linear).eval(), *pairs, last_layer=True)
