"""How fast is a fit? Ratios from one run on this machine; the last line is JSON.

    python benchmarks/fit.py [--rows 12000] [--quick]

1. One expert, solved from layer factors, against GPyTorch's exact GP on the dense Jacobian rows of the same
   expert and output with 100 Adam steps (extrapolated from 3; making the rows is not counted).
2. A fit with shared outputs against one with separate outputs, on the same rows with the same settings: the
   experts alone (`witness=None`), and with the witness, which both need once.
3. The Gram matrix of 256 rows and 7 outputs from factors against dense Jacobians, both with making them.
4. Peak memory of the shared fit, in a process of its own, beside what the process held before.

The network is 21-5x200-7 ReLU with P = 166,607, trained for two epochs on the simulated arm (or, without
pinocchio, on a random smooth function): the weights do not matter for the times.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import trustgp
from trustgp.data.rows import Rows
from trustgp.experts.expert import Problem, Task, solve_expert
from trustgp.tangents import output_mixes
from trustgp.tangents.network import prepare

EXPERT_ROWS = 737
GRAM_ROWS = 256


def make_problem(rows: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A network and standardised rows, from fixed seeds."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, 21, generator=generator)
    first, second = torch.randn(21, 32, generator=generator), torch.randn(32, 7, generator=generator)
    targets = torch.sin(inputs @ first / 4) @ second / 4
    targets = targets + 0.05 * torch.randn(targets.shape, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Linear(21, 200), nn.ReLU()]
        for _ in range(4):
            layers += [nn.Linear(200, 200), nn.ReLU()]
        network = nn.Sequential(*layers, nn.Linear(200, 7))
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    for _ in range(2):
        for index in torch.randperm(rows, generator=generator).split(128):
            loss = (network(inputs[index]) - targets[index]).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return network.eval(), inputs, targets


def timed(function: Callable[[], object], repeat: int = 1) -> float:
    """Seconds of the fastest of `repeat` calls."""
    best = math.inf
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


def dense_rows(network: nn.Module, inputs: Tensor, output: int) -> Tensor:
    """Gradient rows of one output, [n, P]."""
    mix = torch.eye(7, dtype=torch.float64)[output : output + 1]
    prepared = prepare(network, "all", None)
    with torch.no_grad():
        return trustgp.JacobianRows().bind(prepared, mix, inputs, inputs)(inputs).rows


def expert_seconds(network: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """One expert and one output from factors: features, evidence, leave-one-out, posterior."""
    prepared = prepare(network, "all", None)
    mix, served = output_mixes("separate", 7, torch.Generator())[0]
    tangents = trustgp.LayerFactors().bind(prepared, mix, inputs[:2], targets[:2])
    with torch.no_grad():
        residual = (targets - prepared.matrix(inputs)).double()
    problem = Problem(Rows(inputs, targets), tangents, served, residual, None)
    every = torch.arange(len(inputs))
    task = Task(every, every[:0], 0)
    return timed(lambda: solve_expert(problem, task), repeat=3)


def gpytorch_step_seconds(network: nn.Module, inputs: Tensor, targets: Tensor, steps: int = 3) -> float:
    """Mean seconds of an Adam step of GPyTorch's exact GP on the dense rows of the same expert."""
    import gpytorch

    class ExactGP(gpytorch.models.ExactGP):
        def __init__(self, rows: Tensor, target: Tensor, likelihood) -> None:
            super().__init__(rows, target, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.LinearKernel())

        def forward(self, rows: Tensor):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(rows), self.covar_module(rows))

    rows, target = dense_rows(network, inputs, 0), targets[:, 0]
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = ExactGP(rows, target, likelihood).train()
    likelihood.train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimiser = torch.optim.Adam(model.parameters(), 0.05)

    def step() -> None:
        optimiser.zero_grad()
        loss = -objective(model(rows), target)
        assert isinstance(loss, Tensor)
        loss.backward()
        optimiser.step()

    return timed(lambda: [step() for _ in range(steps)]) / steps


