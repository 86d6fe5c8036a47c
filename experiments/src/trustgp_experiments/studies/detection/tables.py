"""Tables of the detection study, and what follows from its numbers."""

from collections.abc import Mapping
from typing import Any

from ...core.result import Column, Table
from .costs import DROPOUT, OWN, PLAIN
from .scores import ALARMS, LATENT, LEVELS, OURS, SEEN
from .worlds import FAMILIAR, NOVEL

Figures = Mapping[str, Any]
INTERVAL = "Behind \u00b1: half of the 95 % interval, by bootstrap over pictures; means over detectors."
PROMISED = {NOVEL: 0.94, "flight": 0.86, "raccoons": 0.99}  # AUROC
CAUGHT, PICTURES, COVERED = 0.6, 0.85, 0.85  # at 5 % alarms; AUROC of pictures; of edges in flight
MOST, LEAST = 1.5, 3.0  # times the detector; times faster than dropout


def tables(worlds: Figures, times: Figures) -> list[Table]:
    """What is told apart, what is right in each world, and what it costs."""
    return [_told(worlds), _right(worlds), _cost(times)]


def _cell(found: Figures, factor: float = 1.0) -> list[float] | None:
    if found["mean"] is None or found["mean"] != found["mean"]:
        return None
    return [factor * found["mean"], factor * (found["high"] - found["low"]) / 2]


def _told(worlds: Figures) -> Table:
    names = ("told from familiar ones", "method", "by")
    columns = [
        *(Column.text(name) for name in names),
        Column("AUROC", 3, "high"),
        *(Column(f"caught at {a:.0%} alarms", 1, "high", "%") for a in ALARMS),
        Column("FPR95", 3, "low"),
        Column("confident mistakes caught at 5%", 1, "high", "%"),
        Column("AUROC of pictures", 3, "high"),
    ]
    rows = []
    for world in worlds.values():
        for test in world["told"][OURS]:
            for method, by_test in world["told"].items():
                for score, found in by_test[test].items():
                    cells = [
                        _cell(found["auroc"]),
                        *(_cell(found[f"caught {a}"], 100) for a in ALARMS),
                        _cell(found["fpr95"]),
                        _cell(found["confident"], 100),
                        _cell(found["pictures"]),
                    ]
                    rows.append([test, method, score, *cells])
    note = (
        "By detection: those on familiar test pictures against those that lie on a novel thing, or, of the "
        "other sets, against all. Alarms: the share of familiar detections above the threshold. Confident "
        "mistakes: those of the foreign detections to which the detector gives 0.9 or more. Of pictures: the "
        "largest score of a picture, one without a detection comes last; of trustgp its picture_novelty. "
        + INTERVAL
    )
    return Table("Are foreign things told from familiar ones?", columns, rows, block=names[0], note=note)


def _right(worlds: Figures) -> Table:
    columns = [
        Column.text("pictures"),
        Column.text("method"),
        Column("NLL of classes", 3, "low"),
        Column("D-ECE", 1, "low", "%"),
        Column("NLL of edges", 3, "low"),
        *(Column(f"within {level:.0%}", 1, None, "%") for level in LEVELS),
        Column("all four within 95%", 1, None, "%"),
        Column("mean std", 2, None, "px"),
        Column("rms error", 2, None, "px"),
    ]
    rows = []
    for world in worlds.values():
        for pictures, methods in world["right"].items():
            for method, found in methods.items():
                keys = ("class_nll", "dece", "box_nll", *(f"within {level}" for level in LEVELS), "all four")
                factors = (1, 100, 1, *[100] * (len(LEVELS) + 1))
                cells = [_cell(found[key], factor) for key, factor in zip(keys, factors, strict=True)]
                rows.append([pictures, method, *cells, _cell(found["std"]), _cell(found["rms"])])
    note = (
        "Edges: of detections that have found a thing. Each method's deviation follows what it does not "
        "know, as fitted to the validation pictures and to the same in another light; softmax has one for "
        "all. " + INTERVAL
    )
    return Table("Are probabilities and edges right?", columns, rows, block="pictures", note=note)


