"""One detector, every method: what is told apart, and how right it is, with draws over pictures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor
from torch.distributions import StudentT

from trustgp.detection import DetectionModel
from trustgp.detection.calibration import EdgeErrors, EdgeNoise
from trustgp.metrics import class_nll, entropy
from trustgp.metrics.boxes import nearest, overlaps

from .bootstrap import auroc_draws, caught_draws, listed, mean_draws, resampled
from .peers import FeatureScores, Found
from .worlds import FAMILIAR, LOOKED_AT, NOVEL

OVERLAP = 0.5  # from which a detection has found a thing
NEAR = 0.3  # from which it lies on one
CONFIDENT = 0.9  # probability from which a mistake is a confident one
BINS = 10  # of the detection calibration error
LEVELS = (0.5, 0.8, 0.95)
ALARMS = (0.01, 0.05)  # shares of familiar detections above a threshold
OURS = "trustgp"
LATENT = "latent variance"
BARS = 30  # of a histogram
SEEN = "on what was seen"


@dataclass(frozen=True)
class Told:
    """What a method says of detections; the entropy is a score of all that say something of classes."""

    probabilities: Tensor  # of the classes and, last, of no object, [m, C + 1]
    unknown: Tensor  # what the deviation of edges is made of, [m] or [m, 4]
    boxes: Tensor  # its own, in pixels, [m, 4]
    edges: tuple[Tensor, float] | None = (
        None  # scale [m, 4] and degrees of freedom, where it says them itself
    )
    pictures: Tensor | None = None  # how foreign each picture is; None: as its most foreign detection
    own_scores: dict[str, Tensor] = field(default_factory=dict)  # how foreign they are, [m] each
    silent: bool = False  # whether it says nothing of classes: the probabilities are the detector's

    @property
    def scores(self) -> dict[str, Tensor]:
        """All scores."""
        return ({} if self.silent else {"entropy": entropy(self.probabilities)}) | self.own_scores


@dataclass(frozen=True)
class Methods:
    """All that was fitted; what is None is not there."""

    temperature: float
    laplace: Any = None
    model: DetectionModel | None = None
    features: FeatureScores | None = None  # of what the head is given
    seen: FeatureScores | None = None  # of what trustgp looks at


def told_by_all(found: Found, methods: Methods) -> dict[str, Told]:
    """Every method's answer about the detections, by name."""
    boxes, logits = found.boxes, found.logits
    plain, cooled = logits.softmax(dim=1), (logits / methods.temperature).softmax(dim=1)
    energy = -logits.double().logsumexp(dim=1)
    answers = {
        "softmax": Told(plain, torch.ones(len(plain)), boxes),
        "temperature scaling": Told(cooled, entropy(cooled), boxes),
        "energy": Told(plain, energy.clamp(-30, 30).exp(), boxes, own_scores={LATENT: energy}, silent=True),
        "MC-dropout 20": _several(*found.passes),
    }
    if len(found.members[0]) > 1:
        answers[f"ensemble of {len(found.members[0])}"] = _several(*found.members)
    if methods.laplace is not None:
        said = methods.laplace.predict(found.hidden)
        answers["Laplace last layer"] = Told(
            said.probabilities, said.score, boxes, own_scores={LATENT: said.score}
        )
    for scores, given, where in (
        (methods.features, found.hidden, ""),
        (methods.seen, found.seen, f" {SEEN}"),
    ):
        for name, (score, unknown) in ({} if scores is None else scores(given)).items():
            answers[name + where] = Told(plain, unknown, boxes, own_scores={LATENT: score}, silent=True)
    if methods.model is not None:
        answers[OURS] = _ours(methods.model, found)
    return answers


def _ours(model: DetectionModel, found: Found) -> Told:
    """As it comes."""
    lots = model.predict(found.pictures.images)
    names = ("probabilities", "novelty", "boxes", "std")
    chances, novelty, boxes, std = (torch.cat([getattr(one, n) for one in lots]).cpu() for n in names)
    if not torch.allclose(boxes, found.boxes, rtol=1e-3, atol=1e-2):
        raise RuntimeError("the detector's boxes have changed; rows cannot be compared.")
    df, whole = lots[0].df, torch.tensor([one.picture_novelty for one in lots])
    edges = std.double() * ((df - 2.0) / df) ** 0.5, df
    return Told(chances, novelty, boxes, edges, whole, {LATENT: novelty})


