"""What a call costs: the detector, trustgp, dropout and an ensemble, in turns, all in eager torch."""

import time
from collections import deque
from typing import Any

import torch
from torch import Tensor

from trustgp.detection import DetectionModel
from trustgp.detection.query_rows import kept, probabilities

from ..runtime.timing import Interleaved, call_peak, threads
from .peers import PASSES, Decoder

PLAIN, OWN = "detector", "trustgp"
DROPOUT = f"MC-dropout {PASSES}"  # decoder passes in one batch, on what the encoder gave once


def time_calls(model: DetectionModel, others: list[Any], images: Tensor, *, quick: bool) -> dict[str, Any]:
    """Seconds, ratios in rounds, peak bytes of calls; a round takes the next image, `others` are members."""
    network, watched = model.network, Decoder(model.network)
    shown = deque(images.split(1))  # the first of them in this round

    def picture() -> Tensor:
        return shown[0]

    def noisy() -> Any:
        said = watched(picture())
        chances = probabilities(said.logits, network.config.num_labels)
        place = kept(chances, said.pred_boxes, model.settings)
        size = said.pred_boxes.new_tensor([images.shape[3], images.shape[2]] * 2)
        return watched.again(*place, size, PASSES)

    calls = {
        PLAIN: lambda: network(picture()),
        DROPOUT: noisy,
        OWN: lambda: model.predict(picture()),
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
            ratios = {"over": own.over(found[PLAIN]), "under": found[DROPOUT].over(own)}
            out[name] = {**ratios, **own.summary(), "peak": peak}
        return out
