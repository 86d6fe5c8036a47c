"""One detector, every method: what is told apart, how right it is, what it costs, as numbers and tables."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

from trustgp.detection import DetectionModel
from trustgp.detection.calibration import EdgeNoise
from trustgp.metrics import auroc, class_nll, entropy, fpr95
from trustgp.metrics.boxes import nearest, overlaps

from ...core.cases import number, shares_between
from ...core.pivot import Pivot, flat_measure, flat_table
from ...core.result import Column, Table
from ..runtime.timing import Interleaved, call_peak, threads
from .peers import FAMILIAR, LOOKED_AT, NOVEL, PASSES, FeatureScores, Found, dropping_decoder

OVERLAP = 0.5  # from which a detection has found a thing
NEAR = 0.3  # from which it lies on one
BINS = 10  # of the detection calibration error
LEVELS = (0.5, 0.8, 0.95)
OURS = "trustgp"
LATENT = "latent variance"
BARS = 30  # of a histogram
PLAIN, SERIAL, BATCHED = "detector", "20 passes, one after another", "20 passes in one batch"
EAGER, GRAPH = "trustgp, predict", "trustgp, traced().predict"  # the second in results of before 0.3


@dataclass(frozen=True)
class Told:
    """What a method says of detections; the entropy is a score that every method has."""

    probabilities: Tensor  # of the classes and, last, of no object, [m, C + 1]
    unknown: Tensor  # what the deviation of edges is made of, [m] or [m, 4]
    boxes: Tensor  # its own, in pixels, [m, 4]
    picture: Tensor | None = None  # how little is known of its picture, [m]
    own_scores: dict[str, Tensor] = field(default_factory=dict)  # how foreign they are, [m] each

    @property
    def scores(self) -> dict[str, Tensor]:
        """All scores."""
        return {"entropy": entropy(self.probabilities), **self.own_scores}


def told_by_all(
    found: Found,
    temperature: float,
    laplace: Any,
    model: DetectionModel | None,
    features: FeatureScores | None = None,
) -> dict[str, Told]:
    """Every method's answer about the detections, by name; None: that one is not there."""
    boxes, logits = found.boxes, found.logits
    plain, cooled = logits.softmax(dim=1), (logits / temperature).softmax(dim=1)
    answers = {
        "softmax": Told(plain, torch.zeros(len(plain)), boxes),
        "temperature scaling": Told(cooled, entropy(cooled), boxes),
        "MC-dropout 20": _several(*found.passes),
    }
    if features is not None:
        for name, score in features(found).items():
            answers[name] = Told(plain, score - score.min(), boxes, own_scores={LATENT: score})
    if laplace is not None:
        said = laplace.predict(found.hidden)
        answers["Laplace last layer"] = Told(
            said.probabilities, said.score, boxes, own_scores={LATENT: said.score}
        )
    if len(found.members[0]) > 1:
        answers[f"ensemble of {len(found.members[0])}"] = _several(*found.members)
    if model is not None:
        lots, names = model.predict(found.pictures.images), ("probabilities", "novelty", "boxes")
        chances, novelty, again = (torch.cat([getattr(one, name) for one in lots]) for name in names)
        whole = torch.cat([torch.full((len(one),), one.picture_novelty) for one in lots])
        if not torch.allclose(again, boxes, rtol=1e-3, atol=1e-2):
            raise RuntimeError("the detector's boxes have changed; rows cannot be compared.")
        # u and w, of which novelties are u / (1 + u)
        answers[OURS] = Told(chances, _odds(novelty), boxes, _odds(whole), {LATENT: novelty})
    return answers


def _odds(share: Tensor) -> Tensor:
    return share / (1.0 - share).clamp_min(1e-6)


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


def told_apart(answers: Mapping[str, Mapping[str, Told]], found: Mapping[str, Found]) -> dict[str, Any]:
    """AUROC and FPR95 by method, test set and score: by detection, and by the worst of a picture."""
    out: dict[str, Any] = {}
    for method, familiar in answers[FAMILIAR].items():
        for test in (name for name in answers if name != FAMILIAR):
            every = torch.ones(len(found[test].image), dtype=torch.bool)
            mask = strange(found[test]) if test in (NOVEL, LOOKED_AT) else every
            for score, here in familiar.scores.items():
                there = answers[test][method].scores[score]
                sides = _worst(here, found[FAMILIAR]), _worst(there, found[test])
                out.setdefault(method, {}).setdefault(test, {})[score] = {
                    "auroc": number(auroc(here, there[mask])),
                    "fpr95": number(fpr95(here, there[mask])),
                    "picture_auroc": number(auroc(*sides)),
                    "bars": _bars(here, there[mask]),
                    "rows": [len(here), int(mask.sum())],
                }
    return out


