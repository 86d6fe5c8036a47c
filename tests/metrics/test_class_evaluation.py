"""Every score of a classifier in one call, against the metrics one by one and scikit-learn."""

import json

import pytest
import torch
from metrics.by_hand import calibration_error, make
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

import trustgp
from trustgp import metrics
from trustgp.metrics.score_report import RowCounts, plain


@pytest.fixture(scope="module")
def scored(blob, blob_model):
    return trustgp.evaluate(blob_model, blob.test, ood=30 * blob.test[0], progress=False)


def test_scores_are_those_of_scikit_learn_and_of_loops(blob, blob_model, scored):
    p, labels = blob_model.predict(blob.test[0]), blob.test[1]
    own, foreign = p.probabilities, blob_model.predict(30 * blob.test[0])
    assert scored.nll == pytest.approx(log_loss(labels, own.double()), abs=1e-6)
    assert scored.accuracy == pytest.approx(accuracy_score(labels, own.argmax(1)))
    assert scored.ece == pytest.approx(calibration_error(own, labels, 15), abs=1e-5)
    truth = torch.cat([torch.zeros(400), torch.ones(400)])
    for name, scores in (
        ("score", torch.cat([p.score, foreign.score])),
        ("entropy", metrics.entropy(torch.cat([own, foreign.probabilities]))),
    ):
        assert getattr(scored, f"auroc_{name}") == pytest.approx(roc_auc_score(truth, scores), abs=1e-9)
    own = blob.network(blob.test[0]).detach().double().softmax(1)
    assert scored.network_nll == pytest.approx(float(metrics.class_nll(own, labels).mean()), rel=1e-5)
    ece = metrics.expected_calibration_error(own, labels)
    assert scored.network_ece == pytest.approx(float(ece), abs=1e-5)


def test_curves_belong_to_the_scores_and_the_table_shows_them(scored):
    assert float(scored.risk[-1]) == pytest.approx(1 - scored.accuracy)
    assert scored.aurc_oracle <= scored.aurc <= 1 - scored.accuracy
    assert float(scored.bin_rows.sum()) == 400
    gaps = (scored.bin_rows * (scored.confidence - scored.right).abs()).sum() / 400
    assert scored.ece == pytest.approx(float(gaps))
    assert "400 rows, 3 classes, against 400 foreign rows" in str(scored)
    assert "accuracy" in repr(scored)
    assert json.loads(json.dumps(scored.to_dict()))["scores"]["all"]["nll"] == scored.nll


def test_foreign_rows_with_labels_are_scored_and_rows_without_a_prediction_counted(blob, blob_model):
    both = trustgp.evaluate(blob_model, blob.test, ood=blob.validation, progress=False)
    alone = trustgp.evaluate(blob_model, blob.validation, progress=False)
    assert both.ood_nll == pytest.approx(alone.nll)
    assert both.ood_accuracy == pytest.approx(alone.accuracy)
    assert alone.auroc_score is None
    p = blob_model.predict(torch.where(torch.arange(400)[:, None] == 3, torch.nan, blob.test[0]))
    assert "No finite prediction for 1 of 400 rows" in str(trustgp.evaluate(p, blob.test[1]))


def test_labels_that_are_none_are_refused(blob, blob_model):
    with pytest.raises(ValueError, match="data labels lie beyond"):
        trustgp.evaluate(blob_model, (blob.test[0], blob.test[1] + 5), progress=False)
    with pytest.raises(ValueError, match="MultiLabel"):
        trustgp.evaluate(blob_model, (blob.test[0], torch.rand(400, 3)), progress=False)
    with pytest.raises(ValueError, match="agree"):
        trustgp.evaluate(blob_model.predict(blob.test[0]), blob.test[1][:5])
    numbers = make(torch.zeros(5, 1), torch.ones(5, 1))
    with pytest.raises(TypeError, match="both must be predicted alike"):
        trustgp.evaluate(blob_model.predict(blob.test[0]), blob.test[1], ood=numbers)


def test_plain_values_are_what_json_can_hold_of_dataclasses_tensors_and_infinite_numbers():
    counts = RowCounts(3, 1)
    given = {"counts": counts, 1: torch.tensor([[1.0, torch.inf]]), "none": None, "pair": (2, float("nan"))}
    expected = {"rows": 3, "invalid": 1, "ood_rows": 0, "ood_invalid": 0}
    assert plain(given) == {"counts": expected, "1": [[1.0, "inf"]], "none": None, "pair": [2, "nan"]}
    assert plain(given, infinite=lambda value: None)["1"] == [[1.0, None]]
