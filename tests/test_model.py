import copy

import pytest
import torch
from reference import gaussian_nll
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trustgp
from trustgp import ArtifactError, JacobianRows
from trustgp.data.quantities import size_text
from trustgp.data.trees import state_tensors

FIELDS = ("mean", "epistemic", "aleatoric", "excess", "novelty", "expert", "valid")


@pytest.fixture(scope="module")
def test_rows(toy):
    return toy(40, seed=3)


def assert_equal_predictions(one, other):
    for name in FIELDS:
        assert torch.equal(getattr(one, name), getattr(other, name)), name


def assert_close_predictions(one, other):
    """The same up to the order in which a matrix product adds, which depends on its shape."""
    for name in FIELDS:
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-9, atol=1e-12)


def test_variance_is_epistemic_plus_aleatoric_plus_excess_plus_rare(fitted, test_rows):
    for p in (fitted.predict(test_rows[0]),):
        for q in (p, p.corrected, p.plain):
            assert torch.equal(q.variance, q.epistemic + q.aleatoric + q.excess + q.rare)


def test_excess_is_the_share_of_the_squared_residual_mean_that_left_out_rows_ask_for(fit_case, test_rows):
    model = fit_case(witness=None)
    p = model.predict(test_rows[0])
    raw, (own, corrected, *_) = model.raw(test_rows[0], p.mean), model.calibrations
    expected = own.excess * (own.weight * raw.residual_mean).square()
    torch.testing.assert_close(p.excess, expected, rtol=1e-8, atol=1e-14)
    mean = p.mean + corrected.weight * raw.residual_mean
    torch.testing.assert_close(p.corrected.mean, mean, rtol=1e-10, atol=1e-14)
    assert bool((p.corrected.excess == 0).all())
    assert bool((p.plain.excess == 0).all())


def test_plain_is_what_the_experts_say(fitted, test_rows):
    predicted = fitted.predict(test_rows[0])
    raw, plain = fitted.raw(test_rows[0], predicted.mean), predicted.plain
    assert torch.equal(plain.epistemic, raw.epistemic)
    assert torch.equal(plain.aleatoric, raw.noise)


def test_the_corrected_mean_is_nearer_to_new_targets(fitted, case, test_rows):
    p = fitted.predict(case.inputs)
    own, corrected = ((q.mean - case.targets).square().mean() for q in (p, p.corrected))
    assert float(corrected) < float(own)


def test_the_interval_holds_its_share_of_the_rows(fit_case, toy):
    inputs, targets = toy(400, seed=11)
    p = fit_case(validation=toy(200, seed=12)).predict(inputs)
    lower, upper = p.interval(0.9)
    share = float(((targets >= lower) & (targets <= upper)).double().mean())
    assert share == pytest.approx(0.9, abs=0.06)  # 800 numbers


def test_novelty_grows_away_from_the_rows(fitted, case):
    near = fitted.novelty(case.inputs)
    far = fitted.novelty(case.inputs * 20)
    assert float(far.mean()) > 3 * float(near.mean())
    assert bool(((near >= 0) & (near <= 1)).all())


def test_forward_is_predict(fitted, test_rows):
    assert_equal_predictions(fitted(test_rows[0]), fitted.predict(test_rows[0]))


def test_loaders_and_datasets_are_predicted_in_order(fitted, test_rows):
    inputs, targets = test_rows
    expected = fitted.predict(inputs)
    data = TensorDataset(inputs, targets)
    assert_close_predictions(fitted.predict(data), expected)
    assert_close_predictions(fitted.predict(DataLoader(data, batch_size=7)), expected)
    assert_close_predictions(fitted.predict((inputs, targets)), expected)
    p = fitted.predict(DataLoader(data, batch_size=7)).corrected
    assert p.mean.shape == (40, 2)


def test_a_dataset_of_inputs_alone_is_predicted(fitted, test_rows):
    data = TensorDataset(test_rows[0])
    assert_close_predictions(fitted.predict(DataLoader(data, batch_size=7)), fitted.predict(test_rows[0]))


def test_arrays_are_predicted(fitted, test_rows):
    assert_equal_predictions(fitted.predict(test_rows[0].numpy()), fitted.predict(test_rows[0]))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": torch.zeros(2, 3)}, "structure"),
        ((torch.zeros(2, 3),) * 3, "structure"),
        (torch.zeros(0, 3), "no rows"),
        (DataLoader(TensorDataset(torch.zeros(0, 3))), "no rows"),
    ],
)
def test_inputs_of_another_structure_are_refused(fitted, inputs, message):
    with pytest.raises(ValueError, match=message):
        fitted.predict(inputs)


def test_rows_that_are_not_finite_are_marked_and_leave_the_others_alone(fitted, test_rows):
    inputs = test_rows[0].clone()
    inputs[3, 1], inputs[7, 0] = torch.nan, torch.inf
    p = fitted.predict(inputs)
    bad = torch.zeros(40, dtype=torch.bool)
    bad[[3, 7]] = True
    assert torch.equal(p.valid, ~bad)
    for q in (p, p.corrected, p.plain):
        assert torch.equal(q.valid, ~bad)
        assert bool(torch.isinf(q.variance[bad]).all())
    assert p.novelty[bad].tolist() == [1.0, 1.0]
    alone = fitted.predict(inputs[~bad])
    assert torch.equal(p.mean[~bad], alone.mean)
    assert torch.equal(p.variance[~bad], alone.variance)