def _worst(scores: Tensor, found: Found) -> Tensor:
    """The largest of each picture; -1 where nothing is found."""
    start = torch.full((len(found.pictures),), -1.0, dtype=torch.float64)
    return start.scatter_reduce(0, found.image, scores.double(), "amax")


def _bars(here: Tensor, there: Tensor) -> dict[str, list[float]]:
    """Shares of both in bars of equal width."""
    top = float(torch.cat([here, there]).quantile(0.995).clamp_min(1e-9))
    edges = torch.linspace(0, top, BARS + 1, dtype=torch.float64)
    sides = {"in": shares_between(here, edges), "out": shares_between(there, edges)}
    return {"edges": edges.tolist(), **sides}


def right(
    answers: Mapping[str, Told], held: Mapping[str, Told], found: Found, before: Found
) -> dict[str, Any]:
    """Probabilities and edges of a labelled test set, by method; of validation pictures: `held`, `before`."""
    (thing, label), (known, _) = hits(found), hits(before)
    out = {}
    for method, told in answers.items():
        chosen = found.logits[:, :-1].argmax(dim=1)
        confidence = told.probabilities.gather(1, chosen[:, None])[:, 0]
        own, past = _errors(told.boxes, thing, found), _errors(held[method].boxes, known, before)
        edges = EdgeNoise.fit(past, *_unknown(held[method], known >= 0))
        scale, std = (form(*_unknown(told, thing >= 0)) for form in (edges.scale, edges.std))
        reach = stdtrit(float(edges.df), 0.5 + np.array(LEVELS) / 2)
        noise = torch.distributions.StudentT(edges.df, 0.0, scale)
        out[method] = {
            "class_nll": number(class_nll(told.probabilities, label).mean()),
            "dece": number(_calibration(confidence, (chosen == label).double())),
            "box_nll": number(-noise.log_prob(own).mean()),
            "coverage": [number((own.abs() <= one * scale).double().mean()) for one in reach],
            "std": number(std.mean()),
            "rms": number(own.square().mean().sqrt()),
            "rows": [len(thing), int((thing >= 0).sum())],
        }
    return out


def _unknown(told: Told, rows: Tensor) -> tuple[Tensor, Tensor]:
    """u and w of some detections, as `EdgeNoise` takes them."""
    picture = torch.ones(len(told.unknown)) if told.picture is None else told.picture
    return told.unknown[rows], picture[rows]


def _errors(boxes: Tensor, thing: Tensor, found: Found) -> Tensor:
    """Of detections that have found a thing, in pixels, float64, [k, 4]."""
    rows = (thing >= 0).nonzero().flatten().tolist()
    things = found.pictures.things
    true = torch.stack([things[int(found.image[r])].boxes[int(thing[r])] for r in rows])
    return (boxes[thing >= 0] - true).double()


def _calibration(confidence: Tensor, correct: Tensor) -> Tensor:
    """The detection calibration error: |share that is right - confidence|, over bins of equal width."""
    place = (confidence.double() * BINS).long().clamp(0, BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).scatter_add(0, place, confidence.double() - correct)
    return gaps.abs().sum() / max(1, len(confidence))


def time_calls(model: DetectionModel, others: list[Any], images: Tensor, *, quick: bool) -> dict[str, Any]:
    """Seconds, ratios in rounds, peak bytes of calls; a round takes the next image, `others` are members."""
    network = model.network
    shown = deque(images.split(1))  # the first of them in this round

    def picture() -> Tensor:
        return shown[0]

    def noisy(pictures: Tensor) -> Any:
        with dropping_decoder(network):
            return network(pictures)

    calls = {
        PLAIN: lambda: network(picture()),
        SERIAL: lambda: [noisy(picture()) for _ in range(PASSES)],
        BATCHED: lambda: noisy(picture().expand(PASSES, -1, -1, -1)),
        EAGER: lambda: model.predict(picture()),
    }
    if others:
        calls[f"ensemble of {1 + len(others)}"] = lambda: [one(picture()) for one in (network, *others)]
    rounds = 3 if quick else 200
    timing = Interleaved(rounds=rounds, warm_up=2, patience=60.0, least=3, busy=time.thread_time)
    with threads(1), torch.no_grad():
        found = timing.run({**calls, "": lambda: shown.rotate(-1)})
        out = {}
        for name, call in calls.items():
            own, peak = found[name], call_peak(call, "cpu")
            ratios = {"over": own.over(found[PLAIN]), "under": found[SERIAL].over(own)}
            out[name] = {**ratios, **own.summary(), "peak": peak}
        return out


