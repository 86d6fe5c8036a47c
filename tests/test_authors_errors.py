"""Errors of the paper's public code that this one must not have."""

from functools import partial

import pytest
import torch

from trustgp import Patchwork, Witness


@pytest.fixture(scope="module")
def fit_case(fit_case):
    """Without a witness, which takes half of the time, unless a test passes one."""
    return partial(fit_case, witness=None)


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
def test_permuting_the_inputs_permutes_the_outputs_and_rows_may_come_alone(fit_case, toy, outputs):
    model = fit_case(outputs=outputs, witness=Witness())
    inputs = toy(101, seed=50)[0]
    order = torch.randperm(101, generator=torch.Generator().manual_seed(0))
    straight, mixed = model.predict(inputs), model.predict(inputs[order])
    for name in ("mean", "variance", "novelty", "expert", "epistemic", "aleatoric", "excess"):
        ordered = getattr(straight, name)[order]
        torch.testing.assert_close(getattr(mixed, name), ordered, rtol=1e-9, atol=1e-12)
        alone = torch.cat([getattr(model.predict(row), name) for row in inputs[order[:9]].split(1)])
        torch.testing.assert_close(alone, ordered[:9], rtol=1e-9, atol=1e-12)


def test_independent_experts_are_a_strict_partition(fit_case):
    model = fit_case(num_experts=6, patchwork=Patchwork(neighbours=0))
    rows = torch.cat([expert.rows for expert in model.mixtures[0].experts])
    assert sorted(rows.tolist()) == list(range(160))
