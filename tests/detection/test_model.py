"""A fitted detector's file, threshold, monitor and scores."""

import copy
import dataclasses

import pytest
import torch
from detection.conftest import LOOSE, SIDE, noise, noise_scenes, plain_detr
from detection.test_predict import outputs_of
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trustgp
from trustgp.cli import main
from trustgp.detection import BoxTargets
from trustgp.detection.adapter import match
from trustgp.math.quantiles import held_out_quantile


def same(one: trustgp.Detections, other: trustgp.Detections) -> bool:
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one)]
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


@pytest.fixture
def alarmed(fitted):
    """A model with a threshold, which is removed after the test."""
    network, model = fitted
    model.threshold(false_alarm=0.2)
    yield network, model
    model.state = dataclasses.replace(model.state, threshold=None)


def test_a_file_gives_back_the_same_bits(alarmed, tmp_path, capsys):
    network, model = alarmed
    path = tmp_path / "detector.trustgp"
    model.save(path)
    read = trustgp.load(path, network)
    images = noise(5, 9)
    assert all(map(same, model.predict(images), read.predict(images)))
    assert torch.equal(read.held_scores, model.held_scores)
    assert (read.size, read.state.names, read.settings) == (model.size, model.state.names, model.settings)
    assert read.novelty_threshold is not None
    assert read.novelty_threshold.threshold == model.novelty_threshold.threshold
    read.save(tmp_path / "again.trustgp")
    assert model.nbytes == sum(part.nbytes for name, part in load_file(path).items() if name != "probe")
    assert path.read_bytes() == (tmp_path / "again.trustgp").read_bytes()
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    for fact in (type(network).__name__, "64 x 64 pixels", "for 20 % false alarms"):
        assert fact in shown
    for fact in ("DetectionModel", "pictures: ", "2 classes", " numbers", "calibration: "):
        assert fact in repr(model)


def test_a_file_is_refused_with_another_detector_and_when_damaged(fitted, tmp_path):
    network, model = fitted
    path = tmp_path / "detector.trustgp"
    model.save(path)
    changed = copy.deepcopy(network)
    with torch.no_grad():
        next(iter(changed.parameters())).add_(1e-3)
    for other in (plain_detr(3), changed, nn.Linear(2, 2)):
        with pytest.raises(trustgp.ArtifactError, match="was fitted to another detector"):
            trustgp.load(path, other)
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]):
        path.write_bytes(damaged)
        with pytest.raises(trustgp.ArtifactError):
            trustgp.load(path, network)


def test_other_outputs_with_the_same_weights_are_refused(fitted, tmp_path, monkeypatch):
    network, model = fitted
    model.save(tmp_path / "detector.trustgp")
    plain = type(network).forward
    monkeypatch.setattr(type(network), "forward", lambda self, images: plain(self, 2.0 * images))
    with pytest.raises(trustgp.ArtifactError, match="outputs changed although its weights did not"):
        trustgp.load(tmp_path / "detector.trustgp", network)


def test_the_threshold_is_a_quantile_of_held_out_detections_that_match_a_target(fitted):
    network, model = fitted
    adapter = model.settings.adapter
    images, targets = noise_scenes(network, 24, 2, adapter)
    own, held_out = model.threshold(false_alarm=0.2), model.held_scores  # of the fit's pictures
    few = model.threshold((images[:16], targets[:16]), false_alarm=0.2)
    assert few == model.threshold(false_alarm=0.2)  # of the pictures that were passed last
    assert len(model.held_scores) < len(held_out)
    threshold = model.threshold((images, targets), false_alarm=0.2)
    assert threshold == pytest.approx(own, rel=1e-4)
    scores = []
    each = zip(model.predict(images), targets, *outputs_of(network, images), strict=True)
    for detections, true, chances, boxes in each:
        matched, shared = match(chances, boxes, true, side=float(SIDE))
        hits = boxes[matched[shared >= LOOSE["overlap"]]]
        scores.append(detections.novelty[(detections.boxes[:, None] == hits).all(dim=2).any(dim=1)])
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


