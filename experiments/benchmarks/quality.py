"""How good is the error bar, on real arms? The last line is JSON.

    TRUSTGP_DATA=... python benchmarks/quality.py [--seeds 3] [--device cuda] [--cache DIR] [--quick]

Protocol. Network: 21-5x200-7 ReLU, AdamW, one cycle to 3e-3, 100 epochs of batches of 128, trained on the
training rows only; the ensemble has five of them (network 0 is the network of all other methods). Inputs and
targets are standardised by the TRAINING rows' statistics, everywhere. NLL is per torque, the mean over all
test rows and all 7 torques, in standardised units: of the method's own distribution, and of the Gaussian with
the same mean and variance. The network and the ensemble stand as they are, and with Student-t tails and a
scale for each output that are fitted on the validation rows (`tails`). OOD is every row of the other arm's
recording. A seed decides the split (validation blocks, for the split by time) and the five networks. The
recipe is the one with the lowest validation error of a single network among ten that were tried;
docs/quality.md lists them all.

* sarcos_random: SARCOS, both parts merged, duplicates dropped; 20 % test, 10 % validation, at random.
* barrett_recorded: the recording's own test part; 10 % of its training part is validation.
* sarcos_blocks: SARCOS in 30 blocks of time; every fifth is test, four others are validation.
* kuka_random, kuka_sim_random: KUKA LWR4+, real and simulated; 20 % test, 10 % validation, at random.

Methods: network + constant noise (validation), ensemble of 5 + noise (validation), and trustgp: `validation`
(a, b, c fitted on the validation rows), `default` (no validation rows), `groups` (blocks of time as groups,
no validation rows; for the split by blocks), each about the network's own output and corrected; and `paper`,
the paper's own form (`trustgp.paper`) with the exact kernel.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import trustgp
from trustgp.likelihoods.prediction import Prediction
from trustgp.metrics import gaussian_nll, mse
from trustgp_experiments.datasets import load, recorded_split, split_random, standardise
from trustgp_experiments.datasets.splits import block_labels, split_blocks
from trustgp_experiments.peers import ConstantNoise, Ensemble, mlp, train_many
from trustgp_experiments.peers.tails import Tailed

CASES = ("sarcos_random", "barrett_recorded", "sarcos_blocks", "kuka_random", "kuka_sim_random")
MEMBERS = 5
BLOCKS = 30


@dataclass(frozen=True)
class Case:
    """Standardised float32 rows: pairs of inputs [n, 21] and targets [n, 7]."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    ood: tuple[Tensor, Tensor]
    groups: Tensor | None


