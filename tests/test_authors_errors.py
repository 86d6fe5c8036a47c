"""Errors of the paper's public code that this one must not have."""

import copy
import math
from functools import partial

import pytest
import torch
from pairwise import every_pair
from reference import gaussian_nll
from torch import nn

import trustgp
from trustgp import LayerFactors, Patchwork, Witness


@pytest.fixture(scope="module")
def fit_case(fit_case):
    """Without a witness, which takes half of the time, unless a test passes one."""
    return partial(fit_case, witness=None)


@pytest.fixture(scope="module")
def fitted(fit_case):
    return fit_case(witness=Witness())


# Rows of an expert carry its label.


@pytest.mark.parametrize("outputs", ["shared", "separate", "pseudo"])
def test_an_experts_own_rows_are_those_of_the_gate_and_borrowed_ones_are_of_neighbours(
    fit_case, case, outputs
):
    model, borrowed = fit_case(num_experts=6, outputs=outputs), 0
    labels = model.predict(case.inputs).expert.reshape(160, -1)
    for k, mixture in enumerate(model.mixtures):
        for index, expert in enumerate(mixture.experts):
            own = expert.rows[: int(expert.own)]
            assert labels[own, k].tolist() == [index] * len(own)
            assert set(own.tolist()) == set((labels[:, k] == index).nonzero().flatten().tolist())
            for row in expert.rows[int(expert.own) :].tolist():
                assert int(labels[row, k]) in mixture.neighbours[index]
                borrowed += 1
    assert borrowed > 0


# Every row is scored.


@pytest.mark.parametrize("outputs", ["shared", "separate"])
def test_permuting_the_inputs_permutes_the_outputs(fit_case, toy, outputs):
    model = fit_case(outputs=outputs)
    inputs = toy(101, seed=50)[0]
    order = torch.randperm(101, generator=torch.Generator().manual_seed(0))
    straight, mixed = model.predict(inputs), model.predict(inputs[order])
    for name in ("mean", "variance", "novelty", "expert", "epistemic", "aleatoric", "excess"):
        torch.testing.assert_close(
            getattr(mixed, name), getattr(straight, name)[order], rtol=1e-9, atol=1e-12
        )


def test_a_single_row_is_predicted_as_among_others(fitted, toy):
    inputs = toy(20, seed=50)[0]
    whole = fitted.predict(inputs)
    for i in range(20):
        alone = fitted.predict(inputs[i : i + 1])
        torch.testing.assert_close(alone.variance[0], whole.variance[i], rtol=1e-9, atol=1e-12)


# The likelihood does not depend on the units of the targets.


class InUnits(nn.Module):
    """The same network, its outputs in other units."""

    def __init__(self, network, factor):
        super().__init__()
        self.network, self.factor = network, factor

    def forward(self, x):
        return self.network(x) * self.factor


def scaled_last_layer(network, factor):
    network = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in network[4].parameters():
            parameter.mul_(factor)
    return network


@pytest.mark.parametrize(
    ("factor", "way", "held"),
    every_pair([1e3, 1e-3], ["outputs in other units", "last layer"], [False, True]),
)
def test_other_units_shift_the_likelihood_by_the_logarithm_of_the_factor(case, toy, factor, way, held):
    if way == "last layer":
        # With all parameters this is another kernel, since only the earlier layers' gradients grow; with
        # those of the last layer it is the same function in other units.
        build, tangents = scaled_last_layer, LayerFactors("last")
    else:
        build, tangents = InUnits, LayerFactors()
    inputs, targets = toy(80, seed=60)
    validation = toy(60, seed=61)
    found = {}
    for unit in (1.0, factor):
        model = trustgp.fit(
            build(case.network, unit),
            (case.inputs, case.targets * unit),
            validation=(validation[0], validation[1] * unit) if held else None,
            num_experts=4,
            tangents=tangents,
            progress=False,
        )
        p = model.predict(inputs)
        found[unit] = [
            (q, gaussian_nll(q.mean, q.variance, targets * unit)) for q in (p, p.corrected, p.plain)
        ]
    for (one, nll), (other, other_nll) in zip(found[1.0], found[factor], strict=True):
        # tau is found by a search whose end carries the rounding of its logarithm, and the calibration by
        # an optimiser that stops at a small gradient.
        tolerance = 1e-3 if held else 1e-4
        torch.testing.assert_close(other.std, factor * one.std, rtol=tolerance, atol=0)
        assert other_nll - nll == pytest.approx(math.log(factor), abs=tolerance)
        torch.testing.assert_close(other.novelty, one.novelty, rtol=1e-6, atol=1e-9)


def test_independent_experts_are_a_strict_partition(fit_case):
    model = fit_case(num_experts=6, patchwork=Patchwork(neighbours=0))
    rows = torch.cat([expert.rows for expert in model.mixtures[0].experts])
    assert sorted(rows.tolist()) == list(range(160))
