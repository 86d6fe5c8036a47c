import pytest
import torch

import trustgp
from trustgp import JacobianRows, Patchwork, Threads, Witness
from trustgp.data.rows import Rows
from trustgp.executors import FitContext
from trustgp.experts.expert import Problem
from trustgp.fitting.divide import embed_rows
from trustgp.fitting.solve import make_tasks, solve_tasks
from trustgp.state.expert_tensors import expert_tensors


def new_rows(toy, n=12, corner=False):
    inputs, targets = toy(400, seed=31)
    if corner:  # all of them in one corner, so that some experts are not concerned
        best = (inputs - torch.tensor([2.0, 2.0, 2.0]).double()).norm(dim=1).argsort()
        inputs, targets = inputs[best], targets[best]
    return inputs[:n], targets[:n]


def solved_anew(model, case, added, report, groups=None):
    """What a fit with the same partition on all rows would give, as tables of tensors."""
    inputs, targets = (torch.cat(pair) for pair in zip((case.inputs, case.targets), added, strict=True))
    residual = targets - case.network(inputs).detach()
    tables, context = [], FitContext(torch.device("cpu"), 0, Threads(2), report)
    for k, mixture in enumerate(model.mixtures):
        points = embed_rows(mixture.tangents, mixture.gate, Rows(*added), context)
        partition = model.memory.partitions[k].extend(points)
        problem = Problem(Rows(inputs, targets), mixture.tangents, mixture.outputs, residual, groups)
        solved = solve_tasks(problem, make_tasks(partition, model.origin.lend[k]), context, strict=True)
        tables.append(expert_tensors(tuple(result.expert for result in solved)))
    return tables


def assert_experts_are(model, tables):
    for mixture, expected in zip(model.mixtures, tables, strict=True):
        found = expert_tensors(mixture.experts)
        assert found.keys() == expected.keys()
        assert [name for name in found if not torch.equal(found[name], expected[name])] == []


OPTIONS = [
    {"witness": Witness(), "num_experts": 1},
    {"outputs": "separate", "patchwork": Patchwork(neighbours=0)},
    {"tangents": JacobianRows(keep=60, keep_per_expert=15)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_result_equals_a_fit_with_the_same_partition_on_all_rows(fit_experts, case, toy, report, options):
    model = fit_experts(**options)
    added = new_rows(toy)
    expected = solved_anew(model, case, added, report)
    model.update(added, progress=False)
    assert_experts_are(model, expected)
    assert model.origin.rows == 172


def test_two_updates_equal_one(fit_case, toy, assert_same_state):
    inputs, targets = new_rows(toy, 20)
    at_once, in_steps = (fit_case() for _ in range(2))
    at_once.update((inputs, targets), progress=False)
    in_steps.update((inputs[:7], targets[:7]), progress=False)
    in_steps.update((inputs[7:], targets[7:]), progress=False)
    assert_same_state(at_once, in_steps)
    assert at_once.origin == in_steps.origin


def test_only_the_experts_concerned_are_solved_again(fit_experts, toy):
    model = fit_experts(num_experts=8)
    before = model.mixtures[0].experts
    touched = model.update(new_rows(toy, 3, corner=True), progress=False)
    after = model.mixtures[0].experts
    assert 0 < len(touched) < len(after)
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        assert (new is not old) == (i in touched)


def test_a_loaded_model_is_updated_with_its_training_rows(fit_case, case, toy, tmp_path, assert_same_state):
    model = fit_case()
    model.save(tmp_path / "arm.trustgp")
    loaded = trustgp.load(tmp_path / "arm.trustgp", case.network)
    added = new_rows(toy)
    again = loaded.update(added, train=(case.inputs, case.targets), progress=False)
    assert again == model.update(added, progress=False)
    assert_same_state(loaded, model)


def test_a_loaded_light_model_is_updated_without_its_rows(fitted, case, toy, tmp_path):
    inputs, targets = new_rows(toy)
    fitted.save(tmp_path / "arm.trustgp")
    loaded = trustgp.load(tmp_path / "arm.trustgp", case.network)
    before = loaded.predict(inputs)
    touched = loaded.update((inputs, targets), progress=False)
    assert touched == before.expert.unique().tolist()
    assert loaded.origin.rows == len(case.inputs) + len(inputs)
    own = sum(int(expert.own) for expert in loaded.mixtures[0].experts)
    assert own == len(case.inputs) + len(inputs)
    after = loaded.predict(inputs)
    assert bool((after.novelty < before.novelty).all())
    assert torch.equal(after.mean, before.mean)
    loaded.save(tmp_path / "more.trustgp")
    again = trustgp.load(tmp_path / "more.trustgp", case.network)
    assert torch.equal(again.predict(inputs).variance, after.variance)


def test_a_loaded_model_wants_its_own_training_rows(fit_experts, fitted, case, toy, tmp_path):
    fitted.save(tmp_path / "arm.trustgp")
    loaded, (x, y) = trustgp.load(tmp_path / "arm.trustgp", case.network), (case.inputs, case.targets)
    for other in ((x, y + 1e-9), (x.flip(0), y.flip(0)), (x[:-1], y[:-1])):
        with pytest.raises(ValueError, match="other rows"):
            loaded.update(new_rows(toy), train=other, progress=False)
    fit_experts(budget="none").save(tmp_path / "exact.trustgp")
    with pytest.raises(ValueError, match=r"train=\(inputs, targets\)"):
        trustgp.load(tmp_path / "exact.trustgp", case.network).update(new_rows(toy), progress=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda x, y: {"new_rows": (x, y[:, :1])}, r"1 targets a row; the .* 2 targets"),
        (lambda x, y: {"new_rows": (x[:, :1], y)}, "cannot be called on"),
        (lambda x, y: {"new_rows": ((x, x), y)}, "structure"),
        (lambda x, y: {"new_rows": (x * torch.nan, y)}, "NaN or infinite"),
        (lambda x, y: {"new_rows": (x[:5], y)}, "5 inputs but 12 targets"),
        (lambda x, y: {"new_rows": (x, y), "groups": torch.zeros(12)}, "exactly when"),
    ],
)
def test_rows_of_another_kind_are_refused_and_change_nothing(fitted, toy, options, message):
    before = fitted.state
    with pytest.raises(ValueError, match=message):
        fitted.update(**options(*new_rows(toy)), progress=False)
    assert fitted.state is before


def test_an_update_calibrates_again_where_there_are_groups(fit_experts, toy):
    groups = torch.arange(160) // 20
    model = fit_experts(groups=groups)
    before = model.calibrations
    with pytest.raises(ValueError, match="exactly when"):
        model.update(new_rows(toy), progress=False)
    model.update(new_rows(toy), groups=torch.zeros(12), progress=False)
    assert not torch.equal(model.calibrations[0].bias, before[0].bias)
    assert model.memory.groups.tolist() == [*groups.tolist(), *[8] * 12]