def _several(chances: Tensor, boxes: Tensor) -> Told:
    """Of passes or members, [P, m, ...] each."""
    mean = chances.mean(dim=0)
    information = entropy(mean) - entropy(chances.flatten(0, 1)).reshape(chances.shape[:2]).mean(dim=0)
    spread = (chances.clamp_min(1e-9).log() - chances[..., -1:].clamp_min(1e-9).log()).var(dim=0).mean(dim=1)
    scores = {LATENT: spread, "mutual information": information}
    return Told(mean, boxes.var(dim=0, correction=0), boxes.mean(dim=0), own_scores=scores)


def hits(found: Found) -> tuple[Tensor, Tensor]:
    """What each detection has found, by index in its picture, -1: nothing, [m]; and the true class or C, [m].

    A thing is found once, by the surest detection that overlaps it enough.
    """
    pictures, thing = found.pictures, torch.full((len(found.image),), -1)
    label = torch.full((len(found.image),), found.logits.shape[1] - 1)
    free = [torch.ones(len(things.labels), dtype=torch.bool) for things in pictures.things]
    for row, i in enumerate(found.image.tolist()):  # the surest of a picture first
        if not pictures.known or not bool(free[i].any()):
            continue
        true = pictures.things[i]
        shared = torch.where(free[i], overlaps(found.boxes[row][None], true.boxes)[0], -1.0)
        best = int(shared.argmax())
        if float(shared[best]) >= OVERLAP and int(true.labels[best]) < pictures.known:
            thing[row], label[row], free[i][best] = best, true.labels[best], False
    return thing, label


def strange(found: Found) -> Tensor:
    """Which detections overlap a thing that is not known by `NEAR`, and more than any other, bool, [m]."""
    on_new = torch.zeros(len(found.image), dtype=torch.bool)
    for i, things in enumerate(found.pictures.things):
        mine = found.image == i
        if len(things.labels):
            shared, which = nearest(found.boxes[mine], things.boxes)
            on_new[mine] = (shared >= NEAR) & (things.labels[which] >= found.pictures.known)
    return on_new


def told_apart(
    answers: Mapping[str, Mapping[str, Told]], found: Mapping[str, Found], *, seed: int = 0
) -> dict[str, Any]:
    """Draws of AUROC, of what is caught at few alarms and more, by method, test set and score."""
    counts = {name: resampled(len(one.pictures), seed=seed) for name, one in found.items()}
    out: dict[str, Any] = {}
    for method, familiar in answers[FAMILIAR].items():
        for test in (name for name in answers if name != FAMILIAR):
            every = torch.ones(len(found[test].image), dtype=torch.bool)
            mask = strange(found[test]) if test in (NOVEL, LOOKED_AT) else every
            sure = found[test].logits.softmax(dim=1)[:, :-1].amax(dim=1) >= CONFIDENT
            weights = {name: counts[name][:, found[name].image] for name in (FAMILIAR, test)}
            pictures = _pictures(answers, found, method, test)
            for score, here in familiar.scores.items():
                there = answers[test][method].scores[score]
                sides = here, weights[FAMILIAR], there[mask], weights[test][:, mask]
                hard = here, weights[FAMILIAR], there[mask & sure], weights[test][:, mask & sure]
                whole = pictures[score]
                out.setdefault(method, {}).setdefault(test, {})[score] = {
                    "auroc": listed(auroc_draws(*sides)),
                    **{f"caught {a}": listed(caught_draws(*sides, alarms=a)) for a in ALARMS},
                    "fpr95": listed(1.0 - caught_draws(*sides, alarms=0.05)),
                    "confident": listed(caught_draws(*hard, alarms=0.05)),
                    "pictures": listed(auroc_draws(whole[0], counts[FAMILIAR], whole[1], counts[test])),
                    "bars": _bars(here, there[mask]),
                    "rows": [len(here), int(mask.sum()), int((mask & sure).sum())],
                }
    return out


def _pictures(
    answers: Mapping[str, Mapping[str, Told]], found: Mapping[str, Found], method: str, test: str
) -> dict[str, tuple[Tensor, Tensor]]:
    """How foreign familiar pictures and those of a test set are, by score."""
    told = [answers[name][method] for name in (FAMILIAR, test)]
    out = {}
    for score in told[0].scores:
        pair = [
            one.pictures
            if one.pictures is not None and score == LATENT
            else _worst(one.scores[score], found[name])
            for one, name in zip(told, (FAMILIAR, test), strict=True)
        ]
        out[score] = (pair[0], pair[1])
    return out


def _worst(scores: Tensor, found: Found) -> Tensor:
    """The largest of each picture; least of all where nothing is found."""
    start = torch.full((len(found.pictures),), -torch.inf, dtype=torch.float64)
    return start.scatter_reduce(0, found.image, scores.double(), "amax")


