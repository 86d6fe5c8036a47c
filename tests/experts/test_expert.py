import copy
import functools
from dataclasses import replace

import pytest
import reference
import torch
from blobs import blobs, fit
from reference import dense_jacobian, greedy_by_refit, leave_out, profile_likelihood, relative_sizes

from trustgp.data.rows import Rows
from trustgp.experts.expert import HIGHEST, LOWEST, Problem, Task, prior_expert, prior_of, solve_expert
from trustgp.experts.features import MIN_AMPLITUDE, amplitudes
from trustgp.likelihoods import Classification
from trustgp.math.evidence import maximise_evidence, pooled_evidence
from trustgp.math.low_rank import SELECTION_NOISE
from trustgp.tangents import JacobianRows, LayerFactors, Sketch, output_mixes
from trustgp.tangents.network import prepare

NOBODY = torch.empty(0, dtype=torch.int64)


@functools.cache
def jacobian_of(network, inputs):
    """The dense Jacobian of the session's case, made once: it takes longer than all else here."""
    return dense_jacobian(network, inputs)


@functools.cache
def relative_sizes_of(network, inputs):
    return relative_sizes(jacobian_of(network, inputs))


class Setting:
    """A problem with its dense kernel and targets."""

    def __init__(self, case, tangents, outputs="shared", kernel=0, groups=None):
        self.case = case
        prepared = prepare(case.network, "all", None)
        mixes = output_mixes(outputs, case.targets.shape[1], torch.Generator().manual_seed(0))
        self.mix, self.served = mixes[kernel]
        bound = tangents.bind(prepared, self.mix, case.inputs[:8], case.targets[:8])
        self.residual = case.targets - case.network(case.inputs).detach()
        rows = Rows(case.inputs, case.targets)
        self.problem = Problem(rows, bound, self.served, self.residual, groups)
        jacobian = jacobian_of(case.network, case.inputs)
        self.gram = reference.dense_gram(jacobian, self.mix)
        linear = jacobian @ reference.flat_parameters(case.network)
        self.targets = (linear + self.residual)[:, self.served]
        alike = torch.ones(len(case.inputs), len(self.served), dtype=torch.float64)
        self.amplitude = relative_sizes_of(case.network, case.inputs) if outputs == "shared" else alike

    def evidence(self, expert):
        """tau, and s of each output, read back."""
        scale = expert.scale * self.amplitude[expert.rows].mean(dim=0)
        return float(expert.noise[0] / scale[0]), scale


@pytest.fixture(scope="module", params=["LayerFactors", "JacobianRows"])
def tangents(request):
    return {"LayerFactors": LayerFactors(), "JacobianRows": JacobianRows()}[request.param]


def whole(own, *, judged=False) -> Task:
    return Task(own=own, candidates=NOBODY, borrowed=0, judged=judged)


@pytest.mark.parametrize(("outputs", "kernel"), [("shared", 0), ("separate", 1), ("pseudo", 0)])
def test_a_solved_expert_equals_dense_gp_regression(case, tangents, outputs, kernel):
    setting = Setting(case, tangents, outputs, kernel)
    own, test = torch.arange(0, 60), torch.arange(60, 100)
    solved = solve_expert(setting.problem, whole(own))
    expert = solved.expert
    assert solved.held_out is None  # nothing is judged
    gram, cross = setting.gram[own][:, own], setting.gram[test][:, own]
    targets, residual = setting.targets[own], setting.residual[own][:, setting.served]
    tau, scale = setting.evidence(expert)
    assert float(expert.jitter) == 0.0
    # tau is read back as noise / scale, and the smallest eigenvalues lie far below it: 1e-8 is what is left.
    torch.testing.assert_close(scale, reference.scale_from_eigenpairs(gram, targets, tau), rtol=1e-8, atol=0)
    level = float(gram.diagonal().mean())
    best = max(profile_likelihood(gram, targets, level * 10.0 ** (power / 2)) for power in range(-16, 5))
    # the search stops a hundredth short at worst
    assert profile_likelihood(gram, targets, tau) >= best - 0.01
    answer = expert.posterior(setting.problem.tangents(case.inputs[test]))
    prior = setting.gram.diagonal()[test]
    variance = reference.posterior_variance(gram, cross, prior, tau)
    torch.testing.assert_close(answer.unit, variance, rtol=1e-6, atol=1e-10 * float(prior.max()))
    shift = reference.posterior_mean(gram, cross, residual, tau)
    # (K + tau I)^-1 has a condition of up to 1e8 here, which costs that many digits on both sides.
    torch.testing.assert_close(answer.residual_mean, shift, rtol=1e-6, atol=1e-8)
    errors, variances = leave_out(gram, residual, torch.arange(60), tau)
    typical = setting.amplitude[own] / setting.amplitude[own].mean(dim=0)
    kappa = (errors.square() / (((variances - tau)[:, None] * typical + tau) * scale)).mean(dim=0)
    torch.testing.assert_close(expert.kappa, kappa, rtol=1e-6, atol=0)


