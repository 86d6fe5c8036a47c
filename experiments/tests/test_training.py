"""The training script of the detectors: its matching, and its pictures."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from scipy.optimize import linear_sum_assignment

from trustgp_experiments.training.detector_network import average_precision

pytest.importorskip("transformers", reason="detectors come from transformers: pip install trustgp[detection]")
SCRIPT = Path(__file__).parents[1] / "src" / "trustgp_experiments" / "training" / "detector.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("training_detector", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def drawn(n, queries, k, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, queries, 2, generator=generator)
    boxes = 0.2 + 0.3 * torch.rand(n, queries, 4, generator=generator)
    true = 0.2 + 0.3 * torch.rand(n, k, 4, generator=generator)
    return logits, boxes, true, torch.randint(0, 2, (n, k), generator=generator)


def test_three_things_are_matched_as_scipy_does(script, monkeypatch):
    logits, boxes, true, labels = drawn(5, 8, 3)
    query = script.matched(logits, boxes, true, labels)
    monkeypatch.setattr(script, "FEW", 0)
    costs = []
    monkeypatch.setattr(script, "cheapest_first", lambda cost: costs.append(cost) or cost)
    script.matched(logits, boxes, true, labels)
    for i, cost in enumerate(costs[0]):
        rows, things = linear_sum_assignment(cost)
        assert float(cost[query[i], torch.arange(3)].sum()) == pytest.approx(float(cost[rows, things].sum()))


def test_the_cheapest_pair_comes_first_and_no_query_serves_twice(script):
    cost = torch.tensor([[[1.0, 0.5], [0.0, 9.0], [3.0, 0.4]]])
    assert script.cheapest_first(cost).tolist() == [[1, 2]]
    generator = torch.Generator().manual_seed(0)
    found = script.cheapest_first(torch.rand(4, 9, 6, generator=generator))
    assert all(len(set(row)) == 6 for row in found.tolist())


def test_a_mirrored_picture_has_mirrored_boxes(script):
    images = torch.zeros(40, 3, 16, 16, dtype=torch.uint8)
    images[:, :, 2:6, 1:5] = 255  # left, above
    boxes = torch.tensor([[[3 / 16, 4 / 16, 4 / 16, 4 / 16]]]).repeat(40, 1, 1)
    torch.manual_seed(0)
    found, places, labels = script.varied(images, boxes, torch.zeros(40, 1).long(), cells=False)
    assert bool((labels == 0).all())
    for picture, (x, y, w, h) in zip(found.mean(dim=1), places[:, 0].tolist(), strict=True):
        bright = (picture > picture.mean()).nonzero().float()
        assert float(bright[:, 1].mean() + 0.5) == pytest.approx(16 * x, abs=0.1)
        assert float(bright[:, 0].mean() + 0.5) == pytest.approx(16 * y, abs=0.1)
        assert (w, h) == pytest.approx((0.25, 0.25))
    assert len({round(x, 3) for x in places[:, 0, 0].tolist()}) == 2


def test_boxes_that_a_closer_look_cuts_away_are_dropped(script):
    images = torch.zeros(60, 3, 16, 16, dtype=torch.uint8)
    boxes = torch.tensor([[[0.03, 0.03, 0.06, 0.06], [0.5, 0.5, 0.2, 0.2]]]).repeat(60, 1, 1)
    torch.manual_seed(0)
    _, places, labels = script.varied(images, boxes, torch.zeros(60, 2).long(), cells=True)
    assert bool((labels[:, 0] == -1).any())
    assert bool((labels[:, 1] == 0).all())
    assert bool((places >= 0).all())
    assert bool((places[labels == -1] == 0).all())


def test_a_step_on_the_cpu_lowers_the_loss_of_a_few_pictures(script):
    class Options:
        rate, batch = 1e-3, 2

    torch.manual_seed(0)
    train, _ = script.rendered_scenes(2, 1, 1)
    rows = (train.images, *script.thing_table(train))
    training = script.DetectorTraining(script.detector(2), rows, Options, cells=False)
    losses = []
    for step in range(6):
        training.step(step + 100, 0.0)
        losses.append(float(training.loss))
    assert min(losses[3:]) < losses[0]


BOX, OTHER = torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.tensor([5.0, 5.0, 6.0, 6.0])
SEVERAL = torch.stack([BOX, BOX + 10, BOX + 20, BOX + 30])


@pytest.mark.parametrize(
    ("boxes", "scores", "true", "expected"),
    [
        (torch.stack([BOX, OTHER]), [0.9, 0.1], BOX[None], 1.0),
        (torch.stack([BOX, OTHER]), [0.1, 0.9], BOX[None], 0.5),
        (torch.stack([BOX, BOX]), [0.9, 0.8], torch.stack([BOX, OTHER]), 0.5),  # a true box counts once
        # right, wrong, right, right of four: 1, 1/2, 2/3, 3/4, made to fall: 1, 3/4, 3/4
        (torch.stack([BOX, OTHER, BOX + 10, BOX + 20]), [0.9, 0.8, 0.7, 0.6], SEVERAL, 2.5 / 4),
        (torch.zeros(0, 4), [], BOX[None], 0.0),
        (BOX[None], [1.0], torch.zeros(0, 4), float("nan")),
    ],
)
def test_average_precision_by_hand(boxes, scores, true, expected):
    found = average_precision([boxes], [torch.tensor(scores)], [true])
    assert found == pytest.approx(expected, nan_ok=True)
