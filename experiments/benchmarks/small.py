"""How good is a small model of a real arm? The last line is JSON.

    TRUSTGP_DATA=... python benchmarks/small.py [--budget "4 MiB" "8 MiB"] [--runtime onnx] [--cache DIR]

Protocol, that of `trustgp study transfer` on SARCOS: both parts of the recording merged, duplicates dropped,
20 % of the rows test and 10 % validate, at random. Inputs and targets are standardised by the TRAINING rows'
statistics. Five networks, 21-5x200-7 ReLU, AdamW, one cycle to 3e-3, 100 epochs of batches of 128; network 0
is that of all other methods. NLL is per torque, in standardised units.

A model is fitted without a limit. `trustgp.tune` makes smaller forms of it, calibrates each on one half of
the validation rows and scores it on the other (the table below); of those within the largest budget that tell
novel rows, the one with the best corrected NLL is chosen and calibrated on all validation rows. Then, once,
the test rows: the ensemble of 5, the model without a limit, the chosen one, and `fit(..., budget=...)` for
each budget, which chooses sketches, experts and directions before it fits. AUROC tells the test rows from the
same with inputs times two, and from every tenth row of the Barrett arm's recording, by the standard
deviation, which all have; and the former by the novelty. Times are thread times of one row, one thread, over
five forward passes, in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import trustgp
from trustgp.likelihoods.prediction import Prediction
from trustgp.metrics import auroc, gaussian_nll, mse
from trustgp_experiments.core.cases import IN_DOMAIN, Case
from trustgp_experiments.core.recipes import MEMBERS, NetworkRecipe
from trustgp_experiments.peers import Ensemble, train_many
from trustgp_experiments.studies.transfer.study import FULL, QUICK, make_case


def networks_for(case: Case, recipe: NetworkRecipe, seed: int, cache: Path | None) -> list[nn.Module]:
    """Five trained networks, from the cache if they are there."""
    seeds = [100 * seed + member for member in range(MEMBERS)]
    networks = [recipe.make(seed=number) for number in seeds]
    file = None if cache is None else cache / f"small-{seed}-{recipe.epochs}.safetensors"
    if file is not None and file.exists():
        state = load_file(file)
        for i, network in enumerate(networks):
            own = {k.removeprefix(f"{i}."): v for k, v in state.items() if k.startswith(f"{i}.")}
            network.load_state_dict(own)
        return [network.eval() for network in networks]
    options = {
        "epochs": recipe.epochs,
        "batch_size": recipe.batch_size,
        "learning_rate": recipe.learning_rate,
    }
    trained = train_many(networks, *case.train, seeds=seeds, device="cpu", progress=True, **options)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({f"{i}.{k}": v for i, n in enumerate(trained) for k, v in n.state_dict().items()}, file)
    return trained


def scores(said: Prediction, twice: Prediction, foreign: Prediction, targets: Tensor) -> dict[str, float]:
    """On the test rows; by std, which every method has."""
    here, far, there = (one.std.double().mean(dim=1) for one in (said, twice, foreign))
    return {
        "nll": float(gaussian_nll(said.mean, said.variance, targets).mean()),
        "mse": float(mse(said.mean, targets)),
        "auroc x 2": float(auroc(here, far)),
        "auroc": float(auroc(here, there)),
    }


def scored(predict: Any, case: Case, *, corrected: bool = True) -> dict[str, dict[str, float]]:
    """The scores of a predictor on the test rows, about its own mean and, where there is one, corrected."""
    inputs, targets = case.tests[IN_DOMAIN]
    every = [predict(rows) for rows in (inputs, 2 * inputs, case.tests["barrett"][0][::10])]
    found = {"own": scores(*every, targets)}
    if corrected:
        found["corrected"] = scores(*(one.corrected for one in every), targets)
        found["own"]["auroc novelty"] = float(auroc(every[0].score, every[1].score))
    return found


@torch.no_grad()
def forward_passes(networks: list[nn.Module], rows: Tensor) -> None:
    """What an ensemble cannot do without."""
    for network in networks:
        network(rows)


def row_times(predictors: dict[str, Any], row: Tensor, calls: int = 200) -> dict[str, float]:
    """Median thread time of one row, over that of the first; they take turns."""
    spent: dict[str, list[float]] = {name: [] for name in predictors}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(calls):
        for name, predict in predictors.items():
            start = time.thread_time()
            predict(row)
            spent[name].append(time.thread_time() - start)
    torch.set_num_threads(threads)
    found = {name: statistics.median(values) for name, values in spent.items()}
    return {name: value / next(iter(found.values())) for name, value in found.items()}


def fitted(
    network: nn.Module, case: Case, seed: int, **options: Any
) -> tuple[trustgp.UncertaintyModel, float]:
    """A model, and the seconds of its fit."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = trustgp.fit(network, case.train, validation=case.validation, seed=seed, **options)
    return model, time.perf_counter() - start


