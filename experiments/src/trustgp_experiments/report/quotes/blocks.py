"""Which blocks there are: names on the pages, and the functions of stored results that write them."""

from functools import partial

from ...core.registry import STUDIES
from . import classes, detection, front, paper, quality, scaling, small, speed
from .pages import Block
from .stored import Stored, bullets


def findings(stored: Stored, *, study: str) -> str:
    """The sentences that a study made from its numbers, and where they come from."""
    result = stored.study(study)
    origin = result["provenance"]
    made = f"`{origin['command']}`, {origin['device']}, {origin['date']}, commit `{origin['commit'][:10]}`."
    return f"{bullets(result['findings'])}\n\nFrom {made}"


NEW_PAIRS = "Novel images told, on pairs with which nothing was chosen"
CLASSES = {
    "fashion": "Fashion-MNIST: test images like those that trained",
    "distorted": "NLL on distorted Fashion-MNIST",
    "told": f"{NEW_PAIRS}: AUROC",
    "caught": f"{NEW_PAIRS}: share caught at 1 % alarms",
    "table": "What it costs, and what it is worth",
    "looked": "Looked at when choices were made: novel images told: AUROC",
}
FOLDERS = (*STUDIES, "tables", "distributed-cuda", "runtime-cuda")
BLOCKS: dict[str, Block] = {
    "readme.table": front.table,
    "readme.tally": front.tally,
    "readme.loses": front.loses,
    "quality.now": partial(quality.forms, name="quality-beyond"),
    "quality.one": partial(quality.forms, name="quality-one-distribution"),
    "quality.history": quality.history,
    "quality.arms": quality.arms,
    "quality.honesty": quality.honesty,
    "small.light": small.light,
    "small.frontier": small.frontier,
    "small.tests": small.tests,
    "small.reading": small.reading,
    "networks.large": small.networks,
    "networks.resnet": small.resnet,
    "large.times": small.many_rows,
    "speed.cpu": partial(speed.over_network, study="runtime"),
    "speed.cuda": partial(speed.over_network, study="runtime-cuda"),
    "speed.ensemble": speed.against_ensemble,
    "speed.worth": speed.worth,
    "speed.calls": speed.calls,
    "paper.toy": paper.toy,
    "paper.ablation": paper.ablation,
    "paper.transfer": paper.transfer,
    "paper.zero-shot": paper.zero_shot,
    "paper.million": paper.million,
    "paper.detection": paper.detection,
    "scaling.slopes": scaling.slopes,
    "scaling.rows": scaling.rows_slope,
    "scaling.bytes": scaling.stored_bytes,
    "scaling.seconds": scaling.stored_seconds,
    "detection.told": detection.told,
    "detection.right": detection.right,
    "detection.loses": detection.loses,
    "detection.times": detection.times,
    "detection.ap": detection.ap,
    **{f"classification.{name}": partial(classes.table, title=title) for name, title in CLASSES.items()},
    **{f"findings.{study}": partial(findings, study=study) for study in FOLDERS},
}
