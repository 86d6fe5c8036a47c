"""Other error bars of a detector: dropout, an ensemble, Laplace, and densities of features."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from trustgp.detection.adapter import Detection, Detector, kept, probabilities, with_background
from trustgp.metrics import class_nll
from trustgp.metrics.boxes import corners, overlaps

from ...peers import LaplaceClassifier
from ...peers.novelty import Formula, Gaussians, Seen, nearest_neighbours
from ...peers.tuning import likeliest_temperature
from .worlds import PictureSet

PASSES = 20
RATES = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4)  # of dropout; the detectors were trained with 0.1
DROPPED = ("dropout", "activation_dropout", "attention_dropout")  # names of rates in a decoder
BATCH = 25  # pictures at a time
NEIGHBOURS = 5  # the nearest of the training detections that counts
MIN_CHANCE = 1e-30  # of a class
SAME = 0.5  # overlap from which a member has detected the same object


@dataclass(frozen=True)
class Detected:
    """Detections of one detector in a set of pictures, which all methods share."""

    pictures: PictureSet
    image: Tensor  # index of the picture of each detection, [m]
    boxes: Tensor  # in pixels, [m, 4]
    logits: Tensor  # of the classes and, in the last column, of no object, [m, C + 1]
    hidden: Tensor  # inputs of the class head, [m, d]
    seen: Tensor  # features of trustgp, [m, d]
    passes: tuple[Tensor, Tensor]  # probabilities and boxes with dropout, [P, m, C + 1] and [P, m, 4]
    members: tuple[Tensor, Tensor]  # those of each member of an ensemble, the detector itself first


@contextmanager
def dropping(decoder: nn.Module, rate: float | None) -> Iterator[None]:
    """Set the dropout rate of a decoder inside the block; None keeps its own."""
    places = [(part, name) for part in decoder.modules() for name in DROPPED if _rate(part, name)]
    before = [getattr(*place) for place in places]
    for part, name in places if rate is not None else ():
        setattr(part, name, rate)
    try:
        yield
    finally:
        for (part, name), value in zip(places, before, strict=True):
            setattr(part, name, value)


def _rate(part: nn.Module, name: str) -> bool:
    return isinstance(getattr(part, name, None), float)


def tuned_rate(
    network: Any, validation: PictureSet, settings: Detection, labels: Tensor, passes: int
) -> float:
    """Dropout rate with the lowest NLL of validation detections of these classes, each rate with its own
    temperature."""

    def loss(rate: float) -> float:
        chances = find(network, [], validation, settings, passes=passes, rate=rate).passes[0]
        cooled = tempered(chances, member_temperature(chances, labels)).mean(dim=0)
        return float(class_nll(cooled, labels).mean())

    return min(RATES, key=loss)


def member_temperature(chances: Tensor, labels: Tensor) -> float:
    """Temperature of all members or passes, for probabilities [S, m, C + 1] before they are averaged."""
    return likeliest_temperature(_logits(chances), labels)


def tempered(chances: Tensor, temperature: float) -> Tensor:
    """Probabilities [S, m, C + 1] at another temperature."""
    return (_logits(chances) / temperature).softmax(dim=-1)


def _logits(chances: Tensor) -> Tensor:
    return chances.double().clamp_min(MIN_CHANCE).log()


def find(
    network: Any,
    others: Sequence[Any],
    pictures: PictureSet,
    settings: Detection,
    *,
    passes: int = PASSES,
    rate: float | None = None,
) -> Detected:
    """Detections with all that peers need; `others` are further members of the ensemble, `rate` is the
    dropout rate, None: that of the training."""
    parts = []
    decoder = network.model.decoder
    with torch.random.fork_rng(), torch.no_grad(), dropping(decoder, rate):
        torch.manual_seed(0)  # of the masks
        for start in range(0, len(pictures), BATCH):
            images = pictures.images[start : start + BATCH].to(network.device)
            image, *rest = _batch(network, others, images, settings, passes)
            parts.append((image + start, *rest))
    # detections are the first dimension, and the second of several passes or members
    joined = [torch.cat(part, dim=part[0].ndim // 3) for part in zip(*parts, strict=True)]
    image, boxes, logits, hidden, seen, *several = joined
    passed, members = (several[0], several[1]), (several[2], several[3])
    return Detected(pictures, image, boxes, logits, hidden, seen, passed, members)


def _batch(
    network: Any, others: Sequence[Any], images: Tensor, settings: Detection, passes: int
) -> tuple[Tensor, ...]:
    """Fields of `Detected` for a batch, from `image` on, with `passes` and `members` as two tensors each."""
    labels = network.config.num_labels
    size = images.new_tensor([images.shape[3], images.shape[2]] * 2)
    watched = Decoder(network)
    detected = watched(images)
    image, query = kept(probabilities(detected.logits, labels), detected.pred_boxes, settings)
    boxes = (corners(detected.pred_boxes) * size)[image, query]
    logits = with_background(detected.logits, labels)[image, query]
    seen = Detector(network, settings.adapter)(images).features[image, query]
    again = watched.again(image, query, size, passes)
    members = [(logits.softmax(dim=1).cpu(), boxes.cpu())]
    for output in (other(images) for other in others):
        chances = with_background(output.logits, labels).softmax(dim=2)
        places = (corners(output.pred_boxes) * size).cpu()
        members.append(_matched(chances.cpu(), places, image.cpu(), boxes.cpu()))
    several = (torch.stack(side) for side in zip(*members, strict=True))
    own = image, boxes, logits, detected.last_hidden_state[image, query], seen, *again
    return *(part.cpu() for part in own), *several


class Decoder:
    """Detector of the DETR family whose decoder can run again with dropout; layers before it have none."""

    def __init__(self, network: Any) -> None:
        self.network, self.given = network, ((), {})

    def __call__(self, images: Tensor) -> Any:
        """Output of the detector; the inputs of its decoder are stored for `again`."""

        def entered(module: nn.Module, arguments: tuple, named: dict[str, Any]) -> None:
            self.given = (arguments, named)

        hook = self.network.model.decoder.register_forward_pre_hook(entered, with_kwargs=True)
        try:
            detected = self.network(images)
        finally:
            hook.remove()
        # added to the outputs of the box head: reference points, where there are any
        head = self.network.bbox_predictor(detected.last_hidden_state)
        self.offset = torch.special.logit(detected.pred_boxes.double()) - head.double()
        return detected

    def again(self, image: Tensor, query: Tensor, size: Tensor, passes: int) -> tuple[Tensor, Tensor]:
        """Probabilities [P, m, C + 1] and boxes [P, m, 4] of passes with dropout, all in one batch on the
        stored output of the encoder; image and query select the detections [m]."""
        place = (slice(None), image, query)
        positional = [_repeated(value, passes) for value in self.given[0]]
        named = {name: _repeated(value, passes) for name, value in self.given[1].items()}
        decoder = self.network.model.decoder.train()  # drops units
        try:
            hidden = decoder(*positional, **named).last_hidden_state
        finally:
            decoder.eval()
        hidden = hidden.reshape(passes, -1, *hidden.shape[1:])[place]
        logits = with_background(self.network.class_labels_classifier(hidden), self.network.config.num_labels)
        boxes = (self.network.bbox_predictor(hidden) + self.offset[image, query]).sigmoid()
        return logits.softmax(dim=-1), corners(boxes).to(size) * size


def _repeated(value: Any, times: int) -> Any:
    """Tensor repeated this many times along the batch; other values are unchanged."""
    return value.repeat(times, *[1] * (value.ndim - 1)) if isinstance(value, Tensor) else value


def _matched(chances: Tensor, boxes: Tensor, image: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities and box of another member for each detection: its surest query there, else no object."""
    probabilities = torch.zeros(len(image), chances.shape[2])
    probabilities[:, -1] = 1.0
    places = own.clone()
    for row, (i, box) in enumerate(zip(image.tolist(), own, strict=True)):
        same = (overlaps(box[None], boxes[i])[0] >= SAME).nonzero().flatten()
        if len(same):
            best = same[chances[i, same, -1].argmin()]
            probabilities[row], places[row] = chances[i, best], boxes[i, best]
    return probabilities, places


