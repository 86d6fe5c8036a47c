"""Weights of the training rows: a row of weight w has the noise variance sigma^2 / w."""

from dataclasses import replace
from functools import partial

import blobs
import numpy as np
import pytest
import torch
from draws import normal
from many import each
from reference import dense_gram, dense_jacobian, flat_parameters

import trustgp
from trustgp.data.rows import Rows
from trustgp.data.split import in_proportion, weighted
from trustgp.experts.expert import Problem, Task, retrained_errors, solve_expert
from trustgp.experts.features import NO_COLUMNS, features_at
from trustgp.experts.stacked_system import solve_group
from trustgp.experts.whole import WholePosterior
from trustgp.tangents import JacobianRows, LayerFactors, output_mixes
from trustgp.tangents.network import prepare

N = 160
OWN, NEW = torch.arange(60), torch.arange(60, 100)


def weights_of(n: int = N) -> torch.Tensor:
    return torch.exp(normal(n, seed=5))


def problem_of(case, tangents, weights):
    """A problem with weights, and the dense Jacobian of its rows."""
    mix, served = output_mixes("pseudo", 2, torch.Generator().manual_seed(0))[0]
    rows, names = weighted(Rows(case.inputs, case.targets), weights), tangents.choose(case.network)
    bound = tangents.bind(prepare(case.network, names, None), mix, case.inputs[:64], case.targets[:64])
    residual = case.targets - case.network(case.inputs).detach()
    return Problem(rows, bound, served, residual, None), dense_jacobian(case.network, case.inputs, names)


# the last is primal: it has fewer columns than rows
@pytest.mark.parametrize("tangents", [LayerFactors(), JacobianRows(), JacobianRows("last")], ids=repr)
def test_a_weighted_expert_equals_a_dense_gp_whose_rows_have_noise_of_their_own(case, tangents):
    w = weights_of()
    problem, jacobian = problem_of(case, tangents, w)
    gram = dense_gram(jacobian, problem.tangents.mix)
    solved = solve_expert(problem, Task(OWN, NO_COLUMNS, 0, judged=True))
    expert, held_out = solved.expert, solved.held_out
    tau, w = float(expert.noise[0] / expert.scale[0]), (w / w.mean())[OWN]
    noisy = gram[OWN][:, OWN] + torch.diag(tau / w)
    inverse, cross = torch.linalg.inv(noisy), gram[NEW][:, OWN]
    residual = problem.residual[OWN]
    predicted = expert.posterior(problem.tangents(case.inputs[NEW]))
    close = partial(torch.testing.assert_close, rtol=1e-6)
    close(predicted.residual_mean, cross @ inverse @ residual, atol=1e-8)
    prior = gram.diagonal()[NEW]
    close(predicted.unit, prior - (cross @ inverse * cross).sum(dim=1), atol=1e-9 * float(prior.max()))
    # the scale of the largest evidence, of pseudo-targets J theta + r
    linear = jacobian[OWN] @ flat_parameters(case.network, tangents.choose(case.network))
    targets = linear + residual
    close(expert.scale, (targets * (inverse @ targets)).mean(dim=0), atol=0.0)
    # each row left out: its error and its variance, without the noise of its own
    left = (inverse @ residual) / inverse.diagonal()[:, None]
    epistemic = 1.0 / inverse.diagonal() - tau / w
    close(held_out.residual_mean.view(-1, 2), residual - left, atol=1e-7)
    close(held_out.epistemic.view(-1, 2), epistemic[:, None] * expert.scale, atol=1e-7)
    retrained = (inverse @ targets) / inverse.diagonal()[:, None]
    close((held_out.residual - held_out.residual_mean).view(-1, 2), retrained, atol=1e-7)
    ratios = w[:, None] * left.square() / ((w * epistemic)[:, None] * expert.scale + expert.noise)
    close(expert.kappa, ratios.mean(dim=0), atol=0.0)


