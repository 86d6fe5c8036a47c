"""Tables of the detection study, and findings."""

from collections.abc import Mapping
from typing import Any

from ...core.result import Column, Table, note
from .costs import DROPOUT, OWN, PLAIN
from .scores import ALARMS, LATENT, LEVELS, OURS, SEEN
from .worlds import FAMILIAR, LATER, NOVEL

Figures = Mapping[str, Any]
INTERVAL = "Behind \u00b1: half of the 95 % interval, by bootstrap over pictures; means over detectors."
PROMISED = {NOVEL: 0.94, LATER: 0.94, "flight": 0.86, "raccoons": 0.99}  # AUROC
CAUGHT, PICTURES, COVERED = 0.6, 0.85, 0.85  # at 5 % alarms; AUROC of pictures; of edges in flight
MAX_TIME, MIN_SPEEDUP = 1.2, 3.0  # times the detector; times faster than dropout
SEPARATED = {  # by the key of a score its column, and the factor of its numbers
    "auroc": (Column("AUROC", 3, "high"), 1),
    **{f"caught {a}": (Column(f"caught at {a:.0%} alarms", 1, "high", "%"), 100) for a in ALARMS},
    "fpr95": (Column("FPR95", 3, "low"), 1),
    "confident": (Column("confident mistakes caught at 5%", 1, "high", "%"), 100),
    "pictures": (Column("AUROC of pictures", 3, "high"), 1),
}
CALIBRATED = {
    "class_nll": (Column("NLL of classes", 3, "low"), 1),
    "dece": (Column("D-ECE", 1, "low", "%"), 100),
    "box_nll": (Column("NLL of edges", 3, "low"), 1),
    **{f"within {level}": (Column(f"within {level:.0%}", 1, None, "%"), 100) for level in LEVELS},
    "all four": (Column("all four within 95%", 1, None, "%"), 100),
    "std": (Column("mean std", 2, None, "px"), 1),
    "rms": (Column("rms error", 2, None, "px"), 1),
}
SEPARATED_NOTE = note(__name__, "Separation")
CALIBRATED_NOTE = note(__name__, "Calibration")
COSTS_NOTE = note(__name__, "Costs")


def summarise(numbers: Figures) -> tuple[list[Table], list[str]]:
    """Tables of separation from familiar pictures, calibration and costs; and findings."""
    worlds, times = numbers["worlds"], numbers["times"]
    separated = [
        [test, method, score, *_cells(scores, SEPARATED)]
        for world in worlds.values()
        for test in world["told"][OURS]
        for method, tests in world["told"].items()
        for score, scores in tests[test].items()
    ]
    calibrated = [
        [pictures, method, *_cells(scores, CALIBRATED)]
        for world in worlds.values()
        for pictures, methods in world["right"].items()
        for method, scores in methods.items()
    ]
    titles = "Are foreign objects separated from familiar ones?", "Are probabilities and edges right?"
    first, second = ("compared with familiar ones", "method", "by"), ("pictures", "method")
    tables = [
        _table(titles[0], separated, SEPARATED, SEPARATED_NOTE, *first),
        _table(titles[1], calibrated, CALIBRATED, CALIBRATED_NOTE, *second),
        _costs(times),
    ]
    return tables, findings(worlds, times)


def _table(title: str, rows: list[list[Any]], columns: Figures, text: str, *labels: str) -> Table:
    named = [*map(Column.text, labels), *(column for column, _ in columns.values())]
    return Table(title, named, rows, block=labels[0], note=f"{text} {INTERVAL}")


def _cells(scores: Figures, columns: Figures) -> list[list[float] | None]:
    return [_cell(scores[key], factor) for key, (_, factor) in columns.items()]


def _cell(score: Figures, factor: float) -> list[float] | None:
    if score["mean"] is None or score["mean"] != score["mean"]:
        return None
    return [factor * score["mean"], factor * (score["high"] - score["low"]) / 2]


def _costs(times: Figures) -> Table:
    columns = [Column.text("one picture, one thread"), Column("times the detector", 2, "low")]
    columns += [Column(f"{DROPOUT} takes so many times as long", 1, "high")]
    columns += [Column("peak memory", 0, None, "MiB"), Column("calls", 0)]
    peaks = {name: None if one["peak"] is None else one["peak"] / 2**20 for name, one in times.items()}
    rows = [[n, one["over"], one["under"], peaks[n], one["calls"]] for n, one in times.items()]
    return Table("What does it cost?", columns, rows, note=COSTS_NOTE)


def findings(worlds: Figures, times: Figures) -> list[str]:
    """Sentences from the numbers, with each promise and whether it is kept."""
    sentences = [_best(world["told"], test) for world in worlds.values() for test in world["told"][OURS]]
    if "scenes" in worlds:
        sentences += _of_scenes(worlds["scenes"])
    own = times[OWN]
    return [
        *sentences,
        f"{OWN}: {own['over']:.2f} times the {PLAIN}, {own['under']:.1f} times faster than {DROPOUT} on what "
        f"the encoder gave once; promised were {MAX_TIME} and {MIN_SPEEDUP:.0f}: "
        f"{_kept(own['over'] <= MAX_TIME and own['under'] >= MIN_SPEEDUP)}.",
    ]


def _best(told: Figures, test: str) -> str:
    """Sentence that compares our latent variance with the best score of any other method."""
    own, others = told[OURS][test][LATENT]["auroc"], {}
    for method, tests in told.items():
        if method != OURS and SEEN not in method:
            others |= {f"{method} by {score}": scores["auroc"] for score, scores in tests[test].items()}
    best, highest = max(others.items(), key=lambda item: item[1]["mean"])
    relation = "above" if own["low"] > highest["high"] else "not clearly above"
    relation = "below" if own["mean"] < highest["mean"] else relation
    peer = f"{relation} the best peer, {best}, {_text(highest)}."
    sentence = f"{test}: AUROC {_text(own)} by latent variance, {peer}"
    if test not in PROMISED:
        return sentence
    kept = _kept(own["mean"] >= PROMISED[test])
    return f"{sentence} At least {PROMISED[test]} was promised: {kept}."


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


def _text(score: Figures) -> str:
    return f"{score['mean']:.3f} ({score['low']:.3f} to {score['high']:.3f})"


def _kept(holds: bool) -> str:
    return "kept" if holds else "not kept"
