"""Promise 8: NaN or infinity at fit is refused with the count and the first row, before any work."""

from __future__ import annotations

import pytest
import torch
from reliability.helpers import quiet_fit, trained
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trustgp
from trustgp.fitting import solve as solving

N = 200


@pytest.fixture(scope="module")
def data():
    return trained(N)


@pytest.fixture(autouse=True)
def no_expert_work(monkeypatch):
    """Any of the costly stages would fail the test."""

    def never(*arguments, **options):
        raise AssertionError("an expert's work began before the rows were checked")

    monkeypatch.setattr(solving, "divide", never)
    monkeypatch.setattr(solving, "solve_expert", never)


BAD = [torch.nan, torch.inf, -torch.inf]


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("places", [[0], [199], [17, 18, 150]])
@pytest.mark.parametrize("where", ["inputs", "targets"])
def test_bad_rows_are_counted_and_the_first_is_named(data, value, places, where):
    network, x, y = data[0], data[1].clone(), data[2].clone()
    (x if where == "inputs" else y)[places, 1] = value
    said = rf"train {where} are NaN or infinite in {len(places)} of {N} rows, first in row {places[0]};"
    with pytest.raises(ValueError, match=said):
        quiet_fit(network, (x, y))


@pytest.mark.parametrize("where", ["inputs", "targets"])
def test_bad_validation_rows_are_refused(data, where):
    network, x, y = data
    held_x, held_y = x.clone(), y.clone()
    (held_x if where == "inputs" else held_y)[[40, 50], 0] = torch.nan
    with pytest.raises(ValueError, match=f"validation {where} are NaN or infinite in 2 of 200 rows.*row 40;"):
        quiet_fit(network, (x, y), validation=(held_x, held_y))


@pytest.mark.parametrize("kind", ["dataset", "loader"])
def test_bad_rows_in_a_loader_are_refused(data, kind):
    network, x, y = data[0], data[1].clone(), data[2]
    x[120, 0] = torch.nan
    source = TensorDataset(x, y)
    train = source if kind == "dataset" else DataLoader(source, batch_size=33)
    with pytest.raises(ValueError, match=r"1 of 200 rows, first in row 120;"):
        quiet_fit(network, train)


def test_bad_rows_in_one_of_several_inputs_are_refused():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, a, b):
            return self.layer(torch.cat([a, b], dim=1))

    a, b = torch.randn(N, 1), torch.randn(N, 2)
    b[7, 1] = torch.inf
    with pytest.raises(
        ValueError, match=r"train inputs are NaN or infinite in 1 of 200 rows, first in row 7;"
    ):
        quiet_fit(Two().eval(), ((a, b), torch.zeros(N, 1)))


class Breaks(nn.Module):
    """Gives NaN (or infinity) for rows whose first input is above a limit."""

    def __init__(self, network: nn.Module, limit: float, value: float) -> None:
        super().__init__()
        self.network, self.limit, self.value = network, limit, value

    def forward(self, x):
        return torch.where(x[:, :1] > self.limit, self.value, self.network(x))


@pytest.mark.parametrize("tangents", [None, trustgp.LayerFactors(), trustgp.JacobianRows()])
@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("place", [199, 100, 63, 30, 0])
def test_bad_network_outputs_are_counted_and_the_first_is_named(data, tangents, value, place):
    network, x, y = data[0], data[1].clone(), data[2]
    x[place, 0] = 9.0
    said = rf"outputs on the train rows are NaN or infinite in 1 of {N} rows, first in row {place};"
    with pytest.raises(ValueError, match=said):
        quiet_fit(Breaks(network, 8.0, value), (x, y), tangents=tangents)


@pytest.mark.parametrize("value", BAD)
def test_bad_network_outputs_on_validation_rows_are_refused(data, value):
    network, x, y = data
    held = x.clone()
    held[[3, 5], 0] = 9.0
    said = "outputs on the validation rows are NaN or infinite in 2 of 200 rows, first in row 3;"
    with pytest.raises(ValueError, match=said):
        quiet_fit(Breaks(network, 8.0, value), (x, y), validation=(held, y))


def test_whole_rows_do_reach_the_experts(data):
    """The guard of this file works: with nothing wrong, the work begins."""
    with pytest.raises(AssertionError, match="work began"):
        quiet_fit(data[0], data[1:])