METHOD = {"method": Column.text("method")}
REQUIRED = 0.9
MOST, LEAST = 1.5, 12.0  # times the detector; times faster than 20 passes


TOLD = Pivot(
    "Are foreign things told from familiar ones?",
    {"test": Column.text("told from familiar ones"), **METHOD, "score": Column.text("by")},
    [
        flat_measure("auroc", "AUROC", better="high"),
        flat_measure("fpr95", "FPR95", better="low"),
        flat_measure("picture_auroc", "AUROC of pictures", better="high"),
    ],
    block="told from familiar ones",
    note="By detection: those on familiar test pictures against those that lie on a novel thing, or, of the "
    "other sets, against all. Of pictures: the largest score of a picture; one without a detection comes "
    "last.",
)
RIGHT = Pivot(
    "Are probabilities and edges right?",
    {"pictures": Column.text("pictures"), **METHOD},
    [
        flat_measure("class_nll", "NLL of classes", better="low"),
        flat_measure("dece", "D-ECE", 1, "low", unit="%", factor=100),
        flat_measure("box_nll", "NLL of edges", better="low"),
        *(flat_measure(f"within {p}", f"within {round(100 * p)} %", 1, unit="%", factor=100) for p in LEVELS),
        flat_measure("std", "mean std", 2, unit="px"),
        flat_measure("rms", "rms error", 2, unit="px"),
    ],
    block="pictures",
    note="Edges: of detections that have found a thing. Each method's deviation follows what it does not "
    "know, as fitted to the validation pictures; softmax has one for all.",
)
COST = Pivot(
    "What does it cost?",
    {"call": Column.text("one picture, one thread")},
    [
        flat_measure("over", "times the detector", 2, "low"),
        flat_measure("under", "20 passes take so many times as long", 1, "high"),
        flat_measure("peak", "peak memory", 0, unit="MiB", factor=2**-20),
        flat_measure("calls", "calls"),
    ],
    note="Ratios of the thread's own time within rounds, the median. Peak: beside what was held before.",
)


def tables(worlds: Mapping[str, Mapping[str, Any]], times: Mapping[str, Any]) -> list[Table]:
    """What is told apart, what is right in each world, and what it costs, as `time_calls` gave it."""
    told, right = {}, {}
    for world in worlds.values():
        for method, by_test in world["told"].items():
            told |= {(test, method, score): n for test, by in by_test.items() for score, n in by.items()}
        for test, methods in world["right"].items():
            for method, n in methods.items():
                shares = zip(LEVELS, n["coverage"], strict=True)
                right[test, method] = n | {f"within {level}": share for level, share in shares}
    cost = {(name,): found for name, found in times.items()}
    return [flat_table(pivot, cells) for pivot, cells in ((TOLD, told), (RIGHT, right), (COST, cost))]


def findings(worlds: Mapping[str, Mapping[str, Any]], times: Mapping[str, Any]) -> list[str]:
    """One sentence each, from the numbers."""
    found = [_best(world["told"], test) for world in worlds.values() for test in world["told"][OURS]]
    for world in worlds.values():
        ap = ", ".join(f"{name} {value:.3f}" for name, value in world["ap50"].items())
        found.append(f"AP50 of the detector on familiar test pictures: {ap}.")
    for name in (name for name in (EAGER, GRAPH) if name in times):
        own = times[name]
        kept = own["over"] <= MOST and own["under"] >= LEAST
        found.append(
            f"{name}: {own['over']:.2f} times the {PLAIN}, {own['under']:.1f} times faster than 20 passes; "
            f"promised were {MOST} and {LEAST:.0f}: {'kept' if kept else 'not kept'}."
        )
    return found


def _best(told: Mapping[str, Any], test: str) -> str:
    """Ours by latent variance against the best score of any other method."""
    own = told[OURS][test][LATENT]["auroc"]
    others = {}
    for method, by_test in told.items():
        if method != OURS:
            others |= {f"{method} by {score}": found["auroc"] for score, found in by_test[test].items()}
    best, highest = max(others.items(), key=lambda item: item[1])
    words = "above" if own > highest else "not above"
    found = f"{test}: AUROC {own:.3f} by latent variance, {words} the best peer, {best}, {highest:.3f}."
    if test != NOVEL:
        return found
    kept = "kept" if own >= REQUIRED and own > highest else "not kept"
    return f"{found} At least {REQUIRED} was promised, above every peer: {kept}."
