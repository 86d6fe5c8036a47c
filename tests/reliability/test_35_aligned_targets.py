"""Promise 35: targets [n] and outputs [n, 1] mean the same everywhere; nothing broadcasts to [n, n]."""

from dataclasses import replace

import pytest
import torch

from trustgp.likelihoods.prediction import ClassPrediction, Prediction
from trustgp.metrics.evaluation import Evaluation

N = 6
TARGETS = torch.linspace(-1, 1, N)
BLANK = {"novelty": torch.zeros(N), "expert": torch.zeros(N).long(), "valid": torch.ones(N).bool()}


def predicted(*shape: int) -> Prediction:
    ones = torch.ones(shape)
    parts = {"epistemic": 0.5 * ones, "aleatoric": 0.2 * ones, "excess": 0.1 * ones}
    vague = torch.linspace(0, 0.5, N).reshape(N, *[1] * (len(shape) - 1)) * ones
    rare = {
        "rare": 0.3 * ones,
        "outlier_share": 0.1,
        "df": 5 * ones,
        "fallback_weight": vague,
        "fallback_location": ones,
    }
    return Prediction(mean=torch.zeros(shape), **parts, **rare, **BLANK)


SCORES = {
    "log_prob": lambda p, y: p.log_prob(y),
    "crps": lambda p, y: p.crps(y),
    "distribution": lambda p, y: p.distribution.log_prob(y),
    "cdf": lambda p, y: p.distribution.cdf(y),
}


@pytest.mark.parametrize("name", SCORES)
def test_targets_and_outputs_of_one_column_are_aligned(name):
    score, flat = SCORES[name], predicted(N)
    want = score(flat, TARGETS)
    assert want.shape == (N,)
    assert torch.equal(score(flat, TARGETS[:, None]), want)
    for targets in (TARGETS, TARGETS[:, None]):
        assert torch.equal(score(predicted(N, 1), targets), want[:, None])
    assert score(predicted(N, 3), torch.zeros(4, N, 3)).shape == (4, N, 3)  # several draws
    for shape, wrong in (((N, 1), (N + 1,)), ((N, 3), (N,)), ((N, 3), (N, 1, 3)), ((N,), (N, 2))):
        with pytest.raises(ValueError, match=r"targets have the shape .* pass targets of the same shape"):
            score(predicted(*shape), torch.zeros(wrong))


def test_class_numbers_of_one_column_are_aligned():
    zeros = torch.zeros(N, 3)
    logits, labels = torch.randn(N, 3, generator=torch.Generator().manual_seed(0)), torch.arange(N) % 3
    parts = {"epistemic": zeros, "aleatoric": zeros, "excess": zeros, "temperature": torch.ones(N).double()}
    p = ClassPrediction(mean=logits, **parts, **BLANK)
    want = torch.log_softmax(logits.double(), dim=1)[torch.arange(N), labels]
    for each in (labels, labels[:, None]):
        torch.testing.assert_close(p.log_prob(each), want, rtol=1e-6, atol=1e-7)
    with pytest.raises(ValueError, match="pass targets of the same shape"):
        p.log_prob(torch.zeros(N, 3).long())


def test_an_evaluation_of_outputs_without_columns_is_that_of_one_column():
    one, other = (
        Evaluation.of(replace(p, fallback_location=p.fallback_location), TARGETS[:, None], names=["a"])
        for p in (predicted(N), predicted(N, 1))
    )
    assert (one.nll, one.crps, one.coverage) == (other.nll, other.crps, other.coverage)
