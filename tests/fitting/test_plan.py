"""What a plan estimates, chooses and refuses before the work."""

import pytest

from trustgp.data.rows import Rows
from trustgp.data.trees import state_tensors
from trustgp.experts.witness import Witness
from trustgp.fitting.budget import plan_for_budget
from trustgp.fitting.options import FitOptions
from trustgp.fitting.plan import WITNESS_SHARE, Plan, make_plan
from trustgp.fitting.prepare import FitRows, prepare_network
from trustgp.fitting.sizes import expert_bytes, gate_bytes
from trustgp.tangents import JacobianRows, LayerFactors


def tensor_bytes(state) -> int:
    return sum(t.numel() * t.element_size() for t in state_tensors(state))


@pytest.mark.parametrize("tangents", [LayerFactors(), JacobianRows(keep=50), JacobianRows(keep_per_expert=9)])
def test_experts_and_gate_have_the_estimated_size(fit_case, tangents):
    (mixture,) = fit_case(tangents=tangents, witness=None).mixtures
    for expert in mixture.experts:
        size, rank = tensor_bytes(expert), expert.posterior.directions or None
        estimate = expert_bytes(mixture.tangents, len(expert.rows), 2, rank)
        assert 0.95 * estimate <= size <= estimate + 100  # scales, noises and the like
    size = tensor_bytes(mixture.gate) + tensor_bytes(tuple(mixture.tangents.state().values()))
    assert size == gate_bytes(mixture.tangents, 160, 8, mixture.gate.num_experts)
    assert gate_bytes(mixture.tangents, 512, 8, 1) <= 2000  # of one expert: next to nothing


def plan(case, n=160, *, keep=False, **options) -> Plan:
    given = {"witness": Witness(), "tangents": LayerFactors(), "outputs": "shared", **options}
    parsed, whole = FitOptions.parse(**given), Rows(case.inputs, case.targets)
    data = FitRows(Rows(case.inputs[:1].expand(n, -1), case.targets[:1].expand(n, -1)), None, None)
    prepared = prepare_network(case.network, whole, parsed)
    ready, experts, rank = plan_for_budget(case.network, data.rows, prepared, data)
    return make_plan(ready, data, experts, rank, workers=2, keep=keep)


@pytest.mark.parametrize(("n", "size"), [(160, 750), (900, 100)])
def test_the_estimate_of_the_witness_is_near_its_size(case, find, toy, n, size):
    actual = find(*toy(n, seed=3), rows=size).nbytes
    estimate = plan(case, n, num_experts=4, witness=Witness(rows=size)).witness_bytes
    assert estimate == pytest.approx(actual, rel=0.05)


@pytest.mark.parametrize("budget", [480_000, 2 * 10**6, 10**9])
def test_a_witness_takes_at_most_its_share_of_a_budget_or_is_left_out(case, budget):
    planned = plan(case, 5000, num_experts=8, budget=budget, tangents=JacobianRows())
    assert (planned.witness_bytes > 0) == (budget > 480_000)
    assert planned.witness_bytes <= WITNESS_SHARE * budget


def test_one_expert_of_many_rows_needs_no_kernel_between_them(case):
    options = {"tangents": JacobianRows(), "num_experts": 1, "witness": None}
    few, many = (plan(case, n, keep=True, **options).peak_bytes for n in (100_000, 200_000))
    assert many < 2**30 < 8 * 200_000**2
    assert many < 2.1 * few
