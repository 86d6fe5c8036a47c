"""Trained on one arm, tested on others: whose error bar holds? The last line is JSON.

    TRUSTGP_DATA=... python benchmarks/other_arms.py [--seeds 0 1 2] [--rows 2000] [--cache DIR]

Protocol, written before any figure. Arms, splits, network and scaling are those of `trustgp study transfer`:
sarcos, barrett, kuka and kuka_sim train, each split at random and by motions that were not seen; every other
recording (sarcos_sim and barrett_sim, too) is a case, 20 in all for each split. Of each at most `rows` rows,
evenly spread, are scored. One network serves all methods. NLL is that of the method's own distribution, the
mean over rows and torques. The peers (Laplace GLM, the NTK GP on a subset, a GP on the inputs) get a scale
and Student-t tails for each output, fitted on the validation rows, and count with whichever of the two forms,
with or without, has the lower mean NLL on these. trustgp is fitted with the same validation rows. A case is
won where the mean over the seeds is lower. With a cache, what is done is kept, and taken up again.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file
from torch import nn

from trustgp.likelihoods.prediction import Prediction
from trustgp_experiments.core.arm import evenly
from trustgp_experiments.core.cases import IN_DOMAIN, Case
from trustgp_experiments.peers import Bundle, fit_methods, train_many
from trustgp_experiments.peers.tails import Tailed
from trustgp_experiments.studies.transfer.study import FULL, SPLITS, TRAINED, make_case

PEERS = ("Laplace GLM", "NTK GP, subset", "GP on inputs, no network")
OURS = ("trustgp", "trustgp corrected")
MOST = 100.0  # nats that no case may cost


def trained_network(
    case: Case, seed: int, *, device: str, epochs: int | None, file: Path | None
) -> nn.Module:
    """The first network of the study's bundle, from its file if it is there."""
    fresh = FULL.make(seed=100 * seed)
    if file is not None and file.exists():
        fresh.load_state_dict(load_file(file))
        return fresh.eval().to(device)
    options = {"epochs": epochs or FULL.epochs, "batch_size": FULL.batch_size}
    options |= {"learning_rate": FULL.learning_rate, "device": device}
    network = train_many([fresh], *case.train, seeds=[100 * seed], **options)[0]
    if file is not None:
        save_file(network.state_dict(), file)
    return network


def nll(predict: Callable[[Any], Prediction], rows: tuple[Any, Any], most: int) -> float:
    some = evenly(len(rows[0]), most)
    said = predict(rows[0][some])
    return float(-said.log_prob(rows[1][some].to(said.mean.device)).mean())


def run_one(
    trained: str, split: str, seed: int, *, most: int, device: str, epochs: int | None, file: Path | None
) -> dict[str, dict[str, float]]:
    """NLL of every method on every recording; those in the file are not done again."""
    found: dict[str, dict[str, float]] = json.loads(file.read_text()) if file and file.exists() else {}
    wanted = [name for name in (*PEERS, *OURS) if name not in found]
    if not wanted:
        return found
    case = make_case(trained, split, seed=seed, quick=epochs is not None)
    network = trained_network(
        case, seed, device=device, epochs=epochs, file=file and file.with_suffix(".safetensors")
    )
    bundle = Bundle(network, [], None, case.train, case.validation, seed, device)
    for method in fit_methods(bundle, wanted):
        predict = method.predict
        if method.name in PEERS:
            forms = [predict, Tailed.fit(method, case.validation).predict]
            predict = min(forms, key=lambda form: nll(form, case.validation, len(case.validation[0])))
        found[method.name] = {name: nll(predict, rows, most) for name, rows in case.tests.items()}
        if file:
            file.write_text(json.dumps(found))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", type=int, default=2000, help="of each recording that are scored")
    parser.add_argument("--splits", nargs="+", default=list(SPLITS), choices=list(SPLITS))
    parser.add_argument("--arms", nargs="+", default=list(TRAINED), choices=TRAINED)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="few rows, one epoch: does it run?")
    arguments = parser.parse_args()
    console, runs = Console(width=120), {}
    if arguments.cache:
        arguments.cache.mkdir(parents=True, exist_ok=True)
    for seed in arguments.seeds:
        for trained in arguments.arms:
            for split in arguments.splits:
                name = f"{trained} {split} {seed}"
                console.print(name)
                file = arguments.cache and arguments.cache / f"{name.replace(' ', '-')}.json"
                options = {"most": arguments.rows, "device": arguments.device, "file": file}
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)
                    epochs = 1 if arguments.quick else None
                    runs[name] = run_one(trained, split, seed, epochs=epochs, **options)
    print(json.dumps({"torch": torch.__version__, "runs": runs, "won": show(console, runs, arguments)}))


def show(console: Console, runs: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """A table of the mean NLL of each case, and how many cases each of our forms has won."""
    result = {}
    for split in arguments.splits:
        shown = Table("trained", "tested", *PEERS, *OURS, title=f"{split}, {len(arguments.seeds)} seeds")
        means: dict[str, list[float]] = {name: [] for name in (*PEERS, *OURS)}
        for trained in arguments.arms:
            each = [runs[f"{trained} {split} {seed}"] for seed in arguments.seeds]
            for tested in each[0][OURS[0]]:
                row = {name: sum(run[name][tested] for run in each) / len(each) for name in means}
                shown.add_row(trained, tested, *(f"{value:.2f}" for value in row.values()))
                if tested != IN_DOMAIN:
                    for name, value in row.items():
                        means[name].append(value)
        console.print(shown)
        result[split] = {
            ours: {
                **{f"against {name}": _wins(means[ours], means[name]) for name in PEERS},
                "cases": len(means[ours]),
                "largest": max(means[ours]),
                f"above {MOST:g}": sum(value > MOST for value in means[ours]),
            }
            for ours in OURS
        }
        console.print(result[split])
    return result


def _wins(ours: list[float], theirs: list[float]) -> int:
    return sum(one < other for one, other in zip(ours, theirs, strict=True))


if __name__ == "__main__":
    main()