def shares_between(values: Tensor, edges: Tensor) -> list[float]:
    """Share of the values in each bar between edges; those beyond an end count in the last bar there."""
    place = torch.bucketize(values.cpu().double(), edges[1:-1])
    return (torch.bincount(place, minlength=len(edges) - 1).double() / max(1, len(values))).tolist()


def _bars(here: Tensor, there: Tensor) -> dict[str, list[float]]:
    """Shares of both in bars of equal width."""
    top = float(torch.cat([here, there]).quantile(0.995).clamp_min(1e-9))
    edges = torch.linspace(0, top, BARS + 1, dtype=torch.float64)
    sides = {"in": shares_between(here, edges), "out": shares_between(there, edges)}
    return {"edges": edges.tolist(), **sides}


@dataclass(frozen=True)
class Judged:
    """Detections, and what every method says of them."""

    found: Found
    told: Mapping[str, Told]


def edge_noises(held: Judged, changed: Judged) -> dict[str, EdgeNoise]:
    """By method: how far edges are off, of validation pictures and of the same in another light; of those
    that do not say it themselves."""
    known = [(judged, hits(judged.found)[0]) for judged in (held, changed)]

    def errors(method: str, judged: Judged, thing: Tensor) -> EdgeErrors:
        told = judged.told[method]
        unknown = told.unknown[thing >= 0]
        return EdgeErrors(_errors(told.boxes, thing, judged.found), unknown, torch.ones(len(unknown)))

    silent = [method for method, told in held.told.items() if told.edges is None]
    return {method: EdgeNoise.fit(*(errors(method, *one) for one in known)) for method in silent}


def right(test: Judged, noises: Mapping[str, EdgeNoise], *, seed: int = 0) -> dict[str, Any]:
    """Draws of how right probabilities and edges of a labelled test set are, by method."""
    found = test.found
    thing, label = hits(found)
    weights = resampled(len(found.pictures), seed=seed)[:, found.image]
    hit = thing >= 0
    out = {}
    for method, told in test.told.items():
        chosen = found.logits[:, :-1].argmax(dim=1)
        confidence = told.probabilities.gather(1, chosen[:, None])[:, 0]
        off, (scale, df) = _errors(told.boxes, thing, found), _edges(told, hit, noises.get(method))
        loss = -StudentT(df, 0.0, scale).log_prob(off).mean(dim=1)
        reach = stdtrit(df, 0.5 + np.array(LEVELS) / 2)
        within = [(off.abs() <= one * scale).double() for one in reach]
        out[method] = {
            "class_nll": listed(mean_draws(class_nll(told.probabilities, label), weights)),
            "dece": listed(_calibration(confidence, (chosen == label).double(), weights)),
            "box_nll": listed(mean_draws(loss, weights[:, hit])),
            **{
                f"within {level}": listed(mean_draws(inside.mean(dim=1), weights[:, hit]))
                for level, inside in zip(LEVELS, within, strict=True)
            },
            "all four": listed(mean_draws(within[-1].amin(dim=1), weights[:, hit])),
            "std": listed(mean_draws((scale * (df / (df - 2)) ** 0.5).mean(dim=1), weights[:, hit])),
            "rms": listed(mean_draws(off.square().mean(dim=1), weights[:, hit]).sqrt()),
            "rows": [len(thing), int(hit.sum())],
        }
    return out


def _edges(told: Told, rows: Tensor, noise: EdgeNoise | None) -> tuple[Tensor, float]:
    """Scale of the errors of some detections, [k, 4], and degrees of freedom."""
    if told.edges is not None:
        return told.edges[0][rows], told.edges[1]
    assert noise is not None
    unknown = told.unknown[rows]
    return noise.scale(unknown, torch.ones(len(unknown))), float(noise.df)


def _errors(boxes: Tensor, thing: Tensor, found: Found) -> Tensor:
    """Of detections that have found a thing, in pixels, float64, [k, 4]."""
    rows = (thing >= 0).nonzero().flatten().tolist()
    things = found.pictures.things
    true = torch.stack([things[int(found.image[r])].boxes[int(thing[r])] for r in rows])
    return (boxes[thing >= 0] - true).double()


def _calibration(confidence: Tensor, correct: Tensor, weights: Tensor) -> Tensor:
    """The detection calibration error, [D]: |share that is right - confidence|, over bins of equal width;
    weights of the detections are [D, m]."""
    place = (confidence.double() * BINS).long().clamp(0, BINS - 1)
    inside = torch.nn.functional.one_hot(place, BINS).double()
    gaps = (weights * (confidence.double() - correct)) @ inside
    return gaps.abs().sum(dim=1) / weights.sum(dim=1)
