"""`trustgp.evaluate` of a detector's model: what it reads, what it refuses, and that it changes nothing."""

from __future__ import annotations

import pytest
import torch
from detection.conftest import pictures
from torch.utils.data import DataLoader, TensorDataset

import trustgp
from trustgp.detection import Things
from trustgp.detection.adapter import DetectorOutputs
from trustgp.detection.candidates import Candidates, candidates
from trustgp.metrics import average_precision


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
    images, things = pictures(8)
    found = [every for _, every in fitted[1].predict_with_candidates(images)]
    assert scored.ap == pytest.approx(float(average_precision(found, things)))
    assert scored.counts.detections == sum(len(one) for one in fitted[1].predict(images))
    assert 0.0 <= scored.pdq <= 1.0


def processed(network, outputs) -> list[dict]:
    """What the post-processor of transformers makes of it for COCO."""
    import transformers

    kind = type(network).__name__.removesuffix("ForObjectDetection")
    judge = getattr(transformers, f"{kind}ImageProcessor")()
    return judge.post_process_object_detection(outputs, threshold=-1.0, target_sizes=[(48, 48)] * 3)


def test_candidates_are_those_of_the_post_processor(fitted):
    network, model = fitted
    images, _ = pictures(3)
    with torch.no_grad():
        said = network(images)
    for (_, mine), theirs in zip(
        model.predict_with_candidates(images), processed(network, said), strict=True
    ):
        order = theirs["scores"].argsort(descending=True, stable=True)
        torch.testing.assert_close(mine.confidence, theirs["scores"][order])
        torch.testing.assert_close(mine.boxes, theirs["boxes"][order], atol=1e-4, rtol=1e-5)
        assert torch.equal(mine.labels, theirs["labels"][order])


def test_detections_with_candidates_are_those_of_predict(fitted):
    model, (images, _) = fitted[1], pictures(3)
    broken = images.clone()
    broken[1] = torch.nan
    pairs, alone = model.predict_with_candidates(broken), model.predict(broken)
    for (found, every), plain in zip(pairs, alone, strict=True):
        assert torch.equal(found.boxes, plain.boxes)
        assert torch.equal(found.novelty, plain.novelty)
        torch.testing.assert_close(every.confidence[:1], plain.confidence[:1])  # the surest
    assert [len(every.labels) > 0 for _, every in pairs] == [True, False, True]


def test_a_query_may_give_several_classes_where_each_is_a_yes_or_no():
    odds = torch.tensor([[[0.9, 0.8, 0.1], [0.2, 0.3, 0.7]]]).logit()
    boxes = torch.tensor([[[0.5, 0.5, 1.0, 0.5], [0.25, 0.5, 0.5, 1.0]]])
    said = DetectorOutputs(odds, boxes, torch.zeros(1, 2, 4))
    (yes,) = candidates(said, 3, (10, 20))
    assert yes.confidence.tolist() == pytest.approx([0.9, 0.8, 0.7, 0.3, 0.2, 0.1])
    assert yes.labels.tolist() == [0, 1, 2, 1, 0, 2]
    assert yes.boxes[:3].tolist() == [[0.0, 2.5, 20.0, 7.5], [0.0, 2.5, 20.0, 7.5], [0.0, 0.0, 10.0, 10.0]]
    (one_each,) = candidates(said, 2, (10, 20))  # the third is "no object"
    assert one_each.labels.tolist() == [0, 1]
    assert one_each.confidence.tolist() == pytest.approx(
        [odds[0, 0].softmax(0)[0].item(), odds[0, 1].softmax(0)[1].item()]
    )
    # things of classes 0 and 1 in one place: the query is right twice, by the surest class alone once
    there = [Things(torch.tensor([[0.0, 2.5, 20.0, 7.5]] * 2), torch.tensor([0, 1]))]
    assert float(average_precision([yes], there)) == 1.0
    assert float(average_precision([Candidates(*(x[[0, 2]] for x in vars(yes).values()))], there)) == 0.5


def test_the_100_surest_pairs_of_a_picture_count():
    odds = torch.randn(2, 60, 3, generator=torch.Generator().manual_seed(0))
    said = DetectorOutputs(odds, torch.full((2, 60, 4), 0.5), torch.zeros(2, 60, 4))
    for one, own in zip(candidates(said, 3, (8, 8)), odds, strict=True):
        expected = own.sigmoid().flatten().sort(descending=True).values[:100]
        assert torch.equal(one.confidence, expected)


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
