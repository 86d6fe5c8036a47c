"""Calibration of labels, compared with a temperature for each label. The last line is JSON.

    python experiments/benchmarks/labels.py [--seeds 5] [--small]

Generated rows with five or twenty labels, rare and common ones, and networks trained for few and for many
steps. Compared with `likelihood="multilabel"`: the network itself, one temperature for all labels, one each,
all fitted to the same validation rows. Reported are NLL and calibration error on other rows, means over the
seeds, and the difference from a temperature for each label with its standard error.
"""

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

import trustgp
from trustgp.metrics import label_calibration_error, label_nll
from trustgp_experiments.core.benchmark import print_figures

INPUTS, HIDDEN, TEST_ROWS = 12, 24, 8000
CASES = ((5, 2000, 400), (20, 2000, 100), (20, 2000, 400), (20, 2000, 1500))  # labels, rows, training steps
VALIDATION_ROWS = (100, 300, 1000)
Draw = Callable[[int, int], tuple[Tensor, Tensor]]


def rows_of(labels: int, seed: int) -> Draw:
    """Function that draws n rows and their labels, 0 or 1, from one random function."""
    generator = torch.Generator().manual_seed(seed)
    inner = torch.randn(INPUTS, HIDDEN, generator=generator) * 1.5 / INPUTS**0.5
    outer = torch.randn(HIDDEN, labels, generator=generator) * 5.0 / HIDDEN**0.5
    offset = -0.5 - 3.0 * torch.rand(labels, generator=generator)

    def draw(n: int, part: int) -> tuple[Tensor, Tensor]:
        drawn = torch.Generator().manual_seed(10 * seed + part)
        x = torch.randn(n, INPUTS, generator=drawn)
        return x, (
            torch.rand(n, labels, generator=drawn) < (torch.tanh(x @ inner) @ outer + offset).sigmoid()
        )

    return draw


def trained(rows: tuple[Tensor, Tensor], steps: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Linear(INPUTS, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(128, rows[1].shape[1]))
    optimiser = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(steps):
        batch = torch.randint(0, len(rows[0]), (256,))
        optimiser.zero_grad()
        cross_entropy(network(rows[0][batch]), rows[1][batch].float()).backward()
        optimiser.step()
    return network.eval()


def temperatures(logits: Tensor, targets: Tensor, size: int) -> Tensor:
    """Most likely temperatures, of each label (`size` C) or of all (1)."""
    steps = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([steps], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = cross_entropy(logits / steps.clamp(-6.0, 6.0).exp(), targets.double(), reduction="sum")
        loss.backward()
        return loss

    optimiser.step(closure)
    return steps.detach().clamp(-6.0, 6.0).exp()


def scores_of(case: tuple[int, int, int], validation_rows: int, seed: int) -> dict[str, list[float]]:
    """NLL and calibration error of each method."""
    labels, rows, steps = case
    draw = rows_of(labels, seed)
    train, validation, test = draw(rows, 0), draw(validation_rows, 1), draw(TEST_ROWS, 2)
    network = trained(train, steps, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about labels that no row has
        model = trustgp.fit(network, train, validation=validation, likelihood="multilabel", progress=False)
    with torch.no_grad():
        held_out, logits = network(validation[0]).double(), network(test[0]).double()
    answers = {"network": logits.sigmoid(), "trustgp": model.predict(test[0]).probabilities}
    for name, size in (("one temperature", 1), ("a temperature each", labels)):
        answers[name] = (logits / temperatures(held_out, validation[1], size)).sigmoid()
    measures = label_nll, label_calibration_error
    return {name: [float(each(p, test[1]).mean()) for each in measures] for name, p in answers.items()}


def summary(runs: list[dict[str, list[float]]]) -> dict[str, Any]:
    """Means over seeds; differences of trustgp from a temperature per label, with standard errors."""
    table = {name: torch.tensor([run[name] for run in runs], dtype=torch.float64) for name in runs[0]}
    result: dict[str, Any] = {}
    for column, measure in enumerate(("nll", "ece")):
        result[measure] = {name: float(values[:, column].mean()) for name, values in table.items()}
        gap = (table["trustgp"] - table["a temperature each"])[:, column]
        error = float(gap.std() / len(gap) ** 0.5) if len(gap) > 1 else None
        result[f"{measure} difference"] = {"mean": float(gap.mean()), "standard error": error}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="one case, few rows")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases, counts = (((5, 300, 100),), (100,)) if options.small else (CASES, VALIDATION_ROWS)
    figures = {}
    for case in cases:
        for count in counts:
            name = "{} labels, {} rows, {} steps, {} validation rows".format(*case, count)
            figures[name] = summary([scores_of(case, count, seed) for seed in range(options.seeds)])
            print(name, figures[name], flush=True)
    print_figures(benchmark="labels", seeds=options.seeds, figures=figures)


if __name__ == "__main__":
    main()
