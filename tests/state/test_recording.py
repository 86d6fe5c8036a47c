"""Predictions as a GPU records them, computed on the CPU: the same values, and none is read back."""

import pytest
import torch
from torch import nn

import trustgp
from trustgp.experts import stack, witness
from trustgp.likelihoods import regression
from trustgp.state import recording
from trustgp.state.recording import Recordings
from trustgp.tangents.replay import _Watch


def model_of(kind: str) -> tuple[trustgp.UncertaintyModel, torch.Tensor]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 4)).double().eval()
    inputs = torch.randn(160, 3).double()
    logits = network(inputs).detach()
    targets = logits.argmax(dim=1) if kind == "classes" else logits + 0.1 * torch.randn(160, 4)
    likelihood = trustgp.Classification() if kind == "classes" else trustgp.Regression()
    options = {"likelihood": likelihood, "tangents": trustgp.Sketch(64), "num_experts": 3, "progress": False}
    return trustgp.fit(network, (inputs, targets), **options), inputs


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_a_recorded_prediction_reads_no_value_and_is_the_same(kind, monkeypatch):
    model, inputs = model_of(kind)
    names = ("mean", "variance", "novelty", "expert", "valid", "score")
    names += ("probabilities",) if kind == "classes" else ("epistemic", "aleatoric", "excess", "df")
    monkeypatch.setattr(witness, "MIN_PRODUCTS", 20_000)  # of some of the calls
    assert model.state.witness is None or model.state.witness.compact  # numbers that a state reads once
    seen = []

    def replay(given, size):
        with _Watch() as watch:
            result = recording._work(model.state, given)
        seen.extend(watch.operations)
        return result

    for rows in (inputs[:1], inputs[:40], 5 * inputs[:7]):
        expected = model.predict(rows)
        with monkeypatch.context() as patch:
            for module in (stack, witness, regression):
                patch.setattr(module, "readable", lambda _: False)
            recordings = Recordings()
            recordings._reason, recordings._replay = "", replay
            with torch.no_grad():
                given = recordings(model.state, rows)
        assert seen == []
        pairs = [(expected, given)]
        if kind == "numbers":
            pairs += [(expected.corrected, given.corrected), (expected.plain, given.plain)]
        for one, other in pairs:
            for name in names:
                torch.testing.assert_close(getattr(other, name), getattr(one, name), rtol=1e-9, atol=1e-12)


def test_a_row_that_is_not_finite_is_masked():
    model, inputs = model_of("numbers")
    rows = inputs[:6].clone()
    rows[2, 1] = torch.nan
    with torch.no_grad():
        result = recording._work(model.state, rows)
    values = result.layout.unpack(result.tensors)
    assert values["valid"].tolist() == [True, True, False, True, True, True]
    assert bool((values["epistemic"][2] == torch.inf).all())
    assert bool(torch.isfinite(values["epistemic"][values["valid"]]).all())


def test_only_the_first_call_of_a_shape_reads_values_back(monkeypatch):
    """Rows are padded to a shape that no call had: it is run before it is recorded."""
    model, inputs = model_of("numbers")
    for module in (stack, witness, regression):
        monkeypatch.setattr(module, "readable", lambda _: False)
    operations = []
    for _ in range(2):
        with torch.no_grad(), _Watch() as watch:
            recording._work(model.state, inputs[:16])
        operations.append(watch.operations)
    assert operations[0]
    assert operations[1] == []
