"""What does an error bar cost beside the network itself, where that is large? The last line is JSON.

    python benchmarks/large.py --device cuda                     # ViT-B/16, BERT-base, ResNet-50, ConvNeXt-T
    python benchmarks/large.py --device cuda --part resnet18 images million
    python benchmarks/large.py --part cpu                        # one thread: a small ViT; two: a 1-D ConvNet
    python benchmarks/large.py --small --part networks cpu resnet18 images million  # does it run?

Networks are Hugging Face's configurations with random weights, in eval mode and float32; rows and labels are
random, from fixed seeds. After a warm-up of both sides one run measures each figure beside the network's own:
a fit beside one forward pass over the same rows in batches of 64; `predict` of 64 rows and of one, and of one
row through the traced graph, beside a forward pass of the same; on a GPU the most memory beside a forward and
backward pass of the same rows. The floor is a forward pass, and a backward one that ends at the activations,
without gradients of the weights. "estimated" is what the fit said beforehand. A part that fails is told, and
the others go on.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import re
import sys
import time
import traceback
import warnings
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from networks import (
    BATCH,
    CLASSES,
    NAMES,
    PITCHES,
    FromBytes,
    hugging_face,
    picture_batches,
    pitch_network,
    random_rows,
    rows_of,
    small_vit,
)
from torch import Tensor, nn

import trustgp
from trustgp.data.chunking import chunks, rows_at_once
from trustgp.executors.progress import LOGGER
from trustgp.experts.features import chunk_rows
from trustgp.export.trace.trace import traced
from trustgp_experiments.core.stage_timer import Ledger, stages

MUST: dict[str, str] = {  # what has to hold, by the figure's name, or by the part's and the figure's
    "fit estimated over real": "0.5 to 2",
    "fit over forward": "at most 5",
    "predict 64 over forward": "at most 3, 4.5 with convolutions",
    "predict 1 over forward": "at most 6",
    "traced 1 over forward": "at most 4",
    "predict peak over forward backward": "at most 2.5",
    "fit peak over forward backward": "at most 2.5",
    "cpu vit fit over forward": "at most 8",
    "cpu vit predict 64 over forward": "at most 4",
    "cpu convnet fit s": "below 60",
    "resnet18 classes fit s": "at most 20",
    "million shared s": "at most 20",
    "million separate s": "at most 120",
    "million shared GB": "at most 12",
    "million separate GB": "at most 12",
}


@dataclass
class Figures:
    """What was measured, by part and name, and what went wrong."""

    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def say(self, part: str, **values: Any) -> None:
        """A line for each; underscores in a name are blanks."""
        for name, value in ((name.replace("_", " "), value) for name, value in values.items()):
            self.found.setdefault(part, {})[name] = value
            must = MUST.get(f"{part} {name}", MUST.get(name, ""))
            text = f"{value:.4g}" if isinstance(value, float) else str(value)
            print(f"{part}: {name} {text}" + (f" (must hold: {must})" if must else ""), flush=True)

    def attempt(self, part: str, work: Callable[[], None]) -> None:
        """The part's work; an error is told."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # rows are split off; vmap takes some operations row by row
                work()
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            self.errors[part] = f"{type(error).__name__}: {error}"[:500]
            print(f"{part}: failed: {self.errors[part]}", flush=True)
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], Any], device: torch.device, repeat: int = 1, warm: int = 0) -> float:
    """The median of some calls, each waited for, after some that do not count."""
    found = []
    for _ in range(warm + repeat):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        found.append(time.perf_counter() - start)
    return median(found[warm:])