def gram_seconds(network: nn.Module, inputs: Tensor) -> tuple[float, float]:
    """Kernel of GRAM_ROWS rows and 7 outputs: from factors, and through dense Jacobians."""
    prepared = prepare(network, "all", None)
    mix, _ = output_mixes("shared", 7, torch.Generator())[0]
    rows = inputs[:GRAM_ROWS]
    factors = trustgp.LayerFactors().bind(prepared, mix, rows[:2], rows[:2])
    dense = trustgp.JacobianRows().bind(prepared, mix, rows[:2], rows[:2])

    def gram(tangents) -> None:
        with torch.no_grad():
            features = tangents(rows)
            features.gram(features)

    return timed(lambda: gram(factors), repeat=3), timed(lambda: gram(dense))


def fit_seconds(network: nn.Module, inputs: Tensor, targets: Tensor, outputs: str, **options) -> float:
    rows = inputs, targets
    return timed(lambda: trustgp.fit(network, rows, outputs=outputs, progress=False, **options))


def peak_bytes(rows: int) -> int:
    """Peak memory of a shared fit beyond what the process held before, measured in its own process."""
    command = [sys.executable, __file__, "--rows", str(rows), "--measure-peak"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def measure_peak(rows: int) -> None:
    network, inputs, targets = make_problem(rows)
    trustgp.fit(network, (inputs[:64], targets[:64]), num_experts=2, progress=False)  # load libraries
    before = _status_bytes("VmRSS")
    trustgp.fit(network, (inputs, targets), progress=False)
    print(_status_bytes("VmHWM") - before)


def _status_bytes(name: str) -> int:
    """A line of /proc/self/status (Linux); getrusage would begin at the parent's peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {name}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--quick", action="store_true", help="few rows, no GPyTorch: to see that it runs")
    parser.add_argument("--measure-peak", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    rows = 1_500 if arguments.quick else arguments.rows
    if arguments.measure_peak:
        measure_peak(arguments.rows)
        return
    network, inputs, targets = make_problem(rows)
    result: dict[str, object] = {"rows": rows, "torch": torch.__version__, "threads": torch.get_num_threads()}
    alone = [
        fit_seconds(network, inputs, targets, mode, witness=None) for mode in ("shared", "separate", "shared")
    ]
    shared, separate = (alone[0] + alone[2]) / 2, alone[1]  # before and after: the machine may drift
    print(f"experts: shared {shared:.1f} s, separate {separate:.1f} s: {separate / shared:.1f} times")
    whole, whole_separate = (fit_seconds(network, inputs, targets, mode) for mode in ("shared", "separate"))
    print(f"with the witness: shared {whole:.1f} s, separate {whole_separate:.1f} s: "
          f"{whole_separate / whole:.1f} times")  # fmt: skip
    factored, dense = gram_seconds(network, inputs)
    print(f"Gram of {GRAM_ROWS} rows: {factored:.3f} s, dense {dense:.2f} s: {dense / factored:.0f} times")
    peak = peak_bytes(rows)
    print(f"peak memory of the shared fit: {peak / 2**20:.0f} MiB")
    result |= {"separate_over_shared": separate / shared, "dense_over_factored_gram": dense / factored}
    result |= {
        "with_witness_separate_over_shared": whole_separate / whole,
        "with_witness_over_alone": whole / shared,
    }
    result |= {"shared_seconds": shared, "peak_mib": peak / 2**20}
    if not arguments.quick:
        expert = expert_seconds(network, inputs[:EXPERT_ROWS], targets[:EXPERT_ROWS])
        step = gpytorch_step_seconds(network, inputs[:EXPERT_ROWS], targets[:EXPERT_ROWS])
        print(f"expert of {EXPERT_ROWS} rows: {expert:.2f} s; GPyTorch {step:.1f} s a step")
        result["gpytorch_100_steps_over_expert"] = 100 * step / expert
    print(json.dumps(result))


if __name__ == "__main__":
    main()
