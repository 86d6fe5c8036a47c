"""What issue and paper ask of the time of an error bar, and whether it is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .base import Column, Table
from .runtime_calls import ONNX, RUNTIMES
from .runtime_quality import ours
from .runtime_workshop import UNBOUNDED

LOSS = 0.02  # of NLL or AUROC to the model without a budget
Entries = Sequence[Mapping[str, Any]]
Quality = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Promise:
    """Of a network, at batch 1 and one thread.

    Args:
        faster: Times faster than 20 passes one after another in the same runtime, at least.
        slower: Times the plain network in the same runtime, at most.
    """

    faster: float
    slower: float

    @property
    def words(self) -> str:
        """In a table."""
        return f"{self.faster:g} times faster than 20 passes, {self.slower:g} times the network at most"


PROMISES = {"DETR": Promise(12.0, 1.6), "ResNet-18": Promise(8.0, 2.5)}
EXPORTED = "MLP"  # whose exported model is to be cheaper than an ensemble of 5 in torch eager


@dataclass(frozen=True)
class Loss:
    """To the model without a budget, as shares; negative: better than it."""

    nll: float | None
    auroc: float | None

    @property
    def small(self) -> bool:
        """Whether one of both is small enough."""
        return any(value is not None and value <= LOSS for value in (self.nll, self.auroc))


def loss_of(quality: Quality, method: str) -> Loss:
    """What a budget costs in likelihood, and in telling new rows."""
    whole, here = quality[ours(UNBOUNDED)], quality[method]

    def share(name: str, sign: float) -> float | None:
        a, b = whole[name], here[name]
        return None if a is None or b is None or a == 0 else sign * (b - a) / abs(a)

    return Loss(share("nll", 1.0), share("auroc", -1.0))


def best(entries: Entries, quality: Quality, runtime: str) -> Mapping[str, Any] | None:
    """The fastest of our bounded models in a runtime that loses little; None: there is none."""
    bounded = [name for name in quality if name.startswith(ours("")) and name != ours(UNBOUNDED)]
    chosen = [
        entry
        for entry in entries
        if entry["runtime"] == runtime
        and entry["method"] in bounded
        and entry["over_network"] is not None
        and loss_of(quality, entry["method"]).small
    ]
    return min(chosen, key=lambda entry: entry["over_network"]) if chosen else None


def kept(promise: Promise, entry: Mapping[str, Any]) -> bool:
    """Whether an entry is as fast as promised."""
    fast = entry["passes_over_this"] is not None and entry["passes_over_this"] >= promise.faster
    return fast and entry["over_network"] <= promise.slower


def promise_table(entries: Mapping[str, Entries], qualities: Mapping[str, Quality]) -> Table:
    """A line for each promise and runtime.

    Args:
        entries: By network, those of one row and one thread.
        qualities: By network.
    """
    rows = []
    for network, promise in PROMISES.items():
        for runtime in RUNTIMES if network in entries else ():
            found = best(entries[network], qualities[network], runtime)
            if found is None:
                continue
            loss = loss_of(qualities[network], found["method"])
            rows.append(
                [
                    network,
                    promise.words,
                    runtime,
                    found["method"],
                    found["over_network"],
                    found["passes_over_this"],
                    _percent(loss.nll),
                    _percent(loss.auroc),
                    "yes" if kept(promise, found) else "no",
                ]
            )
    columns = [
        Column("network", digits=-1),
        Column("promise", digits=-1),
        Column("runtime", digits=-1),
        Column("the fastest that loses little", digits=-1),
        Column("over the network", digits=2, unit="x"),
        Column("20 passes over it", digits=1, unit="x"),
        Column("NLL lost", digits=1, unit="%"),
        Column("AUROC lost", digits=1, unit="%"),
        Column("kept", digits=-1),
    ]
    note = (
        "Batch 1, one thread, like with like: both sides of a ratio in the same runtime. Loses little: at "
        f"most {100 * LOSS:.0f} % of NLL or of AUROC to the model without a budget. Negative: it is better."
    )
    return Table("What was promised", columns, rows, note=note)


def promise_findings(entries: Mapping[str, Entries], qualities: Mapping[str, Quality]) -> list[str]:
    """One sentence for each network and its promise."""
    found = []
    for network, promise in PROMISES.items():
        if network not in entries:
            continue
        options = [best(entries[network], qualities[network], runtime) for runtime in RUNTIMES]
        tried = [entry for entry in options if entry is not None]
        if not tried:
            found.append(f"{network}: no budget loses as little as {100 * LOSS:.0f} %.")
            continue
        good = [entry for entry in tried if kept(promise, entry)]
        words = "; ".join(
            f"{entry['runtime']} ({entry['method']}) {entry['over_network']:.2f} times the network, "
            f"{entry['passes_over_this'] or 0:.1f} times faster than 20 passes"
            for entry in tried
        )
        verdict = f"kept in {', '.join(entry['runtime'] for entry in good)}" if good else "not kept"
        found.append(f"{network}, promised {promise.words}: {verdict}. {words}.")
    return found + _exported(entries, qualities)


def _exported(entries: Mapping[str, Entries], qualities: Mapping[str, Quality]) -> list[str]:
    """Of the fastest exported model, whatever it loses, which is said."""
    ours_there = [
        entry
        for entry in entries.get(EXPORTED, ())
        if entry["runtime"] == ONNX
        and entry["method"].startswith(ours(""))
        and entry["over_eager_ensemble"] is not None
    ]
    if not ours_there:
        return []
    found = min(ours_there, key=lambda entry: entry["over_eager_ensemble"])
    ratio, loss = found["over_eager_ensemble"], loss_of(qualities[EXPORTED], found["method"])
    lost = (
        "" if loss.nll is None else f" It loses {100 * loss.nll:.1f} % of NLL to the model without a budget."
    )
    return [
        f"{EXPORTED}, exported ({found['method']}, onnxruntime): {ratio:.2f} times the ensemble of 5 in "
        f"torch eager, {'cheaper, as promised' if ratio < 1 else 'not cheaper, as was promised'}.{lost}"
    ]


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