def test_a_threshold_needs_held_out_detections(fitted):
    _, model = fitted
    with pytest.raises(ValueError, match="held-out rows, and there are"):
        model.threshold(false_alarm=0.001)
    assert model.novelty_threshold is None
    with pytest.raises(ValueError, match=r"scenes: pictures are \(32, 32\)"):
        model.threshold((torch.zeros(1, 3, 32, 32), [[]]))


def test_a_monitor_judges_pictures(alarmed):
    _, model = alarmed
    images = noise(4, 9)
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
    with pytest.raises(ValueError, match=r"\[n, channels, height, width\] is needed"):
        model.watch()(images[0])
    assert trustgp.Monitor(model.watch(), 0.0)(images[1]).status == "novel"
    assert trustgp.Monitor(model.watch(), 1.0, std=1e-6)(images[1]).status == "uncertain"


def test_the_novelty_of_a_picture_without_detections_is_its_own(alarmed):
    _, model = alarmed
    settings = dataclasses.replace(model.settings, threshold=0.9999)
    strict = type(model)(dataclasses.replace(model.state, settings=settings))
    (found,) = strict.predict(noise(1))
    limit = held_out_quantile(model.state.held_pictures, 0.8)
    assert found.over_threshold == pytest.approx(found.picture_novelty / float(limit))
    assert found.picture_is_novel == (found.picture_novelty > float(limit))
    verdict = trustgp.Monitor(strict.watch(), std=1.0)(noise(1))
    assert verdict.status == ("novel" if found.picture_is_novel else "ok")
    assert (float(verdict.mean), float(verdict.std)) == (0.0, 0.0)
    without = dataclasses.replace(strict.state, threshold=None)
    with pytest.raises(ValueError, match="there is no threshold"):
        trustgp.Monitor(type(model)(without).watch())


@pytest.fixture(scope="module")
def data(fitted):
    return noise_scenes(fitted[0], 8, 5, fitted[1].settings.adapter)


def test_evaluation_reports_the_scores_of_one_pass(fitted, data):
    model, passes = fitted[1], []
    before = data[0].clone(), [one.boxes.clone() for one in data[1]]
    count = lambda module, given, out: passes.append(len(out["logits"]))  # noqa: E731
    foreign, names = DataLoader(data[0] + 3.0, 4), ["rover", "lander"]
    with model.network.register_forward_hook(count):
        scored = trustgp.evaluate(model, data, foreign, names=names, progress=False)
    assert list(scored.outputs) == ["rover", "lander"]
    assert sum(passes) == 16
    assert isinstance(scored, trustgp.DetectionEvaluation)
    assert (len(scored), scored.counts.ood_rows) == (8, 8)
    assert scored.counts.detections == sum(len(one) for one in model.predict(data[0]))
    assert 0.0 <= scored.dece <= 1.0
    assert torch.equal(data[0], before[0])
    assert all(torch.equal(one.boxes, box) for one, box in zip(data[1], before[1], strict=True))


def test_bad_input_is_refused(fitted, data):
    model, (images, targets) = fitted[1], data
    unknown = images, [BoxTargets(one.boxes, one.labels + 2) for one in targets]
    assert trustgp.evaluate(model, data, unknown, progress=False).counts.ood_unknown > 0
    empty = [BoxTargets(torch.zeros(0, 4), torch.zeros(0)) for _ in targets]
    cases = [
        ((unknown,), {}, r"data, picture 0: labels .* 0 to 1"),
        (((images, empty),), {}, "no targets in any picture"),
        ((data,), {"names": ["rover"]}, "2 are needed, no two alike"),
        ((data,), {"unpack": lambda batch: batch}, "not for detectors"),
        ((images,), {}, r"\(images, targets\)"),
        ((data, images[:0]), {}, "ood holds no pictures"),
        ((data, torch.full_like(images, torch.nan)), {}, "ood: 8 pictures hold NaN"),
        ((data, noise(2)[:, :1]), {}, "channels"),
        ((data, TensorDataset(images, torch.zeros(8))), {}, "ood, picture 0: cannot read a Tensor"),
    ]
    for arguments, options, words in cases:
        with pytest.raises(ValueError, match=words):
            trustgp.evaluate(model, *arguments, progress=False, **options)
