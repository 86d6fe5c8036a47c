"""Promise 11: an expert that cannot be factorised does not take the others down, and says so."""

import pytest
import torch
from reference import dense_jacobian
from reliability.helpers import quiet_fit, raw_bytes, rows, seeded, trained
from torch import nn
from zoo import Net

import trustgp
from trustgp.data.trees import state_tensors
from trustgp.fitting import solve as solving

VICTIM = 1
KINDS = {"factors": trustgp.LayerFactors(), "rows": trustgp.JacobianRows()}


@pytest.fixture(scope="module")
def data():
    return trained(90, width=6)


@pytest.fixture
def break_one(monkeypatch):
    """Makes one expert of every kernel unsolvable, by the rows that are its own."""
    original = solving.solve_expert
    real_make_tasks = solving.make_tasks

    def breaking(error: Exception, victims=(VICTIM,)):
        doomed = []

        def make_tasks(partition, handout, **options):
            tasks = real_make_tasks(partition, handout, **options)
            doomed.extend(tasks[i].own for i in victims)
            return tasks

        def solve(problem, task):
            if any(task.own is own for own in doomed):
                raise error
            return original(problem, task)

        monkeypatch.setattr(solving, "make_tasks", make_tasks)
        monkeypatch.setattr(solving, "solve_expert", solve)

    return breaking


def failing_fit(data, **options):
    network, x, y = data
    with pytest.warns(UserWarning, match="could not be solved") as caught:
        model = quiet_fit(network, (x, y), num_experts=4, **options)
    return model, [str(one.message) for one in caught if "could not be solved" in str(one.message)]


FAILS, NO_SOLUTION = trustgp.FactorisationError("made to fail"), torch.linalg.LinAlgError("no solution")
CASES = [("shared", "rows", (VICTIM,)), ("separate", "factors", (0, 1, 2)), ("pseudo", "rows", (3,))]


@pytest.mark.parametrize(("mode", "kind", "victims"), CASES)
def test_the_others_are_what_they_would_be_otherwise(data, break_one, kind, mode, victims, tmp_path):
    network, x, y = data
    options, error = {"outputs": mode, "tangents": KINDS[kind]}, NO_SOLUTION if victims == (3,) else FAILS
    whole = quiet_fit(network, (x, y), num_experts=4, **options)
    break_one(error, victims)
    model, messages = failing_fit(data, **options)
    assert model.failed == [(k, victim) for k in range(len(model.mixtures)) for victim in victims]
    assert len(messages) == len(model.mixtures)
    for words in (f"experts {', '.join(map(str, victims))} ", str(error), "strict=True"):
        assert all(words in text for text in messages)
    for ours, theirs in zip(model.mixtures, whole.mixtures, strict=True):
        for index, (one, other) in enumerate(zip(ours.experts, theirs.experts, strict=True)):
            same = list(map(raw_bytes, state_tensors(one))) == list(map(raw_bytes, state_tensors(other)))
            assert same == (index not in victims)
    assert bool(torch.isfinite(model.predict(x).variance).all())
    model.save(tmp_path / "m.trustgp")
    assert trustgp.load(tmp_path / "m.trustgp", network).failed == model.failed


@pytest.mark.parametrize("kind", KINDS)
def test_it_answers_with_the_prior_variance(data, break_one, kind):
    break_one(FAILS)
    model, _ = failing_fit(data, tangents=KINDS[kind], witness=None, outputs="shared")
    network, x, _ = data
    prediction = model.predict(x)
    there = prediction.expert == VICTIM
    assert 0 < int(there.sum()) < len(x)
    expert = model.mixtures[0].experts[VICTIM]
    prior = dense_jacobian(network, x[there]).square().sum(dim=2) * expert.scale  # of each output
    torch.testing.assert_close(prediction.plain.epistemic[there], prior)
    torch.testing.assert_close(prediction.epistemic[there], prior)  # novelty 1: the calibration fades out
    assert bool((prediction.novelty[there] == 1.0).all())
    assert bool((prediction.novelty[~there] < 1.0).all())
    assert bool((prediction.excess[there] == 0.0).all())
    assert bool(torch.equal(prediction.corrected.mean[there], network(x)[there]))
    assert bool(prediction.valid.all())


RAISED = [((VICTIM,), True, f"expert {VICTIM}: made"), (range(4), False, "no expert could be solved: made")]


@pytest.mark.parametrize(("victims", "strict", "message"), RAISED, ids=["strict", "all"])
def test_strict_and_the_failure_of_all_raise(data, break_one, victims, strict, message):
    break_one(FAILS, victims)
    with pytest.raises(trustgp.FactorisationError, match=message):
        quiet_fit(data[0], data[1:], num_experts=4, strict=strict)


def test_a_failed_expert_is_not_kept_as_finished(data, break_one, tmp_path, monkeypatch):
    """With a checkpoint, the next call tries it again."""
    network, x, y = data
    break_one(FAILS)
    failing_fit(data, checkpoint=tmp_path / "c")
    monkeypatch.undo()
    again = quiet_fit(network, (x, y), num_experts=4, checkpoint=tmp_path / "c")
    whole = quiet_fit(network, (x, y), num_experts=4)
    assert again.failed == []
    again.save(tmp_path / "again")
    whole.save(tmp_path / "whole")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "whole").read_bytes()


def steep(net, x):
    """The gradient is enormous beyond a limit, though the output is not."""
    inner = net.layer(x)
    return inner + torch.where(x[:, :1] > 1.0, 1e200 * (inner - inner.detach()), 0.0)


@pytest.mark.parametrize("num_experts", [1, 2])
def test_rows_whose_kernel_overflows_are_refused_by_name(num_experts):
    """Not made to fail but failing: gradients of 1e200, whose squares no float64 can hold."""
    x, y = rows(80, outputs=1)
    x[:, 0] = torch.where(x[:, 0] > 0, x[:, 0] + 5.0, x[:, 0] - 5.0)
    network = seeded(Net(steep, layer=nn.Linear(2, 1)), 0).double()
    with pytest.raises(trustgp.FactorisationError, match="overflow"):
        quiet_fit(network, (x, y), num_experts=num_experts, tangents=trustgp.JacobianRows())
