"""`trustgp.fit` of a detector, its file, its threshold and its monitor."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from detection.conftest import DETECTORS, LOOSE, pictures
from torch import nn

import trustgp
from trustgp.cli import main
from trustgp.math.calibration import held_out_quantile

OPTIONS = {"likelihood": LOOSE, "progress": False}


def same(one: trustgp.Detections, other: trustgp.Detections) -> bool:
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one)]
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


@pytest.fixture
def alarmed(fitted):
    """A model with a threshold, which it has not outside the test."""
    network, model = fitted
    model.threshold(false_alarm=0.2)
    yield network, model
    model.state = dataclasses.replace(model.state, threshold=None)


def test_the_same_pictures_give_the_same_bytes(fitted, tmp_path):
    network, model = fitted
    model.save(tmp_path / "first.trustgp")
    trustgp.fit(network, pictures(30), **OPTIONS, validation=pictures(24)).save(tmp_path / "second.trustgp")
    assert (tmp_path / "first.trustgp").read_bytes() == (tmp_path / "second.trustgp").read_bytes()


@pytest.mark.parametrize(
    ("option", "match"),
    [
        ({"groups": [0, 1, 2]}, "groups= is not for detectors: pictures are held out as validation="),
        ({"output": lambda result: result.logits}, "output= is not for detectors"),
        ({"outputs": "shared"}, "outputs= is not for detectors: a detector has one expert for each class"),
        ({"tangents": trustgp.Sketch(64)}, "tangents= is not for detectors"),
        ({"num_experts": 3}, "num_experts= is not for detectors"),
        ({"witness": trustgp.Witness(rows=9)}, "witness= is not for detectors"),
        ({"budget": "2 MiB"}, "budget= is not for detectors: an error bar of a detector holds"),
        ({"budget": "many"}, "budget='many'"),
    ],
)
def test_options_that_are_not_for_detectors_are_refused_before_anything_is_read(option, match):
    with pytest.raises(ValueError, match=match):
        trustgp.fit(DETECTORS["plain"](), "not even looked at", **OPTIONS, **option)


def test_a_network_that_is_no_detector_is_refused():
    with pytest.raises(ValueError, match="does not say how many classes it knows"):
        trustgp.fit(nn.Linear(2, 2), pictures(3), **OPTIONS)


def test_a_model_says_what_it_is_in_ten_lines(fitted):
    said = repr(fitted[1])
    assert len(said.splitlines()) <= 10
    for fact in ("DetectionModel", "pictures: ", "2 classes", "encoder_attn: 32 numbers", "calibration: "):
        assert fact in said


def test_a_file_gives_back_the_same_bits(alarmed, tmp_path):
    network, model = alarmed
    path = tmp_path / "detector.trustgp"
    model.save(path)
    read = trustgp.load(path, network)
    images, _ = pictures(5, "flight")
    assert all(map(same, model.predict(images), read.predict(images)))
    assert torch.equal(read.held_scores, model.held_scores)
    assert (read.size, read.state.names, read.settings) == (model.size, model.state.names, model.settings)
    assert read.novelty_threshold is not None
    assert read.novelty_threshold.threshold == model.novelty_threshold.threshold
    read.save(tmp_path / "again.trustgp")
    assert path.read_bytes() == (tmp_path / "again.trustgp").read_bytes()


def test_a_file_is_refused_with_another_detector_and_when_damaged(fitted, tmp_path):
    network, model = fitted
    path = tmp_path / "detector.trustgp"
    model.save(path)
    name = type(network).__name__
    other = DETECTORS["conditional" if name.startswith("Detr") else "plain"]()
    changed = DETECTORS["plain" if name.startswith("Detr") else "conditional"]()
    with torch.no_grad():
        next(iter(changed.model.backbone.parameters())).add_(1e-3)  # not even part of a tail
    for strange in (other, changed, nn.Linear(2, 2)):
        with pytest.raises(trustgp.ArtifactError, match="was fitted to another detector"):
            trustgp.load(path, strange)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]):
        path.write_bytes(damaged)
        with pytest.raises(trustgp.ArtifactError):
            trustgp.load(path, network)


def test_a_detector_that_does_something_else_with_the_same_weights_is_refused(fitted, tmp_path):
    network, model = fitted
    model.save(tmp_path / "detector.trustgp")
    other = copy.deepcopy(network)
    other.model.decoder.layers[-1].mlp.activation_fn = nn.Tanh()
    with pytest.raises(trustgp.ArtifactError, match=r"does something else|another detector"):
        trustgp.load(tmp_path / "detector.trustgp", other)


def test_inspect_describes_the_file(alarmed, tmp_path, capsys):
    network, model = alarmed
    model.save(tmp_path / "detector.trustgp")
    assert main(["inspect", str(tmp_path / "detector.trustgp")]) == 0
    said = capsys.readouterr().out
    assert type(network).__name__ in said
    assert "48 x 48 pixels" in said
    assert "for 20 % false alarms" in said


def test_the_threshold_is_that_of_held_out_detections_that_have_found_a_thing(fitted):
    network, model = fitted
    images, things = pictures(24)
    threshold = model.threshold((images, things), false_alarm=0.2)
    assert threshold == pytest.approx(model.threshold(false_alarm=0.2), rel=1e-4)  # of the fit's own
    scores = []
    for found, true in zip(model.predict(images), things, strict=True):
        matched, shared = trustgp.detection.query_rows.match(
            *_said(network, images[len(scores) : len(scores) + 1]), true, side=48.0
        )
        hits = matched[shared >= LOOSE.overlap]
        order = _said(network, images[len(scores) : len(scores) + 1])[0].amax(dim=1)
        order = order.argsort(descending=True, stable=True)[: LOOSE.most]
        scores.append(found.novelty[torch.isin(order, hits)])
    expected = held_out_quantile(torch.cat(scores).double(), 0.8)
    assert threshold == pytest.approx(float(expected), rel=1e-4)
    (one,) = model.predict(images[0])
    assert torch.equal(one.is_novel, one.novelty > threshold)
    assert one.summary["novel"] == int(one.is_novel.sum())
    model.state = dataclasses.replace(model.state, threshold=None)
    (one,) = model.predict(images[0])  # fewer than 99: the largest score
    assert torch.equal(one.is_novel, one.novelty > model.held_scores.max())
    model.state = dataclasses.replace(state := model.state, held_scores=torch.zeros(0))
    (one,) = model.predict(images[0])
    model.state = state
    assert "novel" not in one.summary
    with pytest.raises(ValueError, match=r"call model.threshold"):
        _ = one.is_novel


def _said(network, images):
    with torch.no_grad():
        whole = network(images)
    chances = trustgp.detection.query_rows.probabilities(whole.logits, 2)[0]
    return chances, trustgp.metrics.boxes.corners(whole.pred_boxes[0]) * 48


def test_a_threshold_needs_held_out_detections(fitted):
    _, model = fitted
    with pytest.raises(ValueError, match="held-out rows, and there are"):
        model.threshold(false_alarm=0.001)
    assert model.novelty_threshold is None
    with pytest.raises(ValueError, match=r"scenes: pictures are \(32, 32\)"):
        model.threshold((torch.zeros(1, 3, 32, 32), [pictures(1)[1][0]]))


def test_a_monitor_judges_pictures(alarmed):
    _, model = alarmed
    images, _ = pictures(4)
    frames = trustgp.Monitor(model.watch(), std=1e6)
    assert frames.threshold == 0.5
    broken = images[0].clone()
    broken[0, 3, 3] = float("nan")
    assert frames(broken).status == "invalid input"  # the first frame of all
    for given in (images[1], images[1:2], images[1].numpy()):
        verdict = frames(given)
        (found,) = model.predict(images[1])
        over = found.over_threshold
        assert over >= float(found.novelty.max()) / float(model.novelty_threshold.threshold) - 1e-6
        assert verdict.novelty == pytest.approx(over / (1 + over), rel=1e-3)
        assert float(verdict.mean) == len(found)
        assert float(verdict.std) == pytest.approx(found.summary["std"], rel=1e-3)
    assert frames(broken).status == "invalid input"
    assert frames(images[0][:, :40]).status == "invalid input"
    assert trustgp.Monitor(model.watch(), 0.0)(images[1]).status == "novel"
    assert trustgp.Monitor(model.watch(), 1.0, std=1e-6)(images[1]).status == "uncertain"


def test_of_a_picture_without_detections_its_own_novelty_counts(alarmed):
    _, model = alarmed
    strict = type(model)(dataclasses.replace(model.state, settings=trustgp.Detection(0.9999)))
    watched = trustgp.Monitor(strict.watch(), std=1.0)
    (found,) = strict.predict(pictures(1)[0])
    limit = held_out_quantile(model.state.held_pictures, 0.8)
    assert found.over_threshold == pytest.approx(found.picture_novelty / float(limit))
    assert found.picture_is_novel == (found.picture_novelty > float(limit))
    verdict = watched(pictures(1)[0])
    assert verdict.status == ("novel" if found.picture_is_novel else "ok")
    assert (float(verdict.mean), float(verdict.std)) == (0.0, 0.0)
    unknown = dataclasses.replace(strict.state, threshold=None)
    with pytest.raises(ValueError, match="there is no threshold"):
        trustgp.Monitor(type(model)(unknown).watch())


def test_a_runner_answers_for_many_pictures_and_knows_broken_ones(fitted):
    images = pictures(3)[0].clone()
    images[1] = float("inf")
    said = fitted[1].watch()(images)
    assert said["valid"].tolist() == [True, False, True]
    assert said["novelty"][1] >= 0.5
    assert torch.isinf(said["variance"][1, 0])
    with pytest.raises(ValueError, match=r"\[n, channels, height, width\] is needed"):
        fitted[1].watch()(images[0])


def test_the_model_keeps_its_mode_and_its_precision(fitted):
    _, model = fitted
    assert not any(part.training for part in model.train().modules())
    with pytest.raises(TypeError, match="keeps its precision"):
        model.half()
    assert next(model.network.parameters()).dtype == torch.float32
