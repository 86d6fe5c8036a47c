"""Detections with error bars: the detector's own boxes and classes, and how sure they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from detection.conftest import DETECTORS, LOOSE, pictures
from scipy.stats import t as student

import trustgp
from trustgp.detection import Detection, Things, fit_detector
from trustgp.detection.query_rows import probabilities
from trustgp.metrics.boxes import corners


def test_boxes_and_classes_are_those_of_the_detector(fitted):
    network, model = fitted
    images, _ = pictures(5)
    found = model.predict(images)
    with torch.no_grad():
        whole = network(images)
    chances = probabilities(whole.logits, 2)
    edges = corners(whole.pred_boxes) * 48
    assert len(found) == 5
    for i, one in enumerate(found):
        best = chances[i].amax(dim=1)
        order = best.argsort(descending=True, stable=True)[: LOOSE.most]
        order = order[best[order] >= LOOSE.threshold]
        assert torch.equal(one.boxes, edges[i][order])
        assert torch.equal(one.labels, chances[i][order].argmax(dim=1))
        assert torch.equal(one.confidence, best[order])


def test_every_detection_has_an_error_bar(fitted):
    _, model = fitted
    for one in model.predict(pictures(4)[0]):
        k = len(one)
        assert one.std.shape == (k, 4)
        assert bool((one.std > 0).all())
        assert one.probabilities.shape == (k, 3)
        torch.testing.assert_close(one.probabilities.sum(dim=1), torch.ones(k))
        assert bool((one.entropy >= 0).all())
        assert one.novelty.shape == (k,)
        low, high = one.interval(0.9)
        reach = student.ppf(0.95, one.df, scale=((one.df - 2) / one.df) ** 0.5)
        torch.testing.assert_close((high - low) / 2, reach * one.std)
        inside = one.distribution
        torch.testing.assert_close(inside.variance.sqrt(), one.std)
        assert one.summary["detections"] == k


def test_a_picture_is_judged_alike_alone_and_with_others(fitted):
    _, model = fitted
    images, _ = pictures(3)
    together, alone = model.predict(images)[1], model.predict(images[1])[0]
    torch.testing.assert_close(together.std, alone.std, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(together.novelty, alone.novelty, rtol=1e-3, atol=1e-6)


def test_no_pictures_and_no_detections_are_empty_results(fitted):
    _, model = fitted
    assert model.predict([]) == []
    assert model.predict(torch.zeros(0, 3, 48, 48)) == []
    strict = type(model)(replace(model.state, settings=Detection(0.9999)))
    (found,) = strict.predict(pictures(1)[0])
    assert len(found) == 0
    nothing = {"detections": 0, "novelty": 0.0, "entropy": 0.0, "std": 0.0, "novel": 0}
    assert found.summary == {**nothing, "picture": found.picture_novelty}
    assert 0 < found.picture_novelty < 1
    assert found.interval()[0].shape == (0, 4)


@pytest.mark.parametrize(
    ("images", "match"),
    [
        (torch.zeros(2, 1, 48, 48), "1 channels; the detector takes 3"),
        (torch.zeros(2, 3, 1, 1), r"\(1, 1\) pixels; the model was fitted on \(48, 48\)"),
        (torch.zeros(2, 3, 48, 48, dtype=torch.uint8), "torch.uint8; scale them"),
        ([torch.zeros(3, 48, 48), torch.zeros(3, 32, 48)], r"different shapes .* was fitted on \(48, 48\)"),
        ("picture.png", "pictures are str"),
        (["picture.png"], "a list with a str"),
        (torch.zeros(48, 48), r"pictures are \(48, 48\)"),
    ],
)
def test_pictures_that_do_not_fit_are_refused(fitted, images, match):
    with pytest.raises(ValueError, match=match):
        fitted[1].predict(images)


def test_a_broken_picture_is_flagged_and_the_others_come_out_as_without_it(fitted):
    _, model = fitted
    images = pictures(3)[0].clone()
    alone = model.predict(images[[0, 2]])
    images[1, 2, 5, 5] = float("nan")
    together = model.predict(images)
    assert [one.valid for one in together] == [True, False, True]
    for one, other in zip(alone, [together[0], together[2]], strict=True):
        assert torch.equal(one.std, other.std)
        assert torch.equal(one.novelty, other.novelty)
    broken = together[1]
    assert len(broken) == 0
    assert broken.probabilities.shape == (0, 3)
    assert broken.summary == {
        "detections": 0,
        "novelty": 1.0,
        "entropy": 0.0,
        "std": float("inf"),
        "picture": 1.0,
        "novel": 0,
    }
    (flooded,) = model.predict(torch.full((3, 48, 48), 3e38))  # finite, but not what comes of it
    assert not flooded.valid or bool(torch.isfinite(flooded.std).all())


def test_pictures_of_another_precision_are_taken(fitted):
    _, model = fitted
    images, _ = pictures(2)
    assert torch.equal(model.predict(images.double())[0].boxes, model.predict(images)[0].boxes)


NO_THINGS = Things(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize(
    ("train", "match"),
    [
        (([], []), "train holds no pictures"),
        ((torch.zeros(0, 3, 48, 48), []), "train holds no pictures"),
        ("folder", "train is a str; "),
        ((torch.zeros(3, 48, 48), []), r"train is \(a tensor \(3, 48, 48\), a list\); images are a tensor"),
        ((torch.zeros(1, 1, 48, 48), [NO_THINGS]), "train: pictures have 1 channels; the detector takes 3"),
        ((torch.zeros(1, 3, 48, 48).byte(), [NO_THINGS]), "train: pictures are torch.uint8; scale them"),
        ((torch.zeros(2, 3, 48, 48), [NO_THINGS]), "train has 2 pictures, but things for 1"),
        ((torch.full((1, 3, 48, 48), torch.nan), [NO_THINGS]), "1 pictures hold NaN or infinity"),
        ((torch.zeros(1, 3, 48, 48), ["rover"]), "train, picture 0: things are a str; Things"),
        ((torch.zeros(1, 3, 48, 48), [(torch.ones(3), [0])]), r"boxes are \(3,\); \[k, 4\] is needed"),
        ((torch.zeros(3, 3, 1, 1), [NO_THINGS] * 3), "too few to hold some out"),
    ],
)
def test_pictures_that_cannot_be_fitted_to_are_refused(train, match):
    with pytest.raises(ValueError, match=match):
        fit_detector(DETECTORS["plain"](), train, LOOSE)


def test_validation_pictures_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"validation: pictures are \(32, 48\) pixels; .* \(48, 48\)"):
        fit_detector(
            DETECTORS["plain"](), pictures(3), LOOSE, validation=(torch.zeros(1, 3, 32, 48), [NO_THINGS])
        )


def thing(box: list[float], label: int = 0) -> Things:
    return Things(torch.tensor([box]), torch.tensor([label]))


@pytest.mark.parametrize(
    ("things", "match"),
    [
        (thing([0, 0, 80, 10]), r"train, picture 1: box \[0.0, 0.0, 80.0, 10.0\] is empty or leaves"),
        (thing([5, 5, 5, 10]), "is empty or leaves"),
        (thing([0, 0, float("nan"), 10]), "is empty or leaves"),
        (thing([0, 0, 9, 9], 2), r"labels \[2\]; the detector knows 0 to 1"),
        (Things(torch.zeros(2, 4), torch.zeros(1)), "2 boxes, but 1 labels"),
    ],
)
def test_things_that_cannot_be_are_refused_before_any_work(things, match):
    images, true = pictures(3)
    with pytest.raises(ValueError, match=match):
        fit_detector(DETECTORS["plain"](), (images, [true[0], things, true[2]]), LOOSE)


def test_a_class_that_is_never_found_is_warned_of_and_still_answered():
    network = DETECTORS["plain"](4)
    with pytest.warns(UserWarning, match=r"of 4 classes have no training row"):
        model = fit_detector(network, pictures(30), LOOSE, validation=pictures(24), progress=False)
    for one in model.predict(pictures(4)[0]):
        assert bool(torch.isfinite(one.std).all())


def test_too_few_findings_are_refused():
    with pytest.raises(ValueError, match="in train the detector finds"):
        fit_detector(
            DETECTORS["plain"](), pictures(3), Detection(threshold=0.99, overlap=0.99), validation=pictures(3)
        )


def test_one_pixel_is_no_picture():
    one = (torch.zeros(3, 3, 1, 1), [NO_THINGS] * 3)
    with pytest.raises(ValueError, match=r"in train the detector finds 0|takes no pictures"):
        fit_detector(DETECTORS["plain"](), one, LOOSE, validation=one)


def test_without_validation_every_tenth_picture_is_held_out():
    network = DETECTORS["conditional"]()
    with pytest.warns(UserWarning, match="12 of the 120 training pictures are kept from the experts"):
        model = fit_detector(network, pictures(120), LOOSE, progress=False)
    with pytest.raises(ValueError, match="9 pictures are too few to hold some out"):
        fit_detector(network, pictures(9), LOOSE)
    assert len(model.held_scores) > 0


@pytest.mark.parametrize("settings", [{"threshold": 0.0}, {"overlap": 1.5}, {"most": 0}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        trustgp.detection.Detection(**settings)
