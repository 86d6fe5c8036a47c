"""A fitted model: its parts, what it takes, save and load."""

import copy

import pytest
import torch
from reference import gaussian_nll
from shared_fixtures import toy_rows
from torch.utils.data import DataLoader, TensorDataset

import trustgp
from trustgp import JacobianRows
from trustgp.data.quantities import size_text
from trustgp.data.trees import state_tensors
from trustgp.state.latent import predict_latent

TEST = toy_rows(40, seed=3)
FIELDS = ("mean", "epistemic", "aleatoric", "excess", "novelty", "expert", "valid")


def assert_equal_predictions(one, other, rtol=0.0, atol=0.0):
    for name in FIELDS:
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=rtol, atol=atol)


def test_the_parts_of_a_prediction_fit_together(fitted):
    prediction = fitted.predict(TEST[0].clone().requires_grad_(True))
    for one in (prediction, prediction.corrected, prediction.plain):
        usual, vague = one.epistemic + one.aleatoric + one.excess + one.rare, one.fallback_weight
        if vague is not None:
            usual = (1 - vague) * usual + vague * (
                11 * one.rare / one.outlier_share + (one.fallback_location - one.mean) ** 2
            )
        torch.testing.assert_close(one.variance, usual, rtol=1e-12, atol=0)
        assert not one.mean.requires_grad
        assert not one.variance.requires_grad
    raw, plain = predict_latent(fitted.state, TEST[0], prediction.mean), prediction.plain
    assert torch.equal(plain.epistemic, raw.epistemic)
    assert torch.equal(plain.aleatoric, raw.noise)


def test_the_error_bar_covers_and_is_better_than_a_constant_one(fit_case, fitted, case, toy):
    (inputs, targets), validation = toy(400, seed=11), toy(200, seed=12)
    model = fit_case(validation=validation)
    p = model.predict(inputs)
    lower, upper = p.interval(0.9)
    share = float(((targets >= lower) & (targets <= upper)).double().mean())
    assert share == pytest.approx(0.9, abs=0.06)  # 800 numbers
    constant = (model.predict(validation[0]).mean - validation[1]).square().mean(dim=0).expand_as(targets)
    assert gaussian_nll(p.mean, p.variance, targets) < gaussian_nll(p.mean, constant, targets)
    p = fitted.predict(case.inputs)
    own, corrected = ((q.mean - case.targets).square().mean() for q in (p, p.corrected))
    assert float(corrected) <= float(own)
    familiar, far = fitted.novelty(case.inputs), fitted.novelty(case.inputs * 20)
    assert float(far.mean()) > 3 * float(familiar.mean())
    assert bool(((familiar >= 0) & (familiar <= 1)).all())


def test_inputs_are_predicted_in_order_however_they_come(fitted):
    inputs, expected = TEST[0], fitted.predict(TEST[0])
    assert_equal_predictions(fitted(inputs), expected)
    assert_equal_predictions(fitted.predict(inputs.numpy()), expected)
    pairs, alone = TensorDataset(*TEST), TensorDataset(inputs)
    for source in (pairs, TEST, DataLoader(pairs, batch_size=7), DataLoader(alone, batch_size=7)):
        # but for the order in which a matrix product adds, which depends on its shape
        assert_equal_predictions(fitted.predict(source), expected, rtol=1e-9, atol=1e-12)
    assert fitted.predict(DataLoader(pairs, batch_size=7)).corrected.mean.shape == (40, 2)


def test_a_model_describes_itself_in_ten_lines(fitted, fit_case, case, toy, tmp_path):
    text = repr(fitted)
    assert len(text.splitlines()) <= 10
    for fact in ("Sequential", "rows: 160", "2 outputs", "experts: 4", "JacobianRows(", "Regression()"):
        assert fact in text
    assert size_text(fitted.nbytes) in text
    assert "calibration: 160 training rows, left out in turn" in text
    fitted.save(tmp_path / "a.trustgp")
    assert repr(trustgp.load(tmp_path / "a.trustgp", case.network)) == text
    names = [name for name, _ in case.network.named_parameters()]
    options = {"tangents": JacobianRows(parameters=names), "validation": toy(30, seed=5), "num_experts": 1}
    other = repr(fit_case(**options))
    assert "calibration: 30 validation rows" in other
    assert max(map(len, (text + other).splitlines())) <= 110


def test_bytes_are_those_of_its_tensors(fitted):
    maps = [tuple(mixture.tangents.state().values()) for mixture in fitted.mixtures]
    tensors = state_tensors((fitted.mixtures, maps, fitted.witness))
    assert fitted.nbytes == sum(t.numel() * t.element_size() for t in tensors)
    assert fitted.num_experts == len(fitted.mixtures[0].experts)
    assert fitted.failed == []


@pytest.mark.parametrize("outputs", ["shared", "separate", "pseudo"])
def test_an_experts_own_rows_are_those_of_the_gate_and_others_of_neighbours(fit_case, case, outputs):
    model, borrowed = fit_case(num_experts=6, outputs=outputs, witness=None), 0
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


OPTIONS = [
    {},
    {"num_experts": 1, "outputs": "separate"},
    {"outputs": "pseudo", "tangents": JacobianRows()},
    {"tangents": JacobianRows(keep=50, keep_per_expert=11), "groups": torch.arange(160) // 16},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["default", "separate", "pseudo", "kept"])
def test_a_loaded_model_predicts_to_the_bit(fit_case, case, tmp_path, assert_same_state, options):
    model, network = fit_case(**options), copy.deepcopy(case.network)
    model.save(tmp_path / "arm.trustgp")
    before = copy.deepcopy(network.state_dict())
    again = trustgp.load(tmp_path / "arm.trustgp", network)
    assert_same_state(model, again)
    one, other = model.predict(TEST[0]), again.predict(TEST[0])
    for a, b in ((one, other), (one.corrected, other.corrected), (one.plain, other.plain)):
        assert_equal_predictions(a, b)
    assert torch.equal(other.mean, network(TEST[0]))
    assert again.origin == model.origin
    assert again.nbytes == model.nbytes
    assert all(p.requires_grad for p in network.parameters())  # loading leaves the network alone
    assert all(torch.equal(before[name], p) for name, p in network.state_dict().items())
