"""Cost of a fit and a prediction relative to networks, eager, recorded or five. The last line is JSON.

    python experiments/benchmarks/speed.py [--rows 400 3900] [--device cuda] [--small]

MLPs 8-64-60-2 and 21-5x200-7 ReLU, with smooth made-up targets. A fit is given in seconds of CPU time and of
the clock, the first in the process separately. A prediction of 1, 64, 256 and 4,096 rows is relative to the
eager network, the recorded one (a CUDA graph on a GPU; elsewhere its operations without its Python code) and
five recorded ones; medians, after warming up, with one thread and with all. On a CPU the exported model is
relative to five exported networks, too, in onnxruntime with one thread.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import trustgp
from trustgp_experiments.core.benchmark import print_figures
from trustgp_experiments.peers import mlp, train
from trustgp_experiments.studies.runtime.calls import export_network, onnx_session
from trustgp_experiments.training.train import now, record_graph

NETWORKS = {400: [8, 64, 60, 2], 3_900: [21, *[200] * 5, 7]}  # by the usual number of training rows
BATCHES, MEMBERS = (1, 64, 256, 4_096), 5
EXPORTED = (1, 256)  # rows of calls of onnxruntime


def arm(rows: int, widths: list[int], epochs: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A trained network, and its rows."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, widths[0], generator=generator)
    weights = torch.randn(widths[0], widths[-1], generator=generator) / widths[0] ** 0.5
    targets = (inputs @ weights).sin() + 0.05 * torch.randn(rows, widths[-1], generator=generator)
    return train(mlp(widths), inputs, targets, epochs=epochs, learning_rate=3e-3), inputs, targets


def recorded(network: nn.Module, given: Tensor) -> Callable[[], Any]:
    """Function that runs the network's operations on these rows, without its Python code."""
    if not given.is_cuda:
        graph = make_fx(network)(given)
        return lambda: graph(given)
    place = given.clone()
    graph, output = record_graph(lambda: network(place), given.device)

    def play() -> Tensor:
        place.copy_(given)
        graph.replay()
        return output.clone()

    return play


def milliseconds(call: Callable[[], Any], device: torch.device, repeat: int) -> float:
    """Median time of `repeat` calls, after five to warm up, as many as a recording takes."""
    times = []
    for _ in range(5 + repeat):
        began = now(device)
        call()
        times.append(1e3 * (now(device) - began))
    return median(times[5:])


@torch.no_grad()
def predictions(model: Any, network: nn.Module, inputs: Tensor, repeat: int) -> dict[str, Any]:
    """Time of `predict` and its ratios to the network's, by batch size."""
    table: dict[str, Any] = {}
    for batch in BATCHES:
        given = inputs[torch.arange(batch) % len(inputs)]
        one = recorded(network, given)
        calls = {"predict": lambda given=given: model.predict(given), "recorded": one}
        calls |= {
            "eager": lambda given=given: network(given),
            "five": lambda one=one: [one() for _ in range(MEMBERS)],
        }
        ms = {name: milliseconds(call, inputs.device, repeat) for name, call in calls.items()}
        ratios = {
            f"over {name}": round(ms["predict"] / ms[name], 2) for name in ("eager", "recorded", "five")
        }
        table[str(batch)] = {"ms": round(ms["predict"], 3), **ratios}
    return table


def exported(model: Any, network: nn.Module, inputs: Tensor, repeat: int) -> dict[str, Any]:
    """Time of the exported model and its ratio to five exported networks, by batch size."""
    table, device = {}, torch.device("cpu")
    with TemporaryDirectory() as folder:
        files = [Path(folder) / f"{name}.onnx" for name in ("model", "network")]
        trustgp.export_onnx(model, files[0], inputs[:2])
        export_network(network, files[1], inputs[:2])
        sessions = [onnx_session(file, threads=1) for file in files]
        for rows in EXPORTED:
            given = inputs[torch.arange(rows) % len(inputs)].numpy()
            calls = [partial(one.run, None, {one.get_inputs()[0].name: given}) for one in sessions]
            ours, alone = (milliseconds(call, device, 10 * repeat) for call in calls)
            table[str(rows)] = {"ms": round(ours, 4), "over five": round(ours / (MEMBERS * alone), 2)}
    return table


def fits(network: nn.Module, rows: tuple[Tensor, Tensor], repeat: int) -> tuple[Any, dict[str, Any]]:
    """The model, and the seconds of the first fit and the median of the next ones."""
    times, model = [], None
    for _ in range(1 + repeat):
        cpu, wall = time.process_time(), now(rows[0].device)
        model = trustgp.fit(network, rows, progress=False)
        times.append((time.process_time() - cpu, now(rows[0].device) - wall))
    names = ("cpu s", "wall s")
    first, usual = times[0], [median(column) for column in zip(*times[1:], strict=True)]
    return model, {
        k: {n: round(s, 3) for n, s in zip(names, v, strict=True)}
        for k, v in (("first", first), ("fit", usual))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--small", action="store_true", help="few rows and calls: does it run?")
    options = parser.parse_args()
    device, every = torch.device(options.device), torch.get_num_threads()
    figures: dict[str, Any] = {}
    warnings.simplefilter("ignore")
    for count in options.rows:
        torch.set_num_threads(1)
        network, *rows = arm(60 if options.small else count, NETWORKS[count], 2 if options.small else 50)
        network, inputs, targets = network.to(device), *(part.to(device) for part in rows)
        model, own = fits(network, (inputs, targets), 1 if options.small else 3)
        for threads in sorted({1, every}):
            torch.set_num_threads(threads)
            own[f"threads {threads}"] = predictions(model, network, inputs, 2 if options.small else 50)
        if device.type == "cpu":
            own["onnxruntime"] = exported(model, network, inputs, 2 if options.small else 50)
        figures[str(count)] = own
        print(count, own)
    print_figures(benchmark="speed", device=options.device, torch=torch.__version__, figures=figures)


if __name__ == "__main__":
    main()
