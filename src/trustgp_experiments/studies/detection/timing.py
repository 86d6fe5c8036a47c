"""What a detection's error bar costs: one picture, one thread, beside the detector and its passes."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from trustgp.detection import DetectionModel

from ..runtime.timing import Interleaved, Times, call_peak, threads

PLAIN, SERIAL, BATCHED = "detector", "20 passes, one after another", "20 passes in one batch"
EAGER, GRAPH = "trustgp, predict", "trustgp, traced().predict"
PASSES = 20


def time_calls(model: DetectionModel, others: list[Any], images: Tensor, *, quick: bool) -> dict[str, Any]:
    """Milliseconds, ratios within rounds, and bytes at the peak of one call, by name.

    Args:
        model: Fitted.
        others: Further members of an ensemble.
        images: A few pictures [n, 3, h, w]; each round takes the next.
        quick: A few rounds.
    """
    network, graph = model.network, model.traced()
    turn = {"next": 0}

    def picture() -> Tensor:
        return images[turn["next"] % len(images)][None]

    def noisy(pictures: Tensor) -> Any:
        network.model.decoder.train()
        try:
            return network(pictures)
        finally:
            network.model.decoder.eval()

    calls = {
        PLAIN: lambda: network(picture()),
        SERIAL: lambda: [noisy(picture()) for _ in range(PASSES)],
        BATCHED: lambda: noisy(picture().expand(PASSES, -1, -1, -1)),
        EAGER: lambda: model.predict(picture()),
        GRAPH: lambda: graph.predict(picture()),
    }
    if others:
        calls[f"ensemble of {1 + len(others)}"] = lambda: [one(picture()) for one in (network, *others)]

    def next_picture() -> None:
        turn["next"] += 1

    rounds = 3 if quick else 200
    timing = Interleaved(rounds=rounds, warm_up=2, patience=60.0, least=3, busy=time.thread_time)
    with threads(1), torch.no_grad():
        found = timing.run({**calls, "": next_picture})
        return {name: _entry(found, name, call_peak(call, "cpu")) for name, call in calls.items()}


def _entry(found: dict[str, Times], name: str, peak: int | None) -> dict[str, Any]:
    own = found[name]
    return {
        "over": own.over(found[PLAIN]),
        "under": found[SERIAL].over(own),
        "calls": len(own.seconds),
        "median": own.median,
        "p99": own.p99,
        "peak": peak,
    }
