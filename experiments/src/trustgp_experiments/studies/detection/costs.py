"""Costs of a call: the detector, trustgp, dropout and an ensemble, in turn, all in eager torch."""

import time
from collections import deque
from typing import Any

import torch
from torch import Tensor

from trustgp.detection import DetectionModel
from trustgp.detection.adapter import kept, probabilities

from ...core.result import threads
from ...core.stage_timer import call_peak
from ..runtime.timing import Interleaved
from .peers import PASSES, Decoder

PLAIN, OWN = "detector", "trustgp"
DROPOUT = f"MC-dropout {PASSES}"  # decoder passes in one batch, after one pass of the encoder


def time_calls(model: DetectionModel, others: list[Any], images: Tensor, *, quick: bool) -> dict[str, Any]:
    """Seconds, ratios within rounds, peak bytes of calls; each round has its image, `others` are members."""
    network, decoder = model.network, Decoder(model.network)
    queue = deque(images.split(1))  # the first of them in this round

    def dropout() -> Any:
        output = decoder(queue[0])
        chances = probabilities(output.logits, network.config.num_labels)
        place = kept(chances, output.pred_boxes, model.settings)
        size = output.pred_boxes.new_tensor([images.shape[3], images.shape[2]] * 2)
        return decoder.again(*place, size, PASSES)

    calls = {PLAIN: lambda: network(queue[0]), DROPOUT: dropout, OWN: lambda: model.predict(queue[0])}
    if others:
        calls[f"ensemble of {1 + len(others)}"] = lambda: [one(queue[0]) for one in (network, *others)]
    rounds = 3 if quick else 200
    timing = Interleaved(rounds=rounds, warm_up=2, patience=60.0, least=3, busy=time.thread_time)
    with threads(1), torch.no_grad():
        times = timing.run({**calls, "": lambda: queue.rotate(-1)})
        costs = {}
        for name, call in calls.items():
            ratios = {"over": times[name].over(times[PLAIN]), "under": times[DROPOUT].over(times[name])}
            costs[name] = {**ratios, **times[name].summary(), "peak": call_peak(call, "cpu")}
        return costs
