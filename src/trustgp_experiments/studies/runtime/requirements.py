"""What issue and paper ask of the time of an error bar, and whether it is met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...core.result import Column, Table
from .calls import ONNX, RUNTIMES
from .fixtures import UNBOUNDED
from .quality import ours
from .tables import Entry

LOSS = 0.02  # of NLL or AUROC to the model without a budget
Entries = Mapping[str, Sequence[Entry]]
"""By network, those of one row and one thread."""
Quality = Mapping[str, Entry]
"""By method."""


@dataclass(frozen=True)
class Requirement:
    """Of a network, at batch 1 and one thread.

    Args:
        faster: Times faster than 20 passes one after another in the same runtime, at least.
        slower: Times the plain network in the same runtime, at most.
    """

    faster: float
    slower: float

    def is_met(self, entry: Entry) -> bool:
        """Whether an entry is as fast as required."""
        fast = entry["passes_over_this"] is not None and entry["passes_over_this"] >= self.faster
        return fast and entry["over_network"] <= self.slower

    @property
    def words(self) -> str:
        """In a table."""
        return f"{self.faster:g} times faster than 20 passes, {self.slower:g} times the network at most"


REQUIREMENTS = {"DETR": Requirement(12.0, 1.6), "ResNet-18": Requirement(8.0, 2.5)}
EXPORTED = "MLP"  # whose exported model is to be cheaper than an ensemble of 5 in torch eager
COLUMNS = [
    Column.text("network"),
    Column.text("promise"),
    Column.text("runtime"),
    Column.text("the fastest that loses little"),
    Column("over the network", digits=2, unit="x"),
    Column("20 passes over it", digits=1, unit="x"),
    Column("NLL lost", digits=1, unit="%"),
    Column("AUROC lost", digits=1, unit="%"),
    Column.text("kept"),
]
NOTE = (
    "Batch 1, one thread, like with like: both sides of a ratio in the same runtime. Loses little: at "
    f"most {100 * LOSS:.0f} % of NLL or of AUROC to the model without a budget. Negative: it is better."
)


@dataclass(frozen=True)
class ShareLost:
    """To the model without a budget, as shares; negative: better than it."""

    nll: float | None
    auroc: float | None

    @property
    def small(self) -> bool:
        """Whether one of both is small enough."""
        return any(value is not None and value <= LOSS for value in (self.nll, self.auroc))


def loss_of(quality: Quality, method: str) -> ShareLost:
    """What a budget costs in likelihood, and in telling new rows."""
    whole, here = quality[ours(UNBOUNDED)], quality[method]

    def share(name: str, sign: float) -> float | None:
        a, b = whole[name], here[name]
        return None if a is None or b is None or a == 0 else sign * (b - a) / abs(a)

    return ShareLost(share("nll", 1.0), share("auroc", -1.0))


def fastest(entries: Sequence[Entry], quality: Quality) -> list[Entry]:
    """Of each runtime that has one, the fastest of our bounded models that loses little."""
    bounded = [name for name in quality if name.startswith(ours("")) and name != ours(UNBOUNDED)]
    good = [e for e in entries if e["method"] in bounded and e["over_network"] is not None]
    good = [e for e in good if loss_of(quality, e["method"]).small]
    chosen = [[entry for entry in good if entry["runtime"] == runtime] for runtime in RUNTIMES]
    return [min(some, key=lambda entry: entry["over_network"]) for some in chosen if some]


def requirement_table(entries: Entries, qualities: Mapping[str, Quality]) -> Table:
    """A line for each requirement and runtime."""
    rows = []
    for network, required in REQUIREMENTS.items():
        for found in fastest(entries.get(network, ()), qualities.get(network, {})):
            loss = loss_of(qualities[network], found["method"])
            percent = [None if value is None else 100 * value for value in (loss.nll, loss.auroc)]
            told = [found[key] for key in ("runtime", "method", "over_network", "passes_over_this")]
            met = "yes" if required.is_met(found) else "no"
            rows.append([network, required.words, *told, *percent, met])
    return Table("What was promised", COLUMNS, rows, note=NOTE)


def requirement_findings(entries: Entries, qualities: Mapping[str, Quality]) -> list[str]:
    """One sentence for each network and what is required of it."""
    found = []
    for network, required in REQUIREMENTS.items():
        if network not in entries:
            continue
        tried = fastest(entries[network], qualities[network])
        if not tried:
            found.append(f"{network}: no budget loses as little as {100 * LOSS:.0f} %.")
            continue
        good = [entry["runtime"] for entry in tried if required.is_met(entry)]
        words = "; ".join(
            f"{entry['runtime']} ({entry['method']}) {entry['over_network']:.2f} times the network, "
            f"{entry['passes_over_this'] or 0:.1f} times faster than 20 passes"
            for entry in tried
        )
        verdict = f"kept in {', '.join(good)}" if good else "not kept"
        found.append(f"{network}, promised {required.words}: {verdict}. {words}.")
    return found + _on_exported(entries.get(EXPORTED, ()), qualities.get(EXPORTED, {}))


def _on_exported(entries: Sequence[Entry], quality: Quality) -> list[str]:
    """Of the fastest exported model, whatever it loses, which is said."""
    exported = [e for e in entries if e["runtime"] == ONNX and e["method"].startswith(ours(""))]
    exported = [entry for entry in exported if entry["over_eager_ensemble"] is not None]
    if not exported:
        return []
    found = min(exported, key=lambda entry: entry["over_eager_ensemble"])
    ratio, lost = found["over_eager_ensemble"], loss_of(quality, found["method"]).nll
    words = "" if lost is None else f" It loses {100 * lost:.1f} % of NLL to the model without a budget."
    return [
        f"{EXPORTED}, exported ({found['method']}, onnxruntime): {ratio:.2f} times the ensemble of 5 in "
        f"torch eager, {'cheaper, as promised' if ratio < 1 else 'not cheaper, as was promised'}.{words}"
    ]
