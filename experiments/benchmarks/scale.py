"""How long does an error bar for two million rows take, and how much memory? The last line is JSON.

    python benchmarks/scale.py --device cuda                          # 2,000,000 rows, 512 experts, shared
    python benchmarks/scale.py --device cuda --outputs separate
    python benchmarks/scale.py --rows 200000 --experts 64                      # on a CPU

Rows of the simulated arm train an MLP 21-5x200-7 ReLU for a fixed number of steps (neither is counted), then
`trustgp.fit` makes its error bar, without a witness: division, experts, calibration on other trajectories.
Printed are the seconds and the share of each stage, as the fit's own log tells them; the peak of memory; the
rows that experts hold; the held-out NLL beside network + noise; how far it is from the floor (see floor.py);
and whether the promise for this size is met. `--profile` prints where the time goes by operation, and spoils
the time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from floor import floor, measure_peaks
from torch import Tensor, nn

import trustgp
from trustgp_experiments.core.arm import ArmRows
from trustgp_experiments.core.stage_timer import Ledger
from trustgp_experiments.studies.scale.fits import (
    HELD_ROWS,
    held_rows,
    likelihoods,
    measured_fit,
    scale_network,
    scale_rows,
    warm_up,
)

# By device, rows and experts: the most seconds by `outputs`, and the most bytes where the work is done.
PROMISES: dict[tuple[str, int, int], tuple[dict[str, float], float]] = {
    ("cuda", 2_000_000, 512): ({"shared": 20, "separate": 120}, 12e9),
    ("cpu", 200_000, 64): ({}, 4e9),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--experts", type=int, default=512)
    parser.add_argument("--outputs", default="shared", choices=["shared", "separate", "pseudo"])
    parser.add_argument("--budget", help='of the model; "none": exact experts')
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="experts at a time (default: as trustgp.fit chooses)")
    parser.add_argument("--held", type=int, default=HELD_ROWS, help="rows that validate, and that test")
    parser.add_argument("--steps", type=int, help="of the network's training")
    parser.add_argument("--rows-on-device", action="store_true", help="the rows lie there from the start")
    parser.add_argument(
        "--profile", action="store_true", help="where the time goes; on a CPU, of the first thread"
    )
    parser.add_argument("--log", action="store_true", help="what the fit says, to the standard error stream")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.log:
        logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    device = torch.device(options.device)
    start = time.perf_counter()
    rows = scale_rows(options.rows, seed=options.seed, held=options.held)
    simulating = time.perf_counter() - start
    start = time.perf_counter()
    network = scale_network(rows.train, seed=options.seed, device=options.device, steps=options.steps)
    training = time.perf_counter() - start
    if options.rows_on_device:
        rows = moved(rows, device)
    asked: dict[str, Any] = {"outputs": options.outputs, "seed": options.seed}
    if options.threads is not None:
        asked["executor"] = trustgp.Threads(options.threads)
    warm_up(network, rows, device=options.device, witness=None, **asked)
    asked["budget"] = options.budget
    with profiled(options):
        model, ledger = measured_fit(
            network, rows, options.rows, device=options.device, num_experts=options.experts, **asked
        )
    result = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "rows_seconds": simulating,
        "training_seconds": training,
        **{name: getattr(options, name) for name in ("rows", "outputs", "budget", "seed", "threads")},
        **costs(model, ledger),
        **promised(options, ledger),
        "nll": likelihoods(model, network, rows),
        **from_floor(model, network, options, ledger),
    }
    for name, value in result.items():
        print(f"{name}: {value}")
    text = json.dumps(result)
    if options.out is not None:
        options.out.write_text(text + "\n")
    print(text)


def moved(rows: ArmRows, device: torch.device) -> ArmRows:
    """The rows, there."""

    def pair(part: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return part[0].to(device), part[1].to(device)

    return ArmRows(pair(rows.train), pair(rows.validation), pair(rows.test))


def costs(model: trustgp.UncertaintyModel, ledger: Ledger) -> dict[str, Any]:
    """Time, memory and sizes."""
    held = held_rows(model)
    peaks = {stage: _megabytes(found) for stage, found in ledger.peaks.items()}
    places = ledger.held
    return {
        "fit_seconds": ledger.total,
        "stage_seconds": ledger.seconds,
        "stage_shares": ledger.shares,
        "stage_peak_mb": peaks,
        "peak_mb": _megabytes({place: peak_of(ledger, place) for place in places}),
        "before_mb": _megabytes(places),
        "experts": model.num_experts,
        "experts_failed": len(model.failed),
        "rows_held_by_an_expert": {"least": min(held), "mean": fmean(held), "most": max(held)},
        "model_mb": model.nbytes / 1e6,
    }


def _megabytes(sizes: dict[str, int]) -> dict[str, float]:
    return {place: round(size / 1e6, 1) for place, size in sizes.items()}


def peak_of(ledger: Ledger, place: str) -> int:
    """Bytes there at the peak, with what there was before: the process, the rows, the network."""
    return ledger.held[place] + (ledger.peak(place) or 0)


def promised(options: argparse.Namespace, ledger: Ledger) -> dict[str, Any]:
    """Whether the promise is met; nothing is promised of other sizes, or while the profiler watches."""
    kind = torch.device(options.device).type
    found = PROMISES.get((kind, options.rows, options.experts))
    if found is None or options.profile:
        return {"promise": None}
    seconds, size = found
    place = "cuda reserved" if kind == "cuda" else kind
    met = {"memory": peak_of(ledger, place) <= size} if place in ledger.held else {}
    if options.outputs in seconds:
        met["time"] = ledger.total <= seconds[options.outputs]
    return {"promise": {"seconds": seconds.get(options.outputs), "bytes": size, "met": met}}


def from_floor(
    model: trustgp.UncertaintyModel, network: nn.Module, options: argparse.Namespace, ledger: Ledger
) -> dict[str, Any]:
    """The floor, and how many times as long the fit took."""
    parameters = sum(parameter.numel() for parameter in network.parameters())
    peaks = measure_peaks(torch.device(options.device), trustgp.Threads(options.threads).workers)
    lowest = floor(model, options.rows, parameters, peaks)
    least: Any = lowest["seconds"]
    return {"floor": lowest, "times_the_floor": ledger.total / least}


@contextlib.contextmanager
def profiled(options: argparse.Namespace):
    """Torch's profiler around the block, if it is asked for."""
    if not options.profile:
        yield
        return
    cuda = torch.device(options.device).type == "cuda"
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA] if cuda else [kinds.CPU]) as profile:
        yield
    order = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    print(profile.key_averages().table(sort_by=order, row_limit=30), file=sys.stderr)


if __name__ == "__main__":
    main()
