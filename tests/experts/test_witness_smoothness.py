"""How a witness finds its lengths, noise and neighbours, and what copies and rounded targets do to it."""

from dataclasses import replace

import pytest
import torch

from trustgp import Rows, Threads, Witness
from trustgp.executors import FitContext
from trustgp.executors.progress import reporting
from trustgp.experts.witness_fit import update_witness
from trustgp.state.expert_tensors import witness_tensors


def same(one, other) -> bool:
    first, second = witness_tensors(one), witness_tensors(other)
    return all(torch.equal(first[name], second[name]) for name in first)


def updated(state, inputs, targets):
    """The witness with these rows in its cells, everything else as it is."""
    with reporting(enabled=False) as report:
        context = FitContext(torch.device("cpu"), 0, Threads(1), report)
        return update_witness(state, Rows(inputs, targets), Witness(), context, None)


# how smooth it is, and how many rows it asks


def drawn(n, noise, seed=0, columns=6):
    """A smooth function of the first two columns of several, with noise."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(n, columns, generator=generator, dtype=torch.float64) * 4 - 2
    smooth = torch.sin(1.5 * inputs[:, 0]) + 0.5 * inputs[:, 1].square()
    return inputs, (smooth + noise * torch.randn(n, generator=generator))[:, None], smooth[:, None]


def off(state, seed=9, **options):
    inputs, _, smooth = drawn(400, 0.0, seed=seed, **options)
    return float((state(inputs).mean - smooth).square().mean())


def test_columns_that_do_not_matter_are_looked_over(find):
    inputs, targets, _ = drawn(600, 0.05)
    state = find(inputs, targets)
    units = (state.spread / inputs.std(dim=0)).tolist()
    assert min(units[2:]) > 3 * max(units[:2])
    plain = replace(state, spread=inputs.std(dim=0), centroids=torch.zeros(1, 6, dtype=torch.float64))
    assert off(state) < 0.3 * off(updated(plain, inputs, targets))


def test_one_length_is_kept_where_no_column_stands_out(find, toy):
    inputs, _ = toy(160, seed=1)
    noise = torch.randn(160, 1, generator=torch.Generator().manual_seed(3)).double()
    torch.testing.assert_close(find(inputs, noise).spread, inputs.std(dim=0), rtol=1e-12, atol=0)


def test_noise_as_large_as_the_signal_is_seen_and_averaged(find):
    inputs, targets, smooth = drawn(2000, 0.5, columns=2)
    noisy, clean = find(inputs, targets), find(inputs, smooth)
    assert float(noisy.ratio) >= 1e-2 > float(clean.ratio)
    assert noisy.most_neighbours > 8
    assert noisy.most_neighbours <= 64
    assert off(noisy, columns=2) < off(
        updated(replace(noisy, neighbours=torch.tensor(8)), inputs, targets), columns=2
    )


@pytest.mark.parametrize("neighbours", [1, 2])
def test_never_more_than_eight_times_the_neighbours_are_asked(find, neighbours):
    inputs, targets, _ = drawn(1200, 0.5, columns=2)
    state = find(inputs, targets, neighbours=neighbours)
    assert neighbours < state.most_neighbours <= 8 * neighbours


# copies, and targets of few values


def test_copies_of_rows_change_nothing(find, toy):
    inputs, targets = toy(160, seed=1)
    once, twice = find(inputs, targets, rows=40), find(inputs.repeat(2, 1), targets.repeat(2, 1), rows=40)
    assert int(twice.rows.max()) < 160
    torch.testing.assert_close(once.offset, twice.offset, rtol=1e-12, atol=1e-12)
    assert same(twice, once)
    assert same(updated(once, inputs.repeat(2, 1), targets.repeat(2, 1)), once)


def test_equal_rows_are_no_copies_where_targets_take_few_values(find):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(3, (400, 2), generator=generator).double()
    targets = (inputs.sum(dim=1) + torch.randint(2, (400,), generator=generator)).double()[:, None]
    assert len(find(inputs, targets).rows.unique()) == 400


@pytest.mark.parametrize("unit", [1.0, 0.3])
def test_rounded_targets_are_known_no_finer_than_to_a_twelfth_of_the_squared_step(find, toy, unit):
    inputs, targets = toy(300, seed=1)
    steps = unit * (4 * targets / unit).round()
    state = find(inputs, steps)
    torch.testing.assert_close(state.floor, torch.full((2,), unit**2 / 12).double(), rtol=1e-6, atol=0)
    assert bool((state(inputs).variance >= unit**2 / 12 * (1 - 1e-6)).all())


def test_where_nearly_all_targets_are_the_same_it_is_not_certain(find):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3000, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(3000, generator=generator, dtype=torch.float64)
    targets = ((inputs[:, 0] + inputs[:, 1] + 0.7 * noise) > 2.6).double()[:, None]
    state = find(inputs[:2000], targets[:2000])
    said = state(inputs[2000:])
    assert float(((targets[2000:] - said.mean).square() / said.variance).mean()) < 2
    spread = torch.tensor(1 / 12).double().minimum(targets[:2000].var())
    assert float(said.variance.min()) == pytest.approx(float(spread), rel=1e-9)