def peak_bytes(work: Callable[[], Any], device: torch.device) -> int:
    """Bytes on the GPU at the peak, beside what was held before."""
    wait(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    wait(device)
    return torch.cuda.max_memory_allocated(device) - before


def measured_fit(
    network: nn.Module, train: Any, device: torch.device, **options: Any
) -> tuple[Any, Ledger, float]:
    """The model, what its stages took, and the seconds that the fit had estimated."""
    said: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: said.append(record.getMessage())
    LOGGER.addHandler(handler)
    try:
        with stages(device) as ledger:
            model = trustgp.fit(network, train, progress=False, **options)
    finally:
        LOGGER.removeHandler(handler)
    text = next((line for line in said if "the fit needs at most" in line), "")
    found = re.search(r"about ([\d.,]+) s\b", text)
    return model, ledger, float(found[1].replace(",", "")) if found else 0.0


def say_fit(figures: Figures, part: str, ledger: Ledger, estimate: float, rows: int, alone: float) -> None:
    """A fit's time beside its estimate, and beside a forward pass over the same rows."""
    figures.say(
        part,
        forward_s=alone,
        fit_s=ledger.total,
        fit_estimated_over_real=estimate / ledger.total,
        fit_over_forward=ledger.total / alone,
        fit_rows_per_s=rows / ledger.total,
        forward_rows_per_s=rows / alone,
        fit_stages_s={stage: round(value, 3) for stage, value in ledger.seconds.items()},
    )


@torch.no_grad()
def forward(network: nn.Module, inputs: Tensor, device: torch.device) -> None:
    """One plain pass over the rows."""
    for index in chunks(len(inputs), BATCH):
        network(inputs[index].to(device))


def backward(network: nn.Module, inputs: Tensor, *, weights: bool) -> None:
    """A forward and a backward pass; without weights it ends at the first layers' activations."""
    early = next(p for p in network.parameters() if p.ndim == 1)
    for parameter in network.parameters():
        parameter.requires_grad_(weights or parameter is early)
    network.zero_grad(set_to_none=True)
    result = network(inputs)
    getattr(result, "logits", result).sum().backward()
    network.zero_grad(set_to_none=True)


def large_network(figures: Figures, name: str, options: Namespace) -> None:
    """One of the four: time and memory of a fit and of predictions."""
    device = torch.device(options.device)
    network = hugging_face(name, options.small).to(device)
    inputs, labels = rows_of(name, options.rows, options.small)
    asked: dict[str, Any] = {
        "likelihood": trustgp.Classification(),
        "outputs": "pseudo",
        "output": lambda said: said.logits,
    }
    few = min(len(inputs), 128)
    forward(network, inputs[:few], device)
    trustgp.fit(network, (inputs[:few], labels[:few]), progress=False, **asked)
    alone = seconds(lambda: forward(network, inputs, device), device)
    model, ledger, estimate = measured_fit(network, (inputs, labels), device, **asked)
    say_fit(figures, name, ledger, estimate, len(inputs), alone)
    say_predictions(figures, name, model, network, inputs[:BATCH].to(device), options)
    if device.type == "cuda":
        say_memory(figures, name, model, network, inputs, ledger)


def say_predictions(
    figures: Figures, part: str, model: Any, network: nn.Module, rows: Tensor, options: Namespace
) -> None:
    """Predictions beside forward passes of the same rows."""
    device, repeat = rows.device, 1 if options.small else 20
    timing: dict[str, Any] = {"device": device, "repeat": repeat, "warm": 1 if options.small else 3}
    floor = seconds(lambda: backward(network, rows, weights=False), **timing)
    with torch.no_grad():
        for n, given in ((len(rows), rows), (1, rows[:1])):
            alone = seconds(lambda given=given: network(given), **timing)
            whole = seconds(lambda given=given: model.predict(given), **timing)
            figures.say(part, **{f"forward_{n}_ms": 1e3 * alone, f"predict_{n}_ms": 1e3 * whole})
            figures.say(part, **{f"predict_{n}_over_forward": whole / alone})
        figures.say(
            part, **{f"floor_{len(rows)}_over_forward": floor / seconds(lambda: network(rows), **timing)}
        )
        if options.eager:
            return
        try:
            graph = traced(model, rows[:1])
        except Exception as error:
            figures.say(part, traced=f"not possible: {type(error).__name__}: {error}"[:500])
            return
        alone, whole = (seconds(lambda one=one: one(rows[:1]), **timing) for one in (network, graph))
        figures.say(part, traced_1_ms=1e3 * whole, traced_1_over_forward=whole / alone)


def say_memory(
    figures: Figures, part: str, model: Any, network: nn.Module, inputs: Tensor, ledger: Ledger
) -> None:
    """The most memory, beside what is held, over that of a forward and backward pass."""
    device = model.device

    def passes(n: int, *, weights: bool) -> int:
        rows = inputs[:n].to(device)
        backward(network, rows[:1], weights=weights)
        return peak_bytes(lambda: backward(network, rows, weights=weights), device)

    rows = inputs[:BATCH].to(device)
    together = min(len(inputs), rows_at_once(inputs, device), chunk_rows(model.mixtures[0].tangents))
    predicting = peak_bytes(lambda: model.predict(rows), device)
    whole, floor = (passes(len(rows), weights=weights) for weights in (True, False))
    fit, batch = ledger.peak("cuda") or 0, passes(together, weights=True)
    figures.say(
        part,
        predict_64_peak_MB=predicting / 1e6,
        forward_backward_64_peak_MB=whole / 1e6,
        floor_64_peak_MB=floor / 1e6,
        predict_peak_over_forward_backward=predicting / whole,
        fit_peak_MB=fit / 1e6,
        fit_rows_at_once=together,
        forward_backward_of_these_peak_MB=batch / 1e6,
        fit_peak_over_forward_backward=fit / batch,
    )


def on_a_cpu(figures: Figures, options: Namespace) -> None:
    """A ViT of width 192 on one thread, and a 1-D ConvNet on two."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        figures.attempt("cpu vit", lambda: vit_on_one_thread(figures, options))
        torch.set_num_threads(2)
        figures.attempt("cpu convnet", lambda: convnet_on_two_threads(figures, options))
    finally:
        torch.set_num_threads(before)


def vit_on_one_thread(figures: Figures, options: Namespace) -> None:
    """Its fit and predictions, beside forward passes."""
    network, device = small_vit(options.small), torch.device("cpu")
    n, side = (BATCH, 16) if options.small else (512, 64)
    inputs, labels = random_rows(n, 3, side, side)
    asked: dict[str, Any] = {"likelihood": trustgp.Classification(), "output": lambda said: said.logits}
    asked["executor"] = trustgp.Threads(1)
    trustgp.fit(network, (inputs[:60], labels[:60]), progress=False, **asked)
    alone = seconds(lambda: forward(network, inputs, device), device, warm=1)
    model, ledger, estimate = measured_fit(network, (inputs, labels), device, **asked)
    say_fit(figures, "cpu vit", ledger, estimate, len(inputs), alone)
    say_predictions(figures, "cpu vit", model, network, inputs[:BATCH], options)


def convnet_on_two_threads(figures: Figures, options: Namespace) -> None:
    """A fit of 60 rows."""
    network, device = pitch_network(options.small), torch.device("cpu")
    inputs, labels = random_rows(60, 1, 1024, classes=PITCHES)
    asked: dict[str, Any] = {"likelihood": trustgp.Classification(), "executor": trustgp.Threads(2)}
    alone = seconds(lambda: forward(network, inputs, device), device, warm=1)
    _, ledger, estimate = measured_fit(network, (inputs, labels), device, **asked)
    figures.say("cpu convnet", parameters=sum(p.numel() for p in network.parameters()))
    say_fit(figures, "cpu convnet", ledger, estimate, len(inputs), alone)


def resnet18(figures: Figures, options: Namespace) -> None:
    """The network of examples/resnet18_like.py on images of 32 pixels."""
    from resnet import example

    device, n = torch.device(options.device), 60 if options.small else 10_000
    torch.manual_seed(0)
    network = example().ResNet18(CLASSES, width=4 if options.small else 64).eval().to(device)
    inputs, labels = random_rows(n, 3, *[8 if options.small else 32] * 2)
    targets = random_rows(n, CLASSES)[0]
    for name, given, likelihood in (
        ("classes", labels, trustgp.Classification()),
        ("shared outputs", targets, trustgp.Regression()),
    ):
        trustgp.fit(network, (inputs[:60], given[:60]), likelihood=likelihood, progress=False)
        alone = seconds(lambda: forward(network, inputs, device), device, warm=1)
        _, ledger, estimate = measured_fit(network, (inputs, given), device, likelihood=likelihood)
        say_fit(figures, f"resnet18 {name}", ledger, estimate, n, alone)


def streamed(figures: Figures, options: Namespace) -> None:
    """Many pictures through ResNet-50, from a stream of batches."""
    device, n, side = torch.device(options.device), options.images, 224
    n, side = (80, 16) if options.small else (n, side)
    network = FromBytes(hugging_face("resnet50", options.small)).eval().to(device)
    held = next(picture_batches(BATCH, side))
    asked: dict[str, Any] = {"likelihood": trustgp.Classification(), "validation": held}
    trustgp.fit(network, picture_batches(BATCH, side), progress=False, **asked)

    @torch.no_grad()
    def plain() -> None:
        for pictures, _ in picture_batches(n, side):
            network(pictures.to(device))

    alone = seconds(plain, device)
    _, ledger, estimate = measured_fit(network, picture_batches(n, side), device, **asked)
    say_fit(figures, "images", ledger, estimate, n, alone)


def million(figures: Figures, options: Namespace) -> None:
    """What benchmarks/scale.py measures, for shared and for separate outputs of the same rows."""
    import scale

    place: dict[str, Any] = {"seed": 0, "device": options.device}
    n, experts, held = (300, 2, 60) if options.small else (2_000_000, 512, scale.HELD_ROWS)
    rows = scale.scale_rows(n, seed=0, held=held)
    sizes: dict[str, Any] = {"widths": (8, 8), "steps": 5} if options.small else {}
    network = scale.scale_network(rows.train, **sizes, **place)
    for outputs in ("shared", "separate"):
        asked: dict[str, Any] = {"outputs": outputs, **place}
        scale.warm_up(network, rows, witness=None, **asked)
        asked["num_experts"] = experts
        model, ledger = scale.measured_fit(network, rows, n, **asked)
        where = "cuda reserved" if "cuda reserved" in ledger.held else next(iter(ledger.held))
        peak, parts = scale.peak_of(ledger, where) / 1e9, scale.costs(model, ledger)["stage_seconds"]
        figures.say("million", **{f"{outputs}_s": ledger.total, f"{outputs}_GB": peak})
        figures.say("million", **{f"{outputs}_stages_s": parts})
        figures.say("million", **{f"{outputs}_nll": scale.likelihoods(model, network, rows)})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = ["networks", "cpu", "resnet18", "images", "million"]
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=2_048, help="of the four networks")
    parser.add_argument("--images", type=int, default=100_000, help="of the part of that name")
    parser.add_argument("--network", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--part", nargs="+", default=["networks"], choices=parts)
    parser.add_argument(
        "--small", action="store_true", help="tiny networks and few rows: to see that it runs"
    )
    parser.add_argument("--eager", action="store_true", help="without the traced graph, which takes a while")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    options = parser.parse_args()
    options.rows = min(options.rows, BATCH) if options.small else options.rows
    figures, device = Figures(), torch.device(options.device)
    work = {"cpu": on_a_cpu, "resnet18": resnet18, "images": streamed, "million": million}
    for part in options.part:
        if part == "networks":
            for name in options.network:
                figures.attempt(name, lambda name=name: large_network(figures, name, options))
        else:
            figures.attempt(part, lambda part=part: work[part](figures, options))
    result = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "rows": options.rows,
        "figures": figures.found,
        "errors": figures.errors,
    }
    text = json.dumps(result)
    if options.out is not None:
        options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
