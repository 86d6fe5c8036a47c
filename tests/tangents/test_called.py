"""Predictors that can only be called: functions, estimators, ONNX sessions."""

import numpy as np
import pytest
import torch
from draws import Draws

import trustgp
from trustgp.tangents.called import Call, called_predictor

DRAWS = Draws()
X, NOISE = DRAWS.uniform(400, 2) * 4 - 2, DRAWS.normal(400, 1)
Y = torch.sin(2 * X[:, :1]) + 0.2 * X[:, 1:].abs() * NOISE
TRAIN, VALIDATION = (X[:250], Y[:250]), (X[250:320], Y[250:320])


def function(rows):
    return torch.sin(2 * rows[:, :1])


class Estimator:
    def predict(self, rows):
        assert isinstance(rows, np.ndarray)
        return np.sin(2 * rows[:, 0])


class Session:
    def get_inputs(self):
        return [type("Input", (), {"name": "x", "type": "tensor(double)"})]

    def run(self, names, feed):
        assert feed["x"].dtype == np.float64
        return [np.sin(2 * feed["x"][:, :1])]


@pytest.mark.parametrize("predictor", [function, Estimator(), Session()], ids=lambda one: type(one).__name__)
def test_a_predictor_keeps_its_outputs_and_gets_an_error_bar(predictor, tmp_path):
    model = trustgp.fit(predictor, TRAIN, validation=VALIDATION, progress=False)
    p = model.predict(X[320:])
    assert torch.equal(p.mean, function(X[320:]))
    low, high = p.interval(0.95)
    assert 0.85 <= float(((low <= Y[320:]) & (Y[320:] <= high)).double().mean()) <= 1.0
    far = model.predict(torch.full((1, 2), 50.0, dtype=torch.float64))
    assert float(far.std) > 3 * float(p.std.max())
    assert bool(far.is_novel)
    assert "can only be called" in repr(model.network)
    assert "CalledPredictor" in repr(model)
    assert model.mixtures[0].tangents.network.forward_mode  # J theta in one pass, not row by row
    model.save(tmp_path / "m")
    assert torch.equal(trustgp.load(tmp_path / "m", predictor).predict(X[320:]).std, p.std)
    with pytest.raises(trustgp.ArtifactError, match="fitted to another network"):
        trustgp.load(tmp_path / "m", lambda rows: function(rows) + 1.0)


def test_predictions_in_float64_for_float32_rows_stay_as_they_are():
    train, validation = ([part.float() for part in pair] for pair in (TRAIN, VALIDATION))
    model = trustgp.fit(Session(), train, validation=validation, progress=False)
    assert torch.equal(model.predict(X[320:].float()).mean, function(X[320:].float().double()))


def test_gradients_are_the_inputs_and_their_features_those_of_a_linear_regression():
    network = called_predictor(function, X)
    network.zero_grad()
    network(X[:1]).sum().backward()
    assert torch.equal(network.linear.weight.grad, X[:1])
    assert network.linear.bias.grad.tolist() == [1.0]
    assert (Call(function).__repr__(), Call(Estimator()).__repr__()) == ("function", "Estimator")


def test_without_validation_rows_a_warning_asks_for_them_and_exports_are_refused(tmp_path):
    with pytest.warns(UserWarning, match="pass validation=, rows that it was not trained on"):
        model = trustgp.fit(function, TRAIN, progress=False)
    with pytest.raises(trustgp.ExportError, match="can only be called, and cannot be exported"):
        trustgp.export_onnx(model, tmp_path / "m.onnx", X[:2])