def make_case(name: str, seed: int) -> Case:
    arm = name.rpartition("_")[0]
    other = "barrett" if arm == "sarcos" else "sarcos"
    recording, foreign = load(arm), load(other)
    n = len(recording.inputs)
    split = {
        "random": lambda: split_random(n, test=0.2, validation=0.1, seed=seed),
        "recorded": lambda: recorded_split(recording, validation=0.1, seed=seed),
        "blocks": lambda: split_blocks(n, blocks=BLOCKS, seed=seed),
    }[name.rpartition("_")[2]]()
    scaler = standardise(recording.inputs[split.train], recording.targets[split.train])

    def rows(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return scaler.inputs(inputs).float(), scaler.targets(targets).float()

    parts = [
        rows(recording.inputs[i], recording.targets[i]) for i in (split.train, split.validation, split.test)
    ]
    groups = block_labels(n, blocks=BLOCKS)[split.train] if name == "sarcos_blocks" else None
    return Case(*parts, rows(foreign.inputs, foreign.targets), groups)


def networks_for(
    case: Case, name: str, seed: int, *, epochs: int, learning_rate: float, device: str, cache: Path | None
) -> list[nn.Module]:
    """Five trained networks, from the cache if they are there."""
    networks = [mlp([21, *[200] * 5, 7], seed=100 * seed + i) for i in range(MEMBERS)]
    file = None if cache is None else cache / f"{name}-{seed}-{epochs}-{learning_rate:g}.safetensors"
    if file is not None and file.exists():
        state = load_file(file)
        for i, network in enumerate(networks):
            prefix = f"{i}."
            found = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
            network.load_state_dict(found)
        return [network.eval() for network in networks]
    seeds = [100 * seed + i for i in range(MEMBERS)]
    trained = train_many(
        networks,
        *case.train,
        epochs=epochs,
        learning_rate=learning_rate,
        seeds=seeds,
        device=device,
        progress=True,
    )
    trained = [network.cpu() for network in trained]
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({f"{i}.{k}": v for i, n in enumerate(trained) for k, v in n.state_dict().items()}, file)
    return trained


def glitch(prediction: Prediction, targets: Tensor) -> float:
    """By how much the mean NLL grows when all torques of one test row jump by 6: the largest of 50 rows."""
    targets = targets.to(prediction.mean.device)
    jump = 6.0 * (1 - 2 * torch.randint(2, targets.shape, generator=torch.Generator().manual_seed(0)))
    more = prediction.log_prob(targets) - prediction.log_prob(targets + jump.to(targets))
    rows = torch.randperm(len(targets), generator=torch.Generator().manual_seed(1))[:50]
    return float(more.sum(dim=1)[rows.to(more.device)].max() / more.numel())


def score(inside: Prediction, outside: Prediction, case: Case) -> dict[str, float]:
    def nll(prediction: Prediction, targets: Tensor) -> float:
        return float(-prediction.log_prob(targets.to(prediction.mean.device)).mean())

    def gaussian(prediction: Prediction, targets: Tensor) -> float:
        mean, variance = prediction.mean.cpu().double(), prediction.variance.cpu().double()
        return float(gaussian_nll(mean, variance, targets.double()).mean())

    targets = case.test[1]
    lower, upper = (end.cpu() for end in inside.interval(0.95))
    return {
        "nll": nll(inside, targets),
        "gaussian_nll": gaussian(inside, targets),
        "ood_nll": nll(outside, case.ood[1]),
        "mse": float(mse(inside.mean.cpu(), targets)),
        "coverage": float(((lower <= targets) & (targets <= upper)).double().mean()),
        "glitch": glitch(inside, targets),
    }


def run_case(
    name: str,
    seed: int,
    *,
    epochs: int,
    learning_rate: float,
    device: str,
    cache: Path | None,
    quick: bool,
    paper: bool,
) -> dict:
    case = make_case(name, seed)
    if quick:
        case = Case(*(tuple(t[:800] for t in p) for p in (case.train, case.validation, case.test, case.ood)),
                    None if case.groups is None else case.groups[:800])  # fmt: skip
    networks = networks_for(
        case, name, seed, epochs=epochs, learning_rate=learning_rate, device=device, cache=cache
    )
    results: dict[str, dict[str, float]] = {}

    def add(method: str, predict) -> None:
        results[method] = score(predict(case.test[0]), predict(case.ood[0]), case)

    for label, peer in (
        ("network + noise", ConstantNoise.fit(networks[0], case.validation)),
        ("ensemble of 5", Ensemble.fit(networks, case.validation)),
    ):
        add(label, peer.predict)
        add(f"{label}, tails", Tailed.fit(peer, case.validation).predict)
    settings: dict[str, dict] = {"validation": {"validation": case.validation}, "default": {}}
    if case.groups is not None:
        settings["groups"] = {"groups": case.groups}
    for label, options in settings.items():
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "looks like a time series": it is one, by intent
            model = trustgp.fit(networks[0], case.train, device=device, seed=seed, **options)
        seconds = time.perf_counter() - start
        inside, outside = model.predict(case.test[0]), model.predict(case.ood[0])
        results[f"trustgp {label}"] = {**score(inside, outside, case), "fit_seconds": seconds}
        results[f"trustgp {label} corrected"] = score(inside.corrected, outside.corrected, case)
    if paper:
        add("paper", trustgp.paper(networks[0], case.train, pruning=None, device=device, seed=seed).predict)
    return results


def summary(runs: list[dict]) -> dict[str, dict[str, float]]:
    """Mean over seeds, and the spread (standard deviation) of the NLL."""
    table: dict[str, dict[str, float]] = {}
    for method in runs[0]:
        keys = runs[0][method]
        table[method] = {key: sum(run[method][key] for run in runs) / len(runs) for key in keys}
        values = torch.tensor([run[method]["nll"] for run in runs], dtype=torch.float64)
        table[method]["nll_spread"] = float(values.std(correction=0))
    return table


def show(console: Console, name: str, table: dict[str, dict[str, float]], seeds: int) -> None:
    shown = Table(title=f"{name}, mean of {seeds} seeds")
    for column in ("method", "NLL", "spread", "Gaussian", "OOD NLL", "mse", "coverage 95 %", "fit s"):
        shown.add_column(column, justify="left" if column == "method" else "right")
    for method, row in table.items():
        seconds = f"{row['fit_seconds']:.1f}" if "fit_seconds" in row else ""
        figures = [
            f"{row['nll']:.3f}",
            f"{row['nll_spread']:.3f}",
            f"{row['gaussian_nll']:.3f}",
            f"{row['ood_nll']:.2f}",
            f"{row['mse']:.5f}",
        ]
        shown.add_row(method, *figures, f"{100 * row['coverage']:.1f} %", seconds)
    console.print(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="see docs/quality.md")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=Path, help="a folder for the trained networks")
    parser.add_argument(
        "--paper", action=argparse.BooleanOptionalAction, default=True, help="its own form: minutes on a CPU"
    )
    parser.add_argument("--quick", action="store_true", help="800 rows, 3 epochs: to see that it runs")
    arguments = parser.parse_args()
    console, result = Console(width=120), {}
    epochs = 3 if arguments.quick else 100
    for name in arguments.cases:
        runs = [
            run_case(
                name,
                seed,
                epochs=epochs,
                learning_rate=arguments.learning_rate,
                device=arguments.device,
                cache=arguments.cache,
                quick=arguments.quick,
                paper=arguments.paper,
            )
            for seed in range(arguments.seeds)
        ]
        result[name] = summary(runs)
        show(console, name, result[name], arguments.seeds)
    provenance = {
        "seeds": arguments.seeds,
        "epochs": epochs,
        "learning_rate": arguments.learning_rate,
        "torch": torch.__version__,
        "device": arguments.device,
    }
    print(json.dumps({**provenance, "cases": result}))


if __name__ == "__main__":
    main()
