"""Every score of a classifier in one call, against the metrics one by one and scikit-learn."""

import csv
import json

import pytest
import torch
from blobs import blobs, fit
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from torchmetrics.functional.classification import multiclass_calibration_error

import trustgp
from trustgp import metrics
from trustgp.metrics.score_report import RowCounts, plain


@pytest.fixture(scope="module")
def case():
    return blobs()


@pytest.fixture(scope="module")
def model(case):
    return fit(case)


@pytest.fixture(scope="module")
def found(case, model):
    return trustgp.evaluate(model, case.test, ood=30 * case.test[0], progress=False)


def test_scores_are_those_of_scikit_learn_and_torchmetrics(case, model, found):
    p, labels = model.predict(case.test[0]), case.test[1]
    own, foreign = p.probabilities, model.predict(30 * case.test[0])
    assert found.nll == pytest.approx(log_loss(labels, own.double()), abs=1e-6)
    assert found.accuracy == pytest.approx(accuracy_score(labels, own.argmax(1)))
    expected = multiclass_calibration_error(own, labels, num_classes=3, n_bins=15)
    assert found.ece == pytest.approx(float(expected), abs=1e-5)
    truth = torch.cat([torch.zeros(400), torch.ones(400)])
    for name, scores in (
        ("score", torch.cat([p.score, foreign.score])),
        ("entropy", metrics.entropy(torch.cat([own, foreign.probabilities]))),
    ):
        assert getattr(found, f"auroc_{name}") == pytest.approx(roc_auc_score(truth, scores), abs=1e-9)


def test_the_networks_own_softmax_is_beside(case, found):
    own = case.network(case.test[0]).detach().double().softmax(1)
    assert found.network_nll == pytest.approx(float(metrics.class_nll(own, case.test[1]).mean()), rel=1e-5)
    assert found.network_ece == pytest.approx(
        float(metrics.expected_calibration_error(own, case.test[1])), abs=1e-5
    )


def test_curves_belong_to_the_scores(found):
    assert float(found.risk[-1]) == pytest.approx(1 - found.accuracy)
    assert found.aurc_oracle <= found.aurc <= 1 - found.accuracy
    assert float(found.bin_rows.sum()) == 400
    gaps = (found.bin_rows * (found.confidence - found.right).abs()).sum() / 400
    assert found.ece == pytest.approx(float(gaps))


def test_foreign_rows_with_labels_are_scored(case, model):
    found = trustgp.evaluate(model, case.test, ood=case.validation, progress=False)
    alone = trustgp.evaluate(model, case.validation, progress=False)
    assert found.ood_nll == pytest.approx(alone.nll)
    assert found.ood_accuracy == pytest.approx(alone.accuracy)
    assert alone.auroc_score is None


def test_table_dict_and_file_say_the_same(found, tmp_path):
    assert "400 rows, 3 classes, against 400 foreign rows" in str(found)
    assert "AUROC by score" in str(found)
    assert "accuracy" in repr(found)
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["scores"]["all"]["nll"] == found.nll
    with open(found.to_csv(tmp_path / "scores.csv")) as file:
        lines = {row["metric"]: row["value"] for row in csv.DictReader(file)}
    assert float(lines["ece"]) == found.ece
    assert lines["rows"] == "400"


def test_rows_without_a_prediction_are_counted(case, model):
    inputs = case.test[0].clone()
    p = model.predict(torch.where(torch.arange(400)[:, None] == 3, torch.nan, inputs))
    found = trustgp.evaluate(p, case.test[1])
    assert found.counts.invalid == 1
    assert "No finite prediction for 1 of 400 rows" in str(found)


def test_labels_that_are_none_are_refused(case, model):
    with pytest.raises(ValueError, match="data labels lie beyond"):
        trustgp.evaluate(model, (case.test[0], case.test[1] + 5), progress=False)
    with pytest.raises(ValueError, match="Soft"):
        trustgp.evaluate(model, (case.test[0], torch.rand(400, 3)), progress=False)
    with pytest.raises(ValueError, match="agree"):
        trustgp.evaluate(model.predict(case.test[0]), case.test[1][:5])


def test_plain_values_are_what_json_can_hold_of_dataclasses_tensors_and_infinite_numbers():
    counts = RowCounts(3, 1)
    given = {"counts": counts, 1: torch.tensor([[1.0, torch.inf]]), "none": None, "pair": (2, float("nan"))}
    expected = {"rows": 3, "invalid": 1, "ood_rows": 0, "ood_invalid": 0}
    assert plain(given) == {"counts": expected, "1": [[1.0, "inf"]], "none": None, "pair": [2, "nan"]}
    assert plain(given, infinite=lambda value: None)["1"] == [[1.0, None]]