def _cost(times: Figures) -> Table:
    columns = [
        Column.text("one picture, one thread"),
        Column("times the detector", 2, "low"),
        Column(f"{DROPOUT} takes so many times as long", 1, "high"),
        Column("peak memory", 0, None, "MiB"),
        Column("calls", 0),
    ]
    rows = []
    for name, found in times.items():
        peak = None if found["peak"] is None else found["peak"] / 2**20
        rows.append([name, found["over"], found["under"], peak, found["calls"]])
    note = (
        "All in eager torch. Ratios of the thread's own time within rounds, the median. Dropout: one pass of "
        "the detector, then 20 of its decoder in one batch, as they are scored. Peak: beside what was held "
        "before."
    )
    return Table("What does it cost?", columns, rows, note=note)


def findings(worlds: Figures, times: Figures) -> list[str]:
    """One sentence each, from the numbers; what was promised, and whether it is kept."""
    found = [_best(world["told"], test) for world in worlds.values() for test in world["told"][OURS]]
    if "scenes" in worlds:
        found += _of_scenes(worlds["scenes"])
    for world in worlds.values():
        ap = ", ".join(f"{name} {value:.3f}" for name, value in world["ap50"].items())
        found.append(f"AP50 of the first detector on familiar test pictures: {ap}.")
    own = times[OWN]
    kept = own["over"] <= MOST and own["under"] >= LEAST
    return [
        *found,
        f"{OWN}: {own['over']:.2f} times the {PLAIN}, {own['under']:.1f} times faster than {DROPOUT} on what "
        f"the encoder gave once; promised were {MOST} and {LEAST:.0f}: {_kept(kept)}.",
    ]


def _best(told: Figures, test: str) -> str:
    """Ours by latent variance against the best score of any other method."""
    own = told[OURS][test][LATENT]["auroc"]
    others = {}
    for method, by_test in told.items():
        if method != OURS and SEEN not in method:
            others |= {f"{method} by {score}": found["auroc"] for score, found in by_test[test].items()}
    best, highest = max(others.items(), key=lambda item: item[1]["mean"])
    words = "above" if own["low"] > highest["high"] else "not clearly above"
    words = "below" if own["mean"] < highest["mean"] else words
    found = f"{test}: AUROC {_text(own)} by latent variance, {words} the best peer, {best}, {_text(highest)}."
    if test not in PROMISED:
        return found
    kept = _kept(own["mean"] >= PROMISED[test])
    return f"{found} At least {PROMISED[test]} was promised: {kept}."


def _of_scenes(world: Figures) -> list[str]:
    own = world["told"][OURS][NOVEL][LATENT]
    caught, whole = own["caught 0.05"], own["pictures"]
    near, far = (world["right"][f"scenes, {name}"][OURS]["within 0.95"] for name in (FAMILIAR, "flight"))
    familiar = 0.94 <= near["mean"] <= 0.96
    return [
        f"Novel things caught at 5 % alarms: {_text(caught)}; at least {CAUGHT} was promised: "
        f"{_kept(caught['mean'] >= CAUGHT)}. Confident mistakes among them: {_text(own['confident'])}.",
        f"Pictures with a novel thing: AUROC {_text(whole)} by picture_novelty; at least {PICTURES} was "
        f"promised: {_kept(whole['mean'] >= PICTURES)}.",
        f"Edges within 95 %: familiar {_text(near)}, 0.94 to 0.96 was promised: {_kept(familiar)}; in flight "
        f"{_text(far)}, at least {COVERED} was promised: {_kept(far['mean'] >= COVERED)}.",
    ]


def _text(found: Figures) -> str:
    return f"{found['mean']:.3f} ({found['low']:.3f} to {found['high']:.3f})"


def _kept(held: bool) -> str:
    return "kept" if held else "not kept"