def test_borrowed_rows_are_chosen_most_uncertain_first_and_help_to_predict_the_own_rows(case, tangents):
    setting = Setting(case, tangents)
    own, candidates = torch.arange(30), torch.arange(100, 130)
    solved = solve_expert(setting.problem, Task(own, candidates, 10, judged=True))
    expert, rows = solved.expert, solved.expert.rows
    noise = SELECTION_NOISE * float(setting.gram[own][:, own].diagonal().mean())
    assert rows.tolist() == [*own.tolist(), *greedy_by_refit(setting.gram, 10, noise, candidates, own)]
    assert int(expert.own) == 30
    tau, _ = setting.evidence(expert)
    gram, single = setting.gram[rows][:, rows], torch.arange(40)
    retrained, variances = leave_out(gram, setting.targets[rows], single, tau)
    errors, _ = leave_out(gram, setting.residual[rows], single, tau)
    epistemic = (variances - tau)[:, None] * setting.amplitude[rows] * expert.scale
    ratios = errors.square() / (epistemic + expert.noise)
    torch.testing.assert_close(expert.kappa, ratios[:30].mean(dim=0), rtol=1e-6, atol=0)  # as above
    expected = (retrained + setting.residual[rows] - errors)[:30].flatten()
    assert len(solved.held_out) == 60
    torch.testing.assert_close(solved.held_out.residual, expected, rtol=1e-6, atol=1e-7)  # as above
    novelty = ((variances - tau) / gram.diagonal())[:30].repeat_interleave(2)
    torch.testing.assert_close(solved.held_out.novelty, novelty, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("size", [None, 8], ids=["rows", "groups"])
def test_rows_and_groups_that_are_left_out_are_predicted_without_them(case, tangents, size):
    groups = torch.arange(160) // (size or 1)
    setting = Setting(case, tangents, groups=groups if size else None)
    own = torch.arange(48)
    solved = solve_expert(setting.problem, whole(own, judged=True))
    expert, rows = solved.expert, solved.held_out
    tau, _ = setting.evidence(expert)
    gram = setting.gram[own][:, own]
    retrained, variances = leave_out(gram, setting.targets[own], groups[own], tau)
    corrected, _ = leave_out(gram, setting.residual[own], groups[own], tau)
    shift = (setting.residual[own] - corrected).flatten()
    # Inverses of matrices with a condition of up to 1e8, in both.
    torch.testing.assert_close(rows.residual_mean, shift, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(rows.residual, retrained.flatten() + shift, rtol=1e-6, atol=1e-7)
    unit = variances - tau
    expected = (unit[:, None] * setting.amplitude[own] * expert.scale).flatten()
    torch.testing.assert_close(rows.epistemic, expected, rtol=1e-6, atol=1e-9 * float(expected.max()))
    novelty = (unit / gram.diagonal())[:, None].expand(48, 2).flatten()
    torch.testing.assert_close(rows.novelty, novelty, rtol=1e-6, atol=1e-9)
    assert rows.output.tolist() == [0, 1] * 48
    assert torch.equal(rows.noise, expert.noise.repeat(48))
    assert torch.equal(rows.log_kappa, expert.kappa.log().repeat(48))
    assert not bool(rows.witness_precision.any())  # it is asked later


def test_with_a_kernel_of_their_own_left_out_groups_are_predicted_from_the_rows_around_too(case):
    groups, own, around = torch.arange(160) // 8, torch.arange(48), torch.arange(60, 140)
    setting, exact = Setting(case, Sketch(64), groups=groups), Setting(case, LayerFactors(), groups=groups)
    problem = replace(setting.problem, leave_out_tangents=exact.problem.tangents)
    found = solve_expert(problem, replace(whole(own, judged=True), around=around)).held_out
    plain = solve_expert(setting.problem, whole(own, judged=True)).held_out
    rows = torch.cat([own, around])
    gram = exact.gram[rows][:, rows]
    tau = maximise_evidence(gram, setting.targets[rows]).tau
    retrained, _ = leave_out(gram, setting.targets[rows], groups[rows], tau)
    expected = retrained[:48].flatten() + found.residual_mean
    torch.testing.assert_close(found.residual, expected, rtol=1e-6, atol=1e-7)
    for name in ("epistemic", "novelty", "residual_mean", "noise", "log_kappa", "output"):
        assert torch.equal(getattr(found, name), getattr(plain, name))


def test_an_output_without_a_gradient_is_not_certain_for_that(case, tangents):
    """As behind a ReLU that is off: the kernel of the others still says how new the row is."""
    network = copy.deepcopy(case.network)
    network.append(torch.nn.ReLU())
    with torch.no_grad():
        network[-2].bias[:] = torch.tensor([-1e6, 1e6])
    prepared = prepare(network, "all", None)
    mix, _ = output_mixes("shared", 2, torch.Generator())[0]
    made = tangents.bind(prepared, mix, case.inputs[:4], case.targets[:4])
    found = amplitudes(made, made(case.inputs[:9]))
    assert bool((found[:, 0] == MIN_AMPLITUDE).all())


def test_columns_are_chosen_from_the_experts_own_rows(case):
    setting = Setting(case, JacobianRows(keep_per_expert=12))
    own, candidates = torch.arange(40), torch.arange(50, 80)
    bound = setting.problem.tangents
    expert = solve_expert(setting.problem, Task(own, candidates, 5)).expert
    assert torch.equal(expert.posterior.columns, bound.columns(case.inputs[own]))
    assert len(expert.posterior.columns) == 24


def test_a_stand_in_has_the_typical_scale_and_no_rows(case):
    setting = Setting(case, LayerFactors())
    siblings = [solve_expert(setting.problem, whole(torch.arange(i, i + 30))).expert for i in (0, 40)]
    stand_in = prior_expert(whole(torch.arange(80, 99)), siblings)
    assert stand_in.failed
    assert not siblings[0].failed
    expected = (siblings[0].scale * siblings[1].scale).sqrt()
    torch.testing.assert_close(stand_in.scale, expected, rtol=1e-10, atol=0)
    assert len(stand_in.rows) == int(stand_in.own) == 0
    assert stand_in.kappa.tolist() == [1.0, 1.0]


def test_the_prior_is_that_of_the_dense_kernel_and_pseudo_targets():
    case = blobs()
    network = copy.deepcopy(case.network).double()
    inputs, labels = case.train[0][:120].double(), case.train[1][:120]
    held = (case.validation[0].double(), case.validation[1])
    model = fit(case, network=network, train=(inputs, labels), validation=held, num_experts=1)
    mix = model.mixtures[0].tangents.mix
    jacobian = dense_jacobian(network, inputs)
    rows = torch.einsum("c,ncp->np", mix[0], jacobian)
    logits = network(inputs).detach()
    aim = jacobian @ reference.flat_parameters(network) + Classification().residual(logits, labels[:, None])
    expected = pooled_evidence([(rows @ rows.T, aim @ mix.T)], lowest=LOWEST, highest=HIGHEST)
    found = prior_of(model.mixtures[0].experts)
    assert float(found.tau) == pytest.approx(float(expected.tau), rel=1e-6)
    assert float(found.scale) == pytest.approx(float(expected.scale), rel=1e-6)
