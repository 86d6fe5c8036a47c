"""Detections with error bars: the detector's own boxes and classes, and their uncertainty."""

from dataclasses import replace

import pytest
import torch
from detection.conftest import LOOSE, SIDE, fit_loose, grid, noise, noise_scenes
from scipy.stats import t as student
from torch import nn

import trustgp
from trustgp.detection import BoxTargets
from trustgp.detection.adapter import probabilities
from trustgp.detection.fitting import _warn_missing_classes
from trustgp.metrics.boxes import corners, overlaps


def outputs_of(network: nn.Module, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities [n, Q, 2] and boxes in pixels [n, Q, 4], of the network alone."""
    with torch.no_grad():
        whole = network(images)
    return probabilities(whole["logits"], 2), corners(whole["pred_boxes"]) * SIDE


def most_confident(chances: torch.Tensor, boxes: torch.Tensor, suppression: float | None) -> list[int]:
    """Queries of a picture that are detections, one after another."""
    best, labels = chances.max(dim=1)
    kept: list[int] = []
    for query in best.argsort(descending=True, stable=True).tolist():
        rivals = [k for k in kept if labels[k] == labels[query]] if suppression else []
        shared = overlaps(boxes[query : query + 1], boxes[rivals]) if rivals else torch.zeros(1)
        if best[query] >= LOOSE["threshold"] and float(shared.max()) <= (suppression or 1.0):
            kept.append(query)
    return kept[: LOOSE["most"]]


def test_boxes_and_classes_are_those_of_the_detector_each_with_an_error_bar(fitted):
    network, model = fitted
    images = noise(5, 3)
    found = model.predict(images)
    chances, boxes = outputs_of(network, images)
    assert len(found) == 5
    for i, one in enumerate(found):
        order = most_confident(chances[i], boxes[i], model.settings.adapter.suppression)
        k = len(order)
        assert torch.equal(one.boxes, boxes[i][order])
        assert torch.equal(one.labels, chances[i][order].argmax(dim=1))
        assert torch.equal(one.confidence, chances[i][order].amax(dim=1))
        assert one.std.shape == (k, 4)
        assert bool((one.std > 0).all())
        torch.testing.assert_close(one.probabilities.sum(dim=1), torch.ones(k))
        assert one.probabilities.shape == (k, 3)
        assert bool((one.entropy >= 0).all())
        assert one.novelty.shape == (k,)
        low, high = one.interval(0.9)
        reach = student.ppf(0.95, one.df, scale=((one.df - 2) / one.df) ** 0.5)
        torch.testing.assert_close((high - low) / 2, reach * one.std)
        torch.testing.assert_close(one.distribution.variance.sqrt(), one.std)
        assert one.summary["detections"] == k
    (single,) = model.predict(images[1])
    torch.testing.assert_close(found[1].std, single.std, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found[1].novelty, single.novelty, rtol=1e-3, atol=1e-6)
    assert torch.equal(model.predict(images[:2].double())[0].boxes, model.predict(images[:2])[0].boxes)


def test_no_pictures_and_no_detections_are_empty_results(fitted):
    _, model = fitted
    assert model.predict([]) == []
    assert model.predict(torch.zeros(0, 3, SIDE, SIDE)) == []
    strict = type(model)(replace(model.state, settings=replace(model.settings, threshold=0.9999)))
    (found,) = strict.predict(noise(1))
    assert len(found) == 0
    nothing = {"detections": 0, "novelty": 0.0, "entropy": 0.0, "std": 0.0, "novel": 0}
    assert found.summary == {**nothing, "picture": found.picture_novelty}
    assert 0 < found.picture_novelty < 1
    assert found.interval()[0].shape == (0, 4)


@pytest.mark.parametrize(
    ("images", "match"),
    [
        (torch.zeros(2, 1, SIDE, SIDE), "1 channels; the detector takes 3"),
        (torch.zeros(2, 3, 1, 1), r"\(1, 1\) pixels; the model was fitted on \(64, 64\)"),
        (torch.zeros(2, 3, SIDE, SIDE, dtype=torch.uint8), "torch.uint8; scale them"),
        ([torch.zeros(3, SIDE, SIDE), torch.zeros(3, 32, SIDE)], r"different shapes .* fitted on \(64, 64\)"),
        ("picture.png", "pictures are str"),
        (["picture.png"], "pictures are list"),
        (torch.zeros(SIDE, SIDE), r"pictures are \(64, 64\)"),
    ],
)
def test_other_pictures_are_refused(fitted, images, match):
    with pytest.raises(ValueError, match=match):
        fitted[1].predict(images)


def test_a_picture_with_nan_is_not_valid_and_changes_no_other(fitted):
    _, model = fitted
    images = noise(3)
    without = model.predict(images[[0, 2]])
    images[1, 2, 5, 5] = float("nan")
    together = model.predict(images)
    assert [one.valid for one in together] == [True, False, True]
    for one, other in zip(without, [together[0], together[2]], strict=True):
        assert torch.equal(one.std, other.std)
        assert torch.equal(one.novelty, other.novelty)
    broken = together[1]
    assert len(broken) == 0
    assert broken.probabilities.shape == (0, 3)
    worst = {"detections": 0, "novelty": 1.0, "entropy": 0.0, "std": float("inf"), "picture": 1.0, "novel": 0}
    assert broken.summary == worst
    (flooded,) = model.predict(torch.full((3, SIDE, SIDE), 3e38))  # finite, but its features are not
    assert not flooded.valid or bool(torch.isfinite(flooded.std).all())


EMPTY = BoxTargets(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
STRICT = {"threshold": 0.99, "overlap": 0.99}


@pytest.mark.parametrize(
    ("given", "options", "match"),
    [
        ((torch.zeros(1, 3, 2, 2), [EMPTY]), {}, r"takes no pictures of shape \(3, 2, 2\)"),
        (noise_scenes(grid(), 3, 1), {"validation": noise_scenes(grid(), 3, 2), **STRICT},
         "in the training pictures the detector finds 0 of the targets, at least 20"),
        ("folder", {}, r"pictures has a str; \(images, targets\)"),
        ("folder", {"threshold": 0.0}, "threshold=0.0"),
        ("folder", {"overlap": 1.5}, "overlap=1.5"),
        ("folder", {"most": 0}, "most=0"),
        ("folder", {"adapter": "neck"}, r"adapter='neck'; trustgp.detection.Adapter\(...\) is needed"),
    ],
)  # fmt: skip
def test_fits_that_cannot_succeed_are_refused(given, options, match):
    with pytest.raises(ValueError, match=match):
        fit_loose(grid(), given, **options)


def test_a_network_that_is_no_detector_and_unknown_options_are_refused():
    with pytest.raises(ValueError, match=r"has no config.num_labels"):
        trustgp.detection.fit(nn.Linear(2, 2), noise_scenes(grid(), 3, 1))
    with pytest.raises(TypeError, match=r"fit\(\) has no option groups=.* There are validation, threshold"):
        trustgp.detection.fit(grid(), "not read", groups=[0, 1])


def test_a_class_without_matches_is_warned_of():
    with pytest.warns(UserWarning, match=r"2 of 4 classes have no training row \(1, 3\)"):
        _warn_missing_classes(torch.tensor([3, 0, 9, 0]))
