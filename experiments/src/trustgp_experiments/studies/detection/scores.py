"""Scores of every method on the detections of one detector, with draws over pictures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor
from torch.distributions import StudentT

from trustgp.detection import DetectionModel
from trustgp.detection.class_gaussians import EdgeErrors, EdgeNoise
from trustgp.metrics import class_nll, entropy
from trustgp.metrics.boxes import nearest, overlaps

from .bootstrap import auroc_draws, caught_draws, listed, mean_draws, resampled
from .peers import Detected, FeatureScores, tempered
from .worlds import FAMILIAR, UNTRAINED

OVERLAP = 0.5  # from which a detection has detected an object
NEAR = 0.3  # from which it lies on one
CONFIDENT = 0.9  # probability from which a mistake is a confident one
BINS = 10  # of the detection calibration error
LEVELS = (0.5, 0.8, 0.95)
ALARMS = (0.01, 0.05)  # shares of familiar detections above a threshold
OURS = "trustgp"
LATENT = "latent variance"
BARS = 30  # of a histogram
SEEN = "on what was seen"  # ends the names of peers on the features of trustgp


@dataclass(frozen=True)
class Answer:
    """Uncertainty of a method about detections; the entropy is a score of all methods with probabilities."""

    probabilities: Tensor  # of the classes and, in the last column, of no object, [m, C + 1]
    unknown: Tensor  # quantity of which the std of edges is a power, [m] or [m, 4]
    boxes: Tensor  # its own, in pixels, [m, 4]
    edges: tuple[Tensor, float] | None = None  # a method's own scale [m, 4] and degrees of freedom
    pictures: Tensor | None = None  # novelty of each picture; None: that of its most novel detection
    novelty: dict[str, Tensor] = field(default_factory=dict)  # by the name of the score, [m] each
    has_classes: bool = True  # False: the probabilities are the detector's

    @property
    def scores(self) -> dict[str, Tensor]:
        return ({"entropy": entropy(self.probabilities)} if self.has_classes else {}) | self.novelty


@dataclass(frozen=True)
class Methods:
    """Fitted methods; None: not available."""

    temperature: float
    passes: float = 1.0  # the temperature of passes with dropout
    members: float = 1.0  # the temperature of the members of an ensemble
    laplace: Any = None
    model: DetectionModel | None = None
    features: FeatureScores | None = None  # of the inputs of the class head
    seen: FeatureScores | None = None  # of the features of trustgp


def all_answers(detected: Detected, methods: Methods) -> dict[str, Answer]:
    """Answers of all methods, by name."""
    boxes, logits = detected.boxes, detected.logits
    plain, cooled = logits.softmax(dim=1), (logits / methods.temperature).softmax(dim=1)
    energy = -logits.double().logsumexp(dim=1)
    detector = {"boxes": boxes, "has_classes": False}
    answers = {
        "softmax": Answer(plain, torch.ones(len(plain)), boxes),
        "temperature scaling": Answer(cooled, entropy(cooled), boxes),
        "energy": Answer(plain, energy.clamp(-30, 30).exp(), novelty={LATENT: energy}, **detector),
        "MC-dropout 20": _several(*detected.passes, methods.passes),
    }
    if len(detected.members[0]) > 1:
        answers[f"ensemble of {len(detected.members[0])}"] = _several(*detected.members, methods.members)
    if methods.laplace is not None:
        laplace = methods.laplace.predict(detected.hidden)
        novelty = {LATENT: laplace.score}
        answers["Laplace last layer"] = Answer(laplace.probabilities, laplace.score, boxes, novelty=novelty)
    seen = methods.seen, detected.seen, f" {SEEN}"
    for peers, rows, end in ((methods.features, detected.hidden, ""), seen):
        for name, (score, unknown) in ({} if peers is None else peers(rows)).items():
            answers[name + end] = Answer(plain, unknown, novelty={LATENT: score}, **detector)
    if methods.model is not None:
        answers[OURS] = _ours(methods.model, detected)
    return answers


def _ours(model: DetectionModel, detected: Detected) -> Answer:
    predictions = model.predict(detected.pictures.images)
    names = ("probabilities", "novelty", "boxes", "std")
    chances, novelty, boxes, std = (torch.cat([getattr(p, n) for p in predictions]).cpu() for n in names)
    if not torch.allclose(boxes, detected.boxes, rtol=1e-3, atol=1e-2):
        raise RuntimeError("The detector's boxes have changed, so that methods cannot be compared.")
    df, pictures = predictions[0].df, torch.tensor([one.picture_novelty for one in predictions])
    edges = std.double() * ((df - 2.0) / df) ** 0.5, df
    return Answer(chances, novelty, boxes, edges, pictures, {LATENT: novelty})


def _several(chances: Tensor, boxes: Tensor, temperature: float = 1.0) -> Answer:
    chances = tempered(chances, temperature)
    mean = chances.mean(dim=0)
    information = entropy(mean) - entropy(chances.flatten(0, 1)).reshape(chances.shape[:2]).mean(dim=0)
    spread = (chances.clamp_min(1e-9).log() - chances[..., -1:].clamp_min(1e-9).log()).var(dim=0).mean(dim=1)
    novelty = {LATENT: spread, "mutual information": information}
    return Answer(mean, boxes.var(dim=0, correction=0), boxes.mean(dim=0), novelty=novelty)


def hits(detected: Detected) -> tuple[Tensor, Tensor]:
    """Index [m] of each detection's object in its picture, -1 for none, and its true class [m], C for none.

    An object is detected once, by the surest detection that overlaps it enough.
    """
    pictures, target = detected.pictures, torch.full((len(detected.image),), -1)
    label = torch.full((len(detected.image),), detected.logits.shape[1] - 1)
    free = [torch.ones(len(things.labels), dtype=torch.bool) for things in pictures.things]
    for row, i in enumerate(detected.image.tolist()):  # the surest of a picture first
        if not pictures.known or not bool(free[i].any()):
            continue
        true = pictures.things[i]
        shared = torch.where(free[i], overlaps(detected.boxes[row][None], true.boxes)[0], -1.0)
        best = int(shared.argmax())
        if float(shared[best]) >= OVERLAP and int(true.labels[best]) < pictures.known:
            target[row], label[row], free[i][best] = best, true.labels[best], False
    return target, label


def on_novel(detected: Detected) -> Tensor:
    """Mask [m] of detections that overlap an object of an unknown class by `NEAR`, and no other more."""
    mask = torch.zeros(len(detected.image), dtype=torch.bool)
    for i, things in enumerate(detected.pictures.things):
        here = detected.image == i
        if len(things.labels):
            shared, which = nearest(detected.boxes[here], things.boxes)
            mask[here] = (shared >= NEAR) & (things.labels[which] >= detected.pictures.known)
    return mask


def separation(
    answers: Mapping[str, Mapping[str, Answer]], detected: Mapping[str, Detected], *, seed: int = 0
) -> dict[str, Any]:
    """Draws of AUROC, of the share caught at few alarms and more, by method, test set and score."""
    counts = {name: resampled(len(one.pictures), seed=seed) for name, one in detected.items()}
    tests: dict[str, Any] = {}
    for method, familiar in answers[FAMILIAR].items():
        for test in (name for name in answers if name != FAMILIAR):
            every = torch.ones(len(detected[test].image), dtype=torch.bool)
            mask = on_novel(detected[test]) if test in UNTRAINED else every
            sure = mask & (detected[test].logits.softmax(dim=1)[:, :-1].amax(dim=1) >= CONFIDENT)
            near, far = (counts[name][:, detected[name].image] for name in (FAMILIAR, test))
            for score, here in familiar.scores.items():
                there = answers[test][method].scores[score]
                sides = here, near, there[mask], far[:, mask]
                pictures = []
                for name in (FAMILIAR, test):  # a picture's own novelty, or that of its detections
                    answer, own = answers[name][method], score == LATENT
                    largest = largest_by_picture(answer.scores[score], detected[name])
                    pictures.append(answer.pictures if own and answer.pictures is not None else largest)
                whole = pictures[0], counts[FAMILIAR], pictures[1], counts[test]
                tests.setdefault(method, {}).setdefault(test, {})[score] = {
                    "auroc": listed(auroc_draws(*sides)),
                    **{f"caught {a}": listed(caught_draws(*sides, alarms=a)) for a in ALARMS},
                    "fpr95": listed(1.0 - caught_draws(*sides, alarms=0.05)),
                    "confident": listed(caught_draws(here, near, there[sure], far[:, sure], alarms=0.05)),
                    "pictures": listed(auroc_draws(*whole)),
                    "bars": _bars(here, there[mask]),
                    "rows": [len(here), int(mask.sum()), int(sure.sum())],
                }
    return tests


def largest_by_picture(scores: Tensor, detected: Detected) -> Tensor:
    """The largest score of each picture; -inf without a detection."""
    start = torch.full((len(detected.pictures),), -torch.inf, dtype=torch.float64)
    return start.scatter_reduce(0, detected.image, scores.double(), "amax")


def _bars(here: Tensor, there: Tensor) -> dict[str, list[float]]:
    """Histograms of both sets of scores, with bars of equal width; scores beyond an end count in its bar."""
    top = float(torch.cat([here, there]).quantile(0.995).clamp_min(1e-9))
    edges = torch.linspace(0, top, BARS + 1, dtype=torch.float64)

    def shares(values: Tensor) -> list[float]:
        place = torch.bucketize(values.cpu().double(), edges[1:-1])
        return (torch.bincount(place, minlength=BARS).double() / max(1, len(values))).tolist()

    return {"edges": edges.tolist(), "in": shares(here), "out": shares(there)}


@dataclass(frozen=True)
class Judged:
    """Detections, and the answers of all methods."""

    detected: Detected
    answers: Mapping[str, Answer]


def edge_noises(validation: Judged, changed: Judged) -> dict[str, EdgeNoise]:
    """Noise of edges, fitted to validation pictures and their photometric variants, for all methods that have
    none of their own."""
    parts = [(judged, hits(judged.detected)[0]) for judged in (validation, changed)]

    def errors(method: str, judged: Judged, target: Tensor) -> EdgeErrors:
        answer = judged.answers[method]
        unknown = answer.unknown[target >= 0]
        own = _errors(answer.boxes, target, judged.detected)
        return own, unknown, torch.ones(len(unknown)), torch.zeros(len(unknown), 4)

    names = [method for method, answer in validation.answers.items() if answer.edges is None]
    return {method: EdgeNoise.fit(*(errors(method, *part) for part in parts)) for method in names}


def calibration(test: Judged, noises: Mapping[str, EdgeNoise], *, seed: int = 0) -> dict[str, Any]:
    """Draws of the scores of probabilities and edges of a labelled test set, by method."""
    detected = test.detected
    target, label = hits(detected)
    weights, hit = resampled(len(detected.pictures), seed=seed)[:, detected.image], target >= 0
    chosen = detected.logits[:, :-1].argmax(dim=1)
    scores = {}
    for method, answer in test.answers.items():
        confidence = answer.probabilities.gather(1, chosen[:, None])[:, 0]
        error, unknown = _errors(answer.boxes, target, detected), answer.unknown[hit]
        if answer.edges is not None:
            scale, df = answer.edges[0][hit], answer.edges[1]
        else:
            given = unknown, torch.ones(len(unknown)), torch.zeros(len(unknown), 4)
            scale, df = noises[method].scale(*given), float(noises[method].df)
        loss = -StudentT(df, 0.0, scale).log_prob(error).mean(dim=1)
        reach = stdtrit(df, 0.5 + np.array(LEVELS) / 2)
        within = [(error.abs() <= one * scale).double() for one in reach]
        of_hits = {
            "box_nll": loss,
            **{f"within {level}": one.mean(dim=1) for level, one in zip(LEVELS, within, strict=True)},
            "all four": within[-1].amin(dim=1),
            "std": (scale * (df / (df - 2)) ** 0.5).mean(dim=1),
        }
        scores[method] = {
            "class_nll": listed(mean_draws(class_nll(answer.probabilities, label), weights)),
            "dece": listed(calibration_error(confidence, (chosen == label).double(), weights)),
            **{key: listed(mean_draws(values, weights[:, hit])) for key, values in of_hits.items()},
            "rms": listed(mean_draws(error.square().mean(dim=1), weights[:, hit]).sqrt()),
            "rows": [len(target), int(hit.sum())],
        }
    return scores


def _errors(boxes: Tensor, target: Tensor, detected: Detected) -> Tensor:
    """Errors [k, 4] of the edges of detections that match an object, in pixels, float64."""
    rows, things = (target >= 0).nonzero().flatten().tolist(), detected.pictures.things
    true = torch.stack([things[int(detected.image[r])].boxes[int(target[r])] for r in rows])
    return (boxes[target >= 0] - true).double()


def calibration_error(confidence: Tensor, correct: Tensor, weights: Tensor) -> Tensor:
    """The detection calibration error, [D]: |share of correct ones - confidence|, over bins of equal width;
    weights of the detections are [D, m]."""
    place = (confidence.double() * BINS).long().clamp(0, BINS - 1)
    inside = torch.nn.functional.one_hot(place, BINS).double()
    gaps = (weights * (confidence.double() - correct)) @ inside
    return gaps.abs().sum(dim=1) / weights.sum(dim=1)