def test_a_batch_without_a_finite_row_is_answered(fitted):
    p = fitted.predict(torch.full((3, 3), torch.nan, dtype=torch.float64))
    assert not p.valid.any()
    assert bool(torch.isinf(p.variance).all())
    assert p.expert.tolist() == [-1, -1, -1]


def test_predictions_need_no_gradient(fitted, test_rows):
    p = fitted.predict(test_rows[0].clone().requires_grad_(True))
    assert not p.mean.requires_grad
    assert not p.variance.requires_grad


def test_the_precision_of_a_model_stays(fitted):
    with pytest.raises(TypeError, match="precision"):
        copy.deepcopy(fitted).float()


def test_train_mode_does_nothing(fit_case, test_rows):
    model = fit_case(num_experts=1)
    before = model.predict(test_rows[0])
    model.train()
    assert not model.network.training
    assert_equal_predictions(model.predict(test_rows[0]), before)


def test_a_model_says_what_it_is_in_ten_lines(fitted, fit_case, case, toy, tmp_path):
    said = repr(fitted)
    assert len(said.splitlines()) <= 10
    assert max(map(len, said.splitlines())) <= 110
    for fact in ("Sequential", "rows: 160", "2 outputs", "experts: 4", "JacobianRows(", "Regression()"):
        assert fact in said
    assert size_text(fitted.nbytes) in said
    assert "calibration: 160 training rows, left out in turn" in said
    fitted.save(tmp_path / "a.trustgp")
    assert repr(trustgp.load(tmp_path / "a.trustgp", case.network)) == said
    assert "calibration: 30 validation rows" in repr(fit_case(validation=toy(30, seed=5), num_experts=1))
    named = [name for name, _ in case.network.named_parameters()]
    long = repr(fit_case(tangents=JacobianRows(parameters=named), num_experts=1))
    assert max(map(len, long.splitlines())) <= 110


def test_bytes_are_those_of_its_tensors(fitted):
    maps = [tuple(mixture.tangents.state().values()) for mixture in fitted.mixtures]
    tensors = state_tensors((fitted.mixtures, maps, fitted.witness))
    assert fitted.nbytes == sum(t.numel() * t.element_size() for t in tensors)
    assert fitted.num_experts == len(fitted.mixtures[0].experts)
    assert fitted.failed == []


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_experts": 1},
        {"outputs": "separate"},
        {"outputs": "pseudo"},
        {"tangents": JacobianRows()},
        {"tangents": JacobianRows(keep=50, keep_per_expert=11)},
        {"groups": torch.arange(160) // 16},
    ],
    ids=str,
)
def test_a_loaded_model_answers_to_the_bit(fit_case, case, test_rows, tmp_path, assert_same_state, options):
    model = fit_case(**options)
    model.save(tmp_path / "arm.trustgp")
    again = trustgp.load(tmp_path / "arm.trustgp", case.network)
    assert_same_state(model, again)
    one, other = model.predict(test_rows[0]), again.predict(test_rows[0])
    for a, b in ((one, other), (one.corrected, other.corrected), (one.plain, other.plain)):
        assert_equal_predictions(a, b)
    with torch.no_grad():
        assert torch.equal(other.mean, case.network(test_rows[0]))
    assert again.origin == model.origin
    assert again.nbytes == model.nbytes


def test_loading_leaves_the_network_alone(fitted, own_network, tmp_path):
    fitted.save(tmp_path / "arm.trustgp")
    before = {name: p.clone() for name, p in own_network.named_parameters()}
    trustgp.load(tmp_path / "arm.trustgp", own_network)
    assert all(p.requires_grad for p in own_network.parameters())
    assert all(torch.equal(before[name], p) for name, p in own_network.named_parameters())


def test_another_network_is_refused(fitted, own_network, tmp_path):
    fitted.save(tmp_path / "arm.trustgp")
    with torch.no_grad():
        own_network[0].weight[0, 0] += 1e-9
    with pytest.raises(ArtifactError, match="another network"):
        trustgp.load(tmp_path / "arm.trustgp", own_network)


def test_a_network_in_training_mode_is_refused_on_loading(case, fit_case, tmp_path):
    network = nn.Sequential(*case.network[:2], nn.Dropout(0.5), *case.network[2:]).eval()
    fit_case(network=network).save(tmp_path / "arm.trustgp")
    with pytest.raises(ValueError, match=r"network.eval\(\)"):
        trustgp.load(tmp_path / "arm.trustgp", network.train())


def test_the_error_bar_is_better_than_a_constant_one(fit_case, toy):
    inputs, targets = toy(300, seed=21)
    held = toy(150, seed=22)
    model = fit_case(validation=held)
    p = model.predict(inputs)
    own = model.predict(held[0])
    constant = (own.mean - held[1]).square().mean(dim=0).expand_as(targets)
    assert gaussian_nll(p.mean, p.variance, targets) < gaussian_nll(p.mean, constant, targets)