def test_rows_left_out_of_a_neighbourhood_are_predicted_with_the_weights_of_the_others(case):
    problem, _ = problem_of(case, LayerFactors(), weights_of())
    found = retrained_errors(problem, problem.tangents, OWN)
    solved = solve_expert(problem, Task(OWN, NO_COLUMNS, 0, judged=True)).held_out
    expected = (solved.residual - solved.residual_mean).view(-1, 2)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_experts_that_are_solved_together_have_the_same_weights(case):
    problem, _ = problem_of(case, trustgp.Sketch(16), weights_of())
    cached = features_at(problem.tangents, problem.rows, torch.arange(N), NO_COLUMNS, None)
    problem = replace(problem, cached=cached)
    tasks = [Task(own, torch.arange(N).flip(0)[:8], 5) for own in torch.arange(N).split(40)]
    for task, together in zip(tasks, solve_group(problem, tasks), strict=True):
        alone, other = solve_expert(problem, task).expert, together.expert
        for name in ("scale", "noise", "kappa"):
            torch.testing.assert_close(getattr(other, name), getattr(alone, name), rtol=1e-9, atol=0)
        torch.testing.assert_close(other.posterior.weights, alone.posterior.weights)


def test_a_row_of_weight_two_has_the_leverage_of_two_rows():
    rows = normal(40, 1, 6)
    w, noise = torch.ones(40, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    w[:7] = 2.0
    twice, moments = torch.cat([rows, rows[:7]]), torch.einsum("n,ncd,nce->cde", w, rows, rows)
    whole = WholePosterior.of(moments, noise, 40, torch.float64)
    every = WholePosterior.of(torch.einsum("ncd,nce->cde", twice, twice), noise, 40, torch.float64)
    torch.testing.assert_close(whole.leverage(rows), every.leverage(rows))
    left_out = whole.left_out(rows, w).exp() * whole.typical
    for i in (3, 20):  # without the row, or both copies of it
        fewer = moments - w[i] * rows[i].T @ rows[i]
        without = WholePosterior.of(fewer, noise, 40, torch.float64).leverage(rows[i : i + 1])
        torch.testing.assert_close(left_out[i : i + 1], without, rtol=1e-3, atol=0.0)


def test_rows_are_counted_in_proportion_to_their_weights():
    w = weights_of()
    counts = torch.bincount(in_proportion(w), minlength=N)
    assert float((counts - w / w.mean()).abs().max()) < 1.0
    assert torch.equal(in_proportion(torch.full((7,), 0.3, dtype=torch.float64)), torch.arange(7))


def same(first, second, **tolerance) -> None:
    for name in ("mean", "variance", "novelty"):
        torch.testing.assert_close(getattr(first, name), getattr(second, name), **tolerance)


def test_equal_weights_give_the_model_without_weights_and_others_another_one(case, fit_case, fitted):
    x = case.inputs[:20]
    alike = fit_case(weights=np.full(N, 0.3))
    same(alike.predict(x), fitted.predict(x), rtol=0, atol=0)
    assert alike.origin.data == fitted.origin.data
    model, scaled = fit_case(weights=weights_of()), fit_case(weights=(1e300 * weights_of()).tolist())
    same(model.predict(x), scaled.predict(x), rtol=1e-6, atol=1e-9)
    assert model.origin.data != fitted.origin.data
    assert not torch.allclose(model.predict(x).variance, fitted.predict(x).variance, rtol=1e-3)


@pytest.mark.parametrize("options", [{}, {"tangents": trustgp.LayerFactors(), "budget": "none"}], ids=repr)
def test_a_broken_row_of_hardly_any_weight_hardly_matters(case, fit_case, options):
    train, broken = (case.inputs, case.targets.clone()), torch.ones(N, dtype=torch.float64)
    train[1][50], broken[50] = 100.0, 1e-6
    kept = torch.arange(N) != 50
    without = fit_case(train=(case.inputs[kept], case.targets[kept]), num_experts=1, **options)
    heavy, light = (fit_case(train=train, num_experts=1, weights=w, **options) for w in (None, broken))
    x = torch.cat([case.inputs[40:60] + 0.05, case.inputs[50:51]])
    expected, good, bad = (model.predict(x).std for model in (without, light, heavy))
    # a fit without the row draws other ones for its witness and its search
    assert float((good / expected).log().abs().max()) < 0.3
    assert float((bad / expected).log().max()) > 1.0


def test_heavy_rows_decide_on_the_size_of_the_error_bar(toy, case, fit_case):
    """Every other row has ten times the noise; its weight says so."""
    inputs, targets = toy(400, seed=8)
    noise = torch.where(torch.arange(400) % 2 == 0, 1.0, 0.1)[:, None]
    with torch.no_grad():
        targets = case.network(inputs) + noise * normal(targets.shape, seed=1)
    precisions = noise[:, 0].square().reciprocal()
    fits = (fit_case(train=(inputs, targets), weights=w) for w in (None, precisions))
    plain, accurate = (model.predict(inputs).std.median() for model in fits)
    # of a row of the mean weight, 0.14; without weights about 0.7
    assert 0.1 < float(accurate) < 0.25 < 0.4 < float(plain)


CLASSES = {
    "classes": ("classification", lambda labels: labels),
    "labels": ("multilabel", lambda labels: torch.nn.functional.one_hot(labels, 3)),
}


@pytest.mark.filterwarnings("ignore:there are no validation rows")
@pytest.mark.parametrize("kind", CLASSES)
def test_classes_and_labels_count_as_often_as_they_weigh(kind):
    """A tenth of the rows has another class at random; with tiny weights it does not blur probabilities."""
    case, (likelihood, targets_of) = blobs.blobs(), CLASSES[kind]
    x, y = case.train
    wrong = torch.arange(len(y)) % 4 == 0
    labels = torch.where(wrong, (y + 1) % 3, y)
    w = torch.where(wrong, 1e-6, 1.0)
    options = {"num_experts": 3, "progress": False, "likelihood": likelihood}
    medians = []
    for kinds, weights in ((labels, None), (labels, w), (y, None)):
        model = trustgp.fit(case.network, (x, targets_of(kinds)), weights=weights, **options)
        medians.append(float(model.predict(case.test[0]).temperature.median()))
    blurred, light, clean = medians
    assert abs(light - clean) < 0.3 * (blurred - clean)


def test_weights_follow_groups_and_every_eighth_row(case, fit_case, monkeypatch):
    from trustgp.fitting import pipeline

    monkeypatch.setattr(pipeline, "MIN_THINNED_ROWS", 10)
    monkeypatch.setattr(pipeline, "MIN_GROUP_GAIN", -100.0)
    groups, w = torch.arange(N) // 10, weights_of()
    model = fit_case(groups=groups, weights=w)
    stride = model.origin.stride
    assert stride > 1
    torch.testing.assert_close(model.memory.rows.weights, (w / w.mean())[::stride])


def test_a_checkpoint_of_other_weights_is_refused(fit_case, tmp_path):
    fit_case(weights=weights_of(), checkpoint=tmp_path)
    fit_case(weights=weights_of(), checkpoint=tmp_path)
    with pytest.raises(ValueError, match="another fit; different: data"):
        fit_case(weights=weights_of().flip(0), checkpoint=tmp_path)


def test_new_rows_have_the_mean_weight(case, toy, fit_case, tmp_path):
    w, added = weights_of(), toy(12, seed=31)
    model = fit_case(weights=w, witness=None)
    model.update(added)
    torch.testing.assert_close(model.memory.rows.weights, torch.cat([w / w.mean(), torch.ones(12).double()]))
    path = tmp_path / "weighted.trustgp"
    fit_case(weights=w, witness=None).save(path)
    loaded = trustgp.load(path, case.network)
    with pytest.raises(ValueError, match="with groups or weights"):
        loaded.update(added, train=(case.inputs, case.targets))
    loaded.update(added)


ONE_EACH = "one for each of 160 rows"
SEVENTH = torch.arange(N) == 7


@each(
    ("weights", "match"),
    [
        (torch.ones(N - 1), ONE_EACH),
        (torch.ones(N, 1), ONE_EACH),
        (2.0, ONE_EACH),
        (torch.where(SEVENTH, -1.0, 1.0), "in 1 of 160 rows, first -1 in row 7"),
        (torch.zeros(N), "in 160 of 160 rows, first 0 in row 0; drop rows"),
        (torch.where(SEVENTH, torch.nan, 1.0), "first nan in row 7"),
        (torch.where(SEVENTH, torch.inf, 1.0).numpy(), "first inf in row 7"),
    ],
)
def test_wrong_weights_are_refused_before_the_fit(fit_case, weights, match):
    with pytest.raises(ValueError, match=match):
        fit_case(weights=weights)


def test_a_loader_that_shuffles_cannot_have_weights(case, fit_case):
    rows = torch.utils.data.TensorDataset(case.inputs, case.targets)
    with pytest.raises(ValueError, match="the train loader shuffles: weights"):
        fit_case(train=torch.utils.data.DataLoader(rows, shuffle=True), weights=torch.ones(N))
