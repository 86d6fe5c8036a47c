"""Pictures with detections: boxes, bands and colours are where the numbers say."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from many import each

from trustgp import plots
from trustgp.detection import Detections
from trustgp.plots.boxes import as_picture, colour_of, ink_on, scale_position

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.colors import to_rgb  # noqa: E402

NOVELTY = (0.02, 0.3)


def some(*novelty: float, std: float = 1.5) -> Detections:
    """As many detections as novelties, side by side in a picture of 64 pixels."""
    k = len(novelty)
    left = 4.0 + 30.0 * torch.arange(k)
    boxes = torch.stack([left, 20 + left / 10, left + 22, 45 + left / 10], dim=1).reshape(k, 4)
    return Detections(
        boxes=boxes,
        std=std * torch.tensor([1.0, 2.0, 0.5, 1.5]).repeat(k, 1),
        labels=torch.arange(k) % 2,
        confidence=torch.linspace(0.9, 0.6, k),
        probabilities=torch.full((k, 3), 1 / 3),
        novelty=torch.tensor(novelty, dtype=torch.float64),
    )


def by_name(axes, gid: str) -> list:
    return [patch for patch in reversed(axes.patches) if patch.get_gid() == gid]  # the last is drawn first


def texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_boxes_have_the_corners_and_bands_the_width_of_the_intervals():
    given = some(*NOVELTY)
    axes = plots.detections(torch.zeros(3, 64, 64), given, level=0.9)
    low, high = (end.double().numpy() for end in given.interval(0.9))
    boxes, bands = by_name(axes, "box"), by_name(axes, "band")
    assert len(boxes) == len(bands) == 2
    for k, (box, band) in enumerate(zip(boxes, bands, strict=True)):
        corner, far = np.array(box.get_xy()), np.array([box.get_width(), box.get_height()])
        np.testing.assert_allclose([*corner, *(corner + far)], given.boxes[k].double().numpy(), rtol=1e-12)
        outer, inner = np.split(band.get_path().vertices, 2)
        assert outer.min(0).tolist() == low[k, :2].tolist()
        assert outer.max(0).tolist() == high[k, 2:].tolist()
        assert inner.min(0).tolist() == high[k, :2].tolist()
        assert inner.max(0).tolist() == low[k, 2:].tolist()


@each("std", [torch.inf, torch.nan])
def test_an_edge_without_a_finite_interval_is_drawn_to_the_end_of_the_picture(std):
    axes = plots.detections(torch.zeros(3, 64, 64), some(0.1, std=std))
    outline = by_name(axes, "band")[0].get_path().vertices
    assert np.isfinite(outline).all()
    assert (outline.min(0) <= 0).all()
    assert (outline.max(0) >= 64).all()
    meeting = plots.detections(torch.zeros(3, 64, 64), some(0.1, std=30.0))  # intervals fill the box
    assert len(by_name(meeting, "band")[0].get_path().vertices) == 5


def test_boxes_above_the_models_threshold_are_dashed_and_have_a_warning():
    limits = {"threshold": 0.1, "picture_threshold": 0.2, "picture_novelty": 0.15}
    names = ("rover", "lander")
    axes = plots.detections(torch.zeros(3, 64, 64), replace(some(*NOVELTY), **limits), names=names)
    calm, novel = by_name(axes, "box")
    assert calm.get_linestyle() in ("-", "solid")
    assert novel.get_linestyle() not in ("-", "solid")
    assert texts(axes) == ["rover 90 %, nov. 0.02", "\N{WARNING SIGN} novel 0.30 (lander 60 %)"]
    assert by_name(axes, "picture") == []
    for given in (some(*NOVELTY), replace(some(*NOVELTY), threshold=0.5)):
        plain = plots.detections(torch.zeros(3, 64, 64), given)
        assert texts(plain) == ["class 0 90 %, nov. 0.02", "class 1 60 %, nov. 0.30"]
    with pytest.raises(ValueError, match="class 1 was found, but names= has 1"):
        plots.detections(torch.zeros(3, 64, 64), some(*NOVELTY), names=("rover",))


def test_novel_pictures_have_a_frame_and_a_remark_and_empty_ones_a_remark():
    limits = {"threshold": 0.1, "picture_threshold": 0.2, "picture_novelty": 0.9}
    axes = plots.detections(torch.zeros(3, 64, 64), replace(some(0.02), **limits))
    assert len(by_name(axes, "picture")) == 1
    assert texts(axes)[0] == "\N{WARNING SIGN} novel picture 0.90"
    blind = plots.detections(torch.zeros(3, 64, 64), replace(some(), **limits))
    assert texts(blind) == ["\N{WARNING SIGN} novel picture 0.90, nothing found"]
    empty = plots.detections(np.zeros((64, 64, 3), dtype=np.uint8), some(), title="empty")
    assert (texts(empty), empty.get_title()) == (["nothing found"], "empty")
    assert (len(empty.patches), len(empty.images)) == (0, 1)


def test_labels_of_detections_on_top_of_each_other_do_not_overlap():
    one = some(0.1, 0.2, 0.3)
    same = Detections(one.boxes[:1].repeat(3, 1), *(getattr(one, name) for name in list(vars(one))[1:]))
    axes = plots.detections(torch.zeros(3, 64, 64), same)
    axes.figure.draw_without_rendering()
    spans = sorted(text.get_window_extent().intervaly.tolist() for text in axes.texts)
    assert all(below[1] < above[0] for below, above in itertools.pairwise(spans))


def test_pictures_of_every_kind_come_out_the_same():
    whole = torch.randint(0, 256, (3, 8, 6), dtype=torch.uint8)
    expected = whole.permute(1, 2, 0).double().numpy() / 255
    kinds = [whole, whole.float(), whole / 255, whole.permute(1, 2, 0), whole.permute(1, 2, 0).numpy()]
    for kind in kinds:
        np.testing.assert_allclose(as_picture(kind), expected, atol=1e-7)


@each(
    ("image", "match"),
    [
        (torch.zeros(8, 8), r"shape \(8, 8\); \[3, h, w\] or \[h, w, 3\]"),
        (torch.zeros(1, 8, 8), r"shape \(1, 8, 8\)"),
        (torch.zeros(3, 0, 8), r"shape \(3, 0, 8\)"),
        (torch.full((3, 8, 8), -2.0), "from -2 to -2; .* before it was scaled"),
        (torch.full((3, 8, 8), torch.nan), "from nan"),
    ],
)
def test_what_is_no_picture_is_refused(image, match):
    with pytest.raises(ValueError, match=match):
        plots.detections(image, some())


def test_colours_run_along_the_scale_and_the_threshold_is_in_the_middle():
    assert colour_of(0.1, 0.1) == colour_of(0.5) == to_rgb("#f6d55c")
    assert scale_position(0.7, 0.1) == scale_position(float("nan"), 0.1) == 1.0
    assert scale_position(0.03, 0.1) == pytest.approx(0.15)
    assert scale_position(1.0, 0.75) == 1.0  # the largest novelty has the last colour
    assert scale_position(0.875, 0.75) == pytest.approx(0.75)
    assert ink_on(to_rgb("#f6d55c")) != "white"
    assert ink_on(to_rgb("#c8423b")) == "white"