@dataclass(frozen=True)
class FeatureScores:
    """Novelty of detections by their features: Mahalanobis' distance to the nearest class, all classes
    with one covariance (Lee et al. 2018); the angle to the fifth nearest of the training detections (Sun et
    al. 2022); the density under a Gaussian of each class (DDU, Mukhoti et al. 2023)."""

    common: Gaussians  # with one covariance
    classes: Gaussians
    nearest: Formula
    usual: tuple[float, float]  # mean and deviation of minus the log density of the training detections

    @classmethod
    def fit(
        cls, features: Tensor, labels: Tensor, classes: int, held_out: Tensor, held_labels: Tensor
    ) -> Self:
        """Fit to detections of an object; detections in validation pictures choose the ridges. Labels are its
        class, or C for none."""
        rows, kinds = features[labels < classes].double(), labels[labels < classes]
        held = held_out[held_labels < classes].double(), held_labels[held_labels < classes]
        common, own = (Gaussians.fit(rows, kinds, held, shared=one) for one in (True, False))
        density = -own.log_density(rows)
        usual = float(density.mean()), float(density.std())
        return cls(common, own, nearest_neighbours(rows, k=NEIGHBOURS), usual)

    def __call__(self, features: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Scores by name, each with the quantity of which the std of edges may be a power, [m] each."""
        seen = Seen(features.double(), features[:, :0])
        distance = self.common.distances(features).amin(dim=1)
        nearest, density = self.nearest(seen), -self.classes.log_density(features)
        mean, std = self.usual
        return {
            "Mahalanobis": (distance, distance),
            "nearest neighbours": (nearest, nearest),
            "DDU": (density, ((density - mean) / std).clamp(-30, 30).exp()),
        }


def last_layer_laplace(
    network: Any, train: Detected, labels: Tensor, held: Detected, held_labels: Tensor
) -> Any:
    """Posterior of the class head on its inputs, by laplace-torch; labels: the class detected, or none."""
    head, linear = network.class_labels_classifier, nn.Linear(train.hidden.shape[1], train.logits.shape[1])
    for own, given in ((linear.weight, head.weight), (linear.bias, head.bias)):
        own.data.zero_()[: len(given)] = given.data.cpu()
    pairs = (train.hidden, labels), (held.hidden, held_labels)
    return LaplaceClassifier.fit(nn.Sequential(nn.Identity(), linear).eval(), *pairs, last_layer=True)
