"""`trustgp.evaluate` of a detector's model: what it reads, what it refuses, and that it changes nothing."""

from __future__ import annotations

import pytest
import torch
from detection.conftest import pictures
from torch.utils.data import DataLoader, TensorDataset

import trustgp
from trustgp.detection import Things


@pytest.fixture(scope="module")
def scored(fitted):
    return trustgp.evaluate(fitted[1], pictures(8), pictures(6, "novel"), progress=False)


def labelled(images, things):
    """As a DataLoader of pairs gives them."""
    return DataLoader(
        list(zip(images, things, strict=True)),
        batch_size=4,
        collate_fn=lambda lot: (torch.stack([one[0] for one in lot]), [one[1] for one in lot]),
    )


def test_it_is_a_report_of_the_detectors_scores(fitted, scored):
    assert isinstance(scored, trustgp.DetectionEvaluation)
    assert (len(scored), scored.counts.ood_rows) == (8, 6)
    assert scored.counts.detections == sum(len(one) for one in fitted[1].predict(pictures(8)[0]))
    assert 0.0 <= scored.pdq <= 1.0


def test_each_picture_goes_through_the_detector_once(fitted):
    model, passed = fitted[1], []
    with model.network.register_forward_hook(lambda m, given, out: passed.append(len(out.logits))):
        trustgp.evaluate(model, pictures(8), pictures(6, "novel")[0], progress=False)
    assert sum(passed) == 8 + 6


def test_data_may_come_as_loaders_and_foreign_pictures_in_every_way(fitted, scored):
    model = fitted[1]
    images, things = pictures(6, "novel")
    again = trustgp.evaluate(
        model, labelled(*pictures(8)), labelled(images, things), names=["rover", "lander"], progress=False
    )
    assert again.to_dict()["scores"]["all"] == scored.to_dict()["scores"]["all"]
    assert list(again.outputs) == ["rover", "lander"]
    alone = [
        trustgp.evaluate(model, pictures(8), given, progress=False).auroc_picture
        for given in (images, list(images), DataLoader(images, 4), TensorDataset(images))
    ]
    assert len(set(alone)) == 1
    one = trustgp.evaluate(model, pictures(8), images[0], progress=False)
    assert one.counts.ood_rows == 1


def test_unknown_labels_are_for_foreign_pictures_only(fitted):
    model = fitted[1]
    images, things = pictures(8)
    strange = [Things(one.boxes, one.labels + 2) for one in things]
    assert trustgp.evaluate(model, (images, things), (images, strange), progress=False).counts.ood_unknown > 0
    with pytest.raises(ValueError, match=r"data, picture 0: labels .* the detector knows 0 to 1"):
        trustgp.evaluate(model, (images, strange), progress=False)
    below = [Things(one.boxes, one.labels - 9) for one in things]
    with pytest.raises(ValueError, match=r"ood, picture 0: labels .* 0 or more"):
        trustgp.evaluate(model, (images, things), (images, below), progress=False)


def test_what_cannot_be_scored_is_refused(fitted):
    model = fitted[1]
    images, things = pictures(8)
    nothing = [Things(torch.zeros(0, 4), torch.zeros(0)) for _ in things]
    cases = [
        (((images, nothing),), {}, "no thing in any picture"),
        (((images, things),), {"names": ["rover"]}, "for 2 classes"),
        (((images, things),), {"unpack": lambda batch: batch}, "not for detectors"),
        ((images,), {}, r"\(images, things\)"),
        (((images, things), images[:0]), {}, "ood holds no pictures"),
        (((images, things), torch.full_like(images, torch.nan)), {}, "ood: 8 pictures hold NaN"),
        (((images, things), images[:, :1]), {}, "channels"),
        (
            ((images, things), TensorDataset(images, torch.zeros(8))),
            {},
            "ood, picture 0: things are a Tensor",
        ),
    ]
    for arguments, options, words in cases:
        with pytest.raises(ValueError, match=words):
            trustgp.evaluate(model, *arguments, progress=False, **options)


def test_pictures_and_things_stay_as_they_are(fitted):
    images, things = pictures(8)
    before = images.clone(), [one.boxes.clone() for one in things]
    trustgp.evaluate(fitted[1], (images, things), images, progress=False)
    assert torch.equal(images, before[0])
    assert all(torch.equal(one.boxes, box) for one, box in zip(things, before[1], strict=True))
