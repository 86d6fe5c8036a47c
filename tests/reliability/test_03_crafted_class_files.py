"""Promise 3 for classifiers: wrong contents under a correct checksum are refused by the tensor's name."""

from __future__ import annotations

import pytest
import torch
from blobs import blobs, fit
from reliability.helpers import forge_tensors, forge_text

import trustgp


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    case = blobs()
    model = fit(case)
    model.threshold(false_alarm=0.05)
    path = tmp_path_factory.mktemp("classes") / "m.trustgp"
    model.save(path)
    return case, path


def put(name, function):
    def change(tensors):
        tensors[name] = function(tensors[name].clone())

    return change


def drop(name):
    return lambda tensors: tensors.pop(name)


TEMPERATURE = "calibration.0."
CRAFTED = {
    "negative base": (put(TEMPERATURE + "base", lambda t: -t), TEMPERATURE + "base"),
    "no slope": (drop(TEMPERATURE + "slope"), TEMPERATURE + "slope"),
    "slope of zero": (put(TEMPERATURE + "slope", lambda t: 0 * t), TEMPERATURE + "slope"),
    "slopes of other experts": (put(TEMPERATURE + "slopes", lambda t: t[:-1]), TEMPERATURE + "slopes"),
    "slope that is no number": (put(TEMPERATURE + "slopes", lambda t: t * torch.nan), TEMPERATURE + "slopes"),
    "single precision": (put(TEMPERATURE + "base", lambda t: t.float()), TEMPERATURE + "base"),
    "calibration of numbers": (
        lambda t: t.update({"calibration.1.level": torch.ones(3).double()}),
        "calibration.1.level",
    ),
    "negative score": (put("novelty.scores", lambda t: -t - 1), "novelty.scores"),
    "threshold below 0": (put("novelty.threshold", lambda t: -t - 1), "novelty.threshold"),
    "threshold without a rate": (drop("novelty.false_alarm"), "novelty.false_alarm"),
    "rate without a threshold": (drop("novelty.threshold"), "novelty.threshold"),
    "rate beyond 1": (put("novelty.false_alarm", lambda t: t + 1), "novelty.false_alarm"),
    "a scale for each class": (
        put("mixture.0.experts.scale", lambda t: t.repeat(1, 3)),
        "mixture.0.experts.scale",
    ),
}


@pytest.mark.parametrize("kind", CRAFTED)
def test_crafted_tensors_are_refused_by_name(saved, tmp_path, kind):
    (case, path), (change, name) = saved, CRAFTED[kind]
    forged = tmp_path / "forged.trustgp"
    forge_tensors(path, forged, change)
    with pytest.raises(trustgp.ArtifactError, match=name.replace(".", r"\.")):
        trustgp.load(forged, case.network)


@pytest.mark.parametrize(
    "change",
    [
        {"likelihood": {"kind": "Detection", "settings": {}}},
        {"likelihood": {"kind": "Classification", "settings": {"classes": 3}}},
        {"split": [3]},
        {"split": [10, 20]},
        {"split": ["a", 0]},
    ],
)
def test_crafted_descriptions_are_refused(saved, tmp_path, change):
    case, path = saved
    forged = tmp_path / "forged.trustgp"
    forge_text(path, forged, lambda text: text.update(change))
    with pytest.raises(trustgp.ArtifactError, match="description"):
        trustgp.load(forged, case.network)


def test_a_file_of_numbers_is_no_classifier(saved, tmp_path):
    case, path = saved
    forged = tmp_path / "forged.trustgp"
    forge_text(path, forged, lambda text: text.update({"likelihood": {"kind": "Regression", "settings": {}}}))
    with pytest.raises(trustgp.ArtifactError):
        trustgp.load(forged, case.network)
