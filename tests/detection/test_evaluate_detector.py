"""`trustgp.evaluate` of a detector's model: its sources, refusals, and that it changes nothing."""

import pytest
import torch
from detection.conftest import noise, noise_scenes
from torch.utils.data import DataLoader, TensorDataset

import trustgp
from trustgp.detection import BoxTargets


@pytest.fixture(scope="module")
def data(fitted):
    return noise_scenes(fitted[0], 8, 5, fitted[1].settings.adapter)


def test_evaluation_reports_the_scores_of_one_pass(fitted, data):
    model, passes = fitted[1], []
    before = data[0].clone(), [one.boxes.clone() for one in data[1]]
    count = lambda module, given, out: passes.append(len(out["logits"]))  # noqa: E731
    with model.network.register_forward_hook(count):
        scored = trustgp.evaluate(
            model, data, DataLoader(data[0] + 3.0, 4), names=["rover", "lander"], progress=False
        )
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
