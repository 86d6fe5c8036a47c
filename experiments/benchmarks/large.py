"""Cost of an error bar relative to the network itself, for large networks. The last line is JSON.

    python experiments/benchmarks/large.py --device cuda    # ViT-B/16, BERT-base, ResNet-50, -18, ConvNeXt-T
    python experiments/benchmarks/large.py --device cuda --images 100000    # a stream through ResNet-50
    python experiments/benchmarks/large.py --small --images 80              # does it run?

Networks are Hugging Face's configurations with random weights, in eval mode and float32; rows and labels are
random, from fixed seeds. After a warm-up of both, one run measures each figure relative to the network's own:
a fit to one forward pass over the same rows in batches of 64; `predict` of 64 rows and of one, and of one row
through the traced graph, to a forward pass of the same rows, on a GPU also to a recorded one (a CUDA graph);
and the peak memory to that of a forward and backward pass of the same rows.
"""

import argparse
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import trustgp
from trustgp.data.chunking import chunks, rows_at_once
from trustgp.experts.features import chunk_rows
from trustgp.export.trace.trace import traced
from trustgp_experiments.core.benchmark import print_figures
from trustgp_experiments.core.stage_timer import Ledger, call_peak, stages
from trustgp_experiments.training.train import now, record_graph

BATCH = 64  # rows of a forward pass, and of a prediction
CLASSES = 10
NAMES = ["vit", "bert", "resnet50", "convnext", "resnet18"]
RESNET18: dict[str, Any] = {"hidden_sizes": [64, 128, 256, 512], "depths": [2] * 4, "layer_type": "basic"}
Figures = dict[str, Any]


def hugging_face(name: str, small: bool) -> nn.Module:
    """One of the large networks, or a tiny one of its kind."""
    import transformers as t

    tiny = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    stage = {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]}
    kinds: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "vit": (t.ViTForImageClassification, t.ViTConfig, {**tiny, "image_size": 32}),
        "bert": (t.BertForSequenceClassification, t.BertConfig, {**tiny, "vocab_size": 50}),
        "resnet50": (t.ResNetForImageClassification, t.ResNetConfig, {**stage, "embedding_size": 8}),
        "resnet18": (t.ResNetForImageClassification, partial(t.ResNetConfig, **RESNET18), {}),
        "convnext": (t.ConvNextForImageClassification, t.ConvNextConfig, {**stage, "image_size": 32}),
    }
    make, configure, sizes = kinds[name]
    torch.manual_seed(0)
    return make(configure(num_labels=CLASSES, **(sizes if small else {}))).eval()


def rows_of(name: str, n: int, small: bool) -> tuple[Tensor, Tensor]:
    """Random inputs and labels for one of the networks, on the CPU."""
    generator = torch.Generator().manual_seed(1)
    side = 32 if small else 224
    if name == "bert":
        words, length = (50, 8) if small else (30_000, 64)
        inputs = torch.randint(1, words, (n, length), generator=generator)
    else:
        inputs = torch.randn(n, 3, side, side, generator=generator)
    return inputs, torch.randint(0, CLASSES, (n,), generator=generator)


class FromBytes(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pictures: Tensor) -> Tensor:
        return self.network(pictures.float() / 128 - 1).logits


