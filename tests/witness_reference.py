"""A nearest-neighbour Gaussian process as the definition says it: numpy, float64, one loop over rows."""

import math

import numpy as np
import torch
from torch import Tensor


def witness_answer(table: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, variance, novelty and precision of float64 rows, from the tensors of a witness's file."""
    return witness_opinion(table, inputs)[:4]


def witness_opinion(table: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, ...]:
    """The same, then the distance to the furthest neighbour, and the mean squared left-out error nearby."""
    arrays = {name: value.double().numpy() for name, value in table.items()}
    rows = [_row(arrays, (x - arrays["offset"]) / arrays["spread"]) for x in inputs.double().numpy()]
    mean, variance, novelty, *rest = (torch.from_numpy(np.stack(lot)) for lot in zip(*rows, strict=True))
    share = (1.0 - novelty) * (table["reach"] / novelty.clamp_min(1e-300)).clamp_max(1.0)
    return mean, variance, novelty, share[:, None] / variance, *rest


def witness_left_out(table: dict[str, Tensor], groups: Tensor) -> dict[int, tuple]:
    """By training row: its cell, mean, novelty and target, from the rows of other groups in its cell."""
    arrays, answers = {name: value.double().numpy() for name, value in table.items()}, {}
    rows, numbers = table["rows"].tolist(), groups.tolist()
    sizes = [table["sizes"].cumsum(dim=0).tolist(), table["sizes"].tolist(), table["own"].tolist()]
    for cell, (end, size, own) in enumerate(zip(*sizes, strict=True)):
        places = range(end - size, end)
        for place in places[:own]:
            row = rows[place]
            seen = [other for other in places if numbers[rows[other]] != numbers[row]]
            mean, novelty = _process(arrays, arrays["points"][place], seen)
            centre = arrays["centre"][cell]
            answers[row] = cell, centre + mean, novelty, centre + arrays["targets"][place]
    return answers


def witness_nearby(table: dict[str, Tensor], inputs: Tensor, groups: Tensor) -> tuple:
    """`nearby` of the training rows, each without its own group."""
    arrays, answers = {name: value.double().numpy() for name, value in table.items()}, []
    group = groups[table["rows"]]
    for own, x in zip(groups, inputs.double().numpy(), strict=True):
        point = (x - arrays["offset"]) / arrays["spread"]
        _, places = _cell(arrays, point)
        answers.append(nearby(arrays, point, places[(group[places] != own).numpy()]))
    return tuple(torch.from_numpy(np.stack(values)) for values in zip(*answers, strict=True))


def witness_level(table: dict[str, Tensor]) -> tuple[Tensor, list[float]]:
    """The level of every cell [M, C], steadied by twenty rows of the average; the rows' novelties, sorted."""
    groups = torch.arange(int(table["rows"].max()) + 1)
    lots, novelties = [[] for _ in table["own"]], []
    for cell, mean, novelty, target in witness_left_out(table, groups).values():
        lots[cell].append((target - mean) ** 2 / (novelty + float(table["ratio"])))
        novelties.append(novelty)
    logs = [np.log(np.maximum(np.mean(lot, axis=0), table["floor"].numpy())) for lot in lots]
    own = table["own"].tolist()
    average = sum(n * log for n, log in zip(own, logs, strict=True)) / sum(own)
    steady = [np.exp((n * log + 20 * average) / (n + 20)) for n, log in zip(own, logs, strict=True)]
    return torch.from_numpy(np.stack(steady)), sorted(novelties)


def _row(arrays: dict, point: np.ndarray) -> tuple:
    """Mean [C], variance [C], novelty, distance and noise [C] of one scaled point."""
    cell, places = _cell(arrays, point)
    mean, novelty = _process(arrays, point, places)
    variance = np.maximum(arrays["level"][cell] * (novelty + arrays["ratio"]), arrays["floor"])
    return arrays["centre"][cell] + mean, variance, novelty, *nearby(arrays, point, places)


def _cell(arrays: dict, point: np.ndarray) -> tuple[int, np.ndarray]:
    """The nearest cell of a scaled point, and the places of its rows."""
    cell = int(np.argmin([math.dist(point, centroid) for centroid in arrays["centroids"]]))
    first = int(arrays["sizes"][:cell].sum())
    return cell, np.arange(first, first + int(arrays["sizes"][cell]))


def nearby(arrays: dict, point: np.ndarray, places: np.ndarray) -> tuple[float, np.ndarray]:
    """Distance to the furthest neighbour, and mean squared error of the 32 nearest rows or more [C]."""
    distances, p = np.linalg.norm(arrays["points"][places] - point, axis=1), int(arrays["neighbours"])
    tie = 1e-9 * float(arrays["length"])  # rounding does not order rows that are equally far
    order = np.argsort(distances + tie * np.arange(len(places)), kind="stable")
    errors = arrays["errors"][places[order[: max(32, p)]]]
    return float(distances[order[:p]].max(initial=0.0)), errors.mean(axis=0)


def _process(arrays: dict, point: np.ndarray, places) -> tuple[np.ndarray, float]:
    """Mean about the centre [C], and novelty, from the nearest of the rows at these places."""
    places = np.array(places, dtype=int)
    distances = np.linalg.norm(arrays["points"][places] - point, axis=1)
    nearest = places[np.argsort(distances, kind="stable")][: int(arrays["neighbours"])]
    if not len(nearest):
        return np.zeros(arrays["targets"].shape[1]), 1.0

    def kernel(x: np.ndarray, z: np.ndarray) -> np.ndarray:
        distances = np.linalg.norm(x[:, None] - z, axis=2)
        return np.exp(-(distances**2) / (2 * float(arrays["length"]) ** 2))

    rows = arrays["points"][nearest]
    cross = kernel(point[None], rows)[0]
    shares = np.linalg.solve(kernel(rows, rows) + float(arrays["ratio"]) * np.eye(len(nearest)), cross)
    return shares @ arrays["targets"][nearest], float(np.clip(1.0 - cross @ shares, 0.0, 1.0))