def show(console: Console, tests: dict[str, dict[str, Any]]) -> None:
    """The test rows."""
    shown = Table(title="Test rows, scored once", title_justify="left")
    columns = (
        "method",
        "memory, MiB",
        "one row",
        "NLL",
        "corrected",
        "mse",
        "corrected",
        "AUROC x 2",
        "Barrett",
    )
    for column in columns:
        shown.add_column(column, justify="left" if column == "method" else "right")
    for name, found in tests.items():
        own, corrected = found["own"], found.get("corrected")
        size = f"{found['nbytes'] / 2**20:.1f}"
        likelihoods = (f"{own['nll']:.3f}", "" if corrected is None else f"{corrected['nll']:.3f}")
        errors = (f"{own['mse']:.5f}", "" if corrected is None else f"{corrected['mse']:.5f}")
        novelty = f"{own['auroc novelty']:.4f}" if corrected else ""
        novel = (f"{own['auroc x 2']:.4f}", novelty, f"{own['auroc']:.4f}")
        shown.add_row(name, size, f"{found['row over ensemble']:.2f}", *likelihoods, *errors, *novel)
    console.print(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", nargs="+", default=["2 MiB", "4 MiB", "8 MiB", "16 MiB"])
    parser.add_argument("--runtime", default="eager", choices=("eager", "onnx", "compiled"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", type=int, default=30, help="predictions that are timed, of each form")
    parser.add_argument("--cache", type=Path, help="a folder for the trained networks")
    parser.add_argument("--figure", type=Path, help="where to draw the frontier")
    parser.add_argument("--quick", action="store_true", help="few rows, small networks: to see that it runs")
    options = parser.parse_args()
    console = Console(width=150)
    case = make_case("sarcos", "random", seed=options.seed, quick=options.quick)
    recipe = QUICK if options.quick else FULL
    networks = networks_for(case, recipe, options.seed, options.cache)
    whole, seconds = fitted(networks[0], case, options.seed)
    start = time.perf_counter()
    asked = {"budget": options.budget[-1], "runtime": options.runtime}
    tuning = trustgp.tune(whole, case.validation, by="corrected", calls=options.calls, **asked)
    tuned_seconds = time.perf_counter() - start
    console.print(tuning)
    if options.figure is not None:
        tuning.plot(options.figure)
    models, times = {"no limit": whole, "tuned": tuning.best}, {}
    for size in options.budget:
        within = f"fit within {size}"
        models[within], times[within] = fitted(
            networks[0], case, options.seed, budget=size, runtime=options.runtime
        )
    ensemble = Ensemble.fit(networks, case.validation)
    parameters = sum(p.numel() * p.element_size() for p in networks[0].parameters())
    tests = {"ensemble of 5": {"nbytes": 4 * parameters, **scored(ensemble.predict, case, corrected=False)}}
    tests |= {name: {"nbytes": one.nbytes, **scored(one.predict, case)} for name, one in models.items()}
    calls = {"ensemble of 5": partial(forward_passes, networks)}
    calls |= {name: one.predict for name, one in models.items()}
    for name, ratio in row_times(calls, case.tests[IN_DOMAIN][0][:1]).items():
        tests[name]["row over ensemble"] = ratio
    show(console, tests)
    result = {
        "budget": options.budget,
        "runtime": options.runtime,
        "seed": options.seed,
        "quick": options.quick,
        "rows": case.sizes,
        "network": recipe.words(),
        "chosen": tuning.chosen,
        "fit_seconds": seconds,
        "tune_seconds": tuned_seconds,
        "bounded_fit_seconds": times,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "frontier": [vars(row) for row in tuning.table],
        "test": tests,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