def picture_batches(n: int, side: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of n pictures in all, as bytes, and their labels."""
    generator = torch.Generator().manual_seed(1)
    pool = torch.randint(0, 256, (BATCH, 3, side, side), generator=generator, dtype=torch.uint8)
    for number, index in enumerate(chunks(n, BATCH)):
        labels = torch.randint(0, CLASSES, (len(index),), generator=generator)
        yield (pool + number % 256)[: len(index)], labels


def seconds(work: Callable[[], Any], device: torch.device, repeat: int = 1, warm: int = 0) -> float:
    """Median time of `repeat` synchronised calls, after `warm` calls that do not count."""
    times = []
    for _ in range(warm + repeat):
        start = now(device)
        work()
        times.append(now(device) - start)
    return median(times[warm:])


def fit_figures(ledger: Ledger, rows: int, alone: float) -> Figures:
    """Time of a fit, absolute and relative to a forward pass over the same rows."""
    return {
        "forward s": alone,
        "fit s": ledger.total,
        "fit over forward": ledger.total / alone,
        "fit rows per s": rows / ledger.total,
        "forward rows per s": rows / alone,
        "fit stages s": {stage: round(value, 3) for stage, value in ledger.seconds.items()},
    }


def large_network(name: str, options: Namespace) -> Figures:
    """Time and memory of a fit and of predictions for one of the networks."""
    device = torch.device(options.device)
    network = hugging_face(name, options.small).to(device)
    inputs, labels = rows_of(name, options.rows, options.small)
    asked: dict[str, Any] = {"likelihood": trustgp.Classification(), "outputs": "pseudo", "progress": False}
    asked["select"] = lambda result: result.logits

    @torch.no_grad()
    def forward() -> None:
        for index in chunks(len(inputs), BATCH):
            network(inputs[index].to(device))

    trustgp.fit(network, (inputs[:128], labels[:128]), **asked)
    alone = seconds(forward, device, warm=1)
    with stages(device) as ledger:
        model = trustgp.fit(network, (inputs, labels), **asked)
    figures = fit_figures(ledger, len(inputs), alone)
    figures |= prediction_figures(model, network, inputs[:BATCH].to(device), options)
    return figures | (memory_figures(model, network, inputs, ledger) if device.type == "cuda" else {})


@torch.no_grad()
def prediction_figures(model: Any, network: nn.Module, rows: Tensor, options: Namespace) -> Figures:
    repeat, warm = (1, 1) if options.small else (50, 5)
    figures: Figures = {}
    calls = {f"predict {BATCH}": (model.predict, rows), "predict 1": (model.predict, rows[:1])}
    for name, (work, given) in {**calls, "traced 1": (traced(model, rows[:1]), rows[:1])}.items():
        times = [seconds(partial(call, given), rows.device, repeat, warm) for call in (network, work)]
        figures |= {f"{name} ms": 1e3 * times[1], f"{name} over forward": times[1] / times[0]}
        if rows.is_cuda:
            graph = record_graph(lambda given=given: network(given).logits, rows.device)[0]
            recorded = seconds(graph.replay, rows.device, repeat, warm)
            figures |= {f"{name} over recorded": times[1] / recorded}
    return figures


def memory_figures(model: Any, network: nn.Module, inputs: Tensor, ledger: Ledger) -> Figures:
    """Peak memory beyond what was allocated before, also relative to a forward and backward pass."""
    device = model.device

    def backward(rows: Tensor) -> None:
        network.requires_grad_(True).zero_grad(set_to_none=True)
        network(rows).logits.sum().backward()
        network.zero_grad(set_to_none=True)

    def passes(n: int) -> int:
        backward(inputs[:1].to(device))
        return call_peak(partial(backward, inputs[:n].to(device)), device) or 0

    rows = inputs[:BATCH].to(device)
    together = min(len(inputs), rows_at_once(inputs, device), chunk_rows(model.mixtures[0].tangents))
    predicting, fit = call_peak(lambda: model.predict(rows), device) or 0, ledger.peak.get("cuda", 0)
    return {
        "predict 64 peak MB": predicting / 1e6,
        "predict peak over forward backward": predicting / passes(len(rows)),
        "fit peak MB": fit / 1e6,
        "fit rows at once": together,
        "fit peak over forward backward": fit / passes(together),
    }


def streamed(options: Namespace) -> Figures:
    device, n, side = torch.device(options.device), options.images, 16 if options.small else 224
    network = FromBytes(hugging_face("resnet50", options.small)).eval().to(device)
    asked: dict[str, Any] = {"likelihood": trustgp.Classification(), "progress": False}
    asked["validation"] = next(picture_batches(BATCH, side))
    trustgp.fit(network, picture_batches(BATCH, side), **asked)

    @torch.no_grad()
    def plain() -> None:
        for pictures, _ in picture_batches(n, side):
            network(pictures.to(device))

    alone = seconds(plain, device)
    with stages(device) as ledger:
        trustgp.fit(network, picture_batches(n, side), **asked)
    return fit_figures(ledger, n, alone)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=2_048, help="of each network")
    parser.add_argument("--images", type=int, help="only a stream of so many pictures through ResNet-50")
    parser.add_argument("--network", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--small", action="store_true", help="tiny networks and few rows: does it run?")
    options = parser.parse_args()
    options.rows = min(options.rows, BATCH) if options.small else options.rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows are split off; vmap takes some operations row by row
        if options.images is None:
            figures = {}
            for name in options.network:
                figures[name] = large_network(name, options)
                print(name, figures[name], flush=True)
        else:
            figures = {"images": streamed(options)}
    device = torch.cuda.get_device_name(options.device) if options.device.startswith("cuda") else "cpu"
    print_figures(device=device, torch=torch.__version__, rows=options.rows, figures=figures)


if __name__ == "__main__":
    main()
