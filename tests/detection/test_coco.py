"""A COCO file and its folder: read lazily, checked at once."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from detection.conftest import DETECTORS, LOOSE
from torch.utils.data import DataLoader, Subset

import trustgp
from trustgp.detection import coco_scenes
from trustgp.detection.adapter import Adapter, Detector
from trustgp.detection.scenes import as_scenes
from trustgp_experiments.datasets.scenes import CLASSES, scenes

Image = pytest.importorskip("PIL.Image")
SIDE = 48


def pixels(image: torch.Tensor) -> torch.Tensor:
    return image.float() / 128 - 1


def halved(image: torch.Tensor) -> torch.Tensor:
    return pixels(image)[:, ::2, ::4]


@pytest.fixture
def folder(tmp_path):
    """Four pictures and their file; categories are numbered from 5."""
    drawn = scenes(4, side=SIDE)
    rows = []
    for i, (image, boxes, labels) in enumerate(zip(drawn.images, drawn.boxes, drawn.labels, strict=True)):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{i}.png")
        for (left, top, right, bottom), kind in zip(boxes.tolist(), labels.tolist(), strict=True):
            box = [left, top, right - left, bottom - top]
            rows.append({"id": len(rows), "image_id": i, "category_id": 5 + kind, "bbox": box, "iscrowd": 0})
    content = {
        "images": [{"id": i, "file_name": f"{i}.png", "height": SIDE, "width": SIDE} for i in range(4)],
        "annotations": rows,
        "categories": [{"id": 5 + i, "name": name} for i, name in enumerate(CLASSES)],
    }
    return write(tmp_path, content), drawn, content


def write(folder, content):
    (folder / "all.json").write_text(json.dumps(content))
    return folder


def read(folder, **options):
    options = {"prepare": pixels, "labels": CLASSES, **options}
    return coco_scenes(folder / "all.json", folder, **options)


@pytest.mark.parametrize("labels", [CLASSES, {"rover": 0, "lander": 1}, {5: 0, 6: 1}])
def test_pictures_and_boxes_are_those_of_the_file(folder, labels):
    path, drawn, _ = folder
    found = read(path, labels=labels)
    assert len(found) == 4
    for i in range(4):
        image, things = found[i]
        assert torch.equal(image, pixels(drawn.images[i]))
        torch.testing.assert_close(things.boxes, drawn.boxes[i], rtol=0, atol=1e-4)
        assert torch.equal(things.labels, drawn.labels[i])


def test_boxes_go_with_pictures_that_are_resized(folder):
    path, drawn, _ = folder
    image, things = read(path, prepare=halved)[0]
    assert image.shape == (3, 24, 12)
    torch.testing.assert_close(things.boxes, drawn.boxes[0] * torch.tensor([0.25, 0.5, 0.25, 0.5]))


def test_pictures_are_read_only_when_asked_for(folder):
    path, _, _ = folder
    asked = []
    found = read(path, prepare=lambda image: asked.append(1) or pixels(image), limit=3)
    assert asked == []
    assert len(found) == 3
    found[-1]
    assert asked == [1]
    with pytest.raises(IndexError):
        found[3]


@pytest.mark.parametrize(
    "given",
    [
        lambda image: {"pixel_values": pixels(image)[None]},
        lambda image: {"pixel_values": [pixels(image)]},
        lambda image: pixels(image)[None],
    ],
)
def test_prepare_may_give_what_a_processor_does(folder, given):
    path, drawn, _ = folder
    assert torch.equal(read(path, prepare=given)[1][0], pixels(drawn.images[1]))


def test_a_detector_is_fitted_to_it(folder):
    path, _, content = folder
    many = {**content, "images": [], "annotations": []}
    for turn in range(8):
        many["images"] += [{**row, "id": f"{turn}-{row['id']}"} for row in content["images"]]
        many["annotations"] += [
            {**row, "image_id": f"{turn}-{row['image_id']}"} for row in content["annotations"]
        ]
    found = read(write(path, many))
    options = {"likelihood": LOOSE, "progress": False}
    model = trustgp.fit(DETECTORS["plain"](), found, validation=Subset(found, range(24)), **options)
    assert len(model.predict(found[0][0])) == 1


def test_crowds_are_left_out_and_empty_boxes_with_a_warning(folder):
    path, drawn, content = folder
    first = content["annotations"][0]
    content["annotations"].insert(0, {**first, "iscrowd": 1, "id": 70})
    content["annotations"].insert(0, {**first, "bbox": [3, 3, 0, 5], "id": 71})
    with pytest.warns(UserWarning, match="all.json: 1 boxes are empty, the first of annotation 71; left out"):
        found = read(write(path, content))
    torch.testing.assert_close(found[0][1].boxes, drawn.boxes[0], rtol=0, atol=1e-4)


def test_a_picture_without_annotations_is_a_picture_without_things(folder):
    path, _, content = folder
    content["annotations"] = [row for row in content["annotations"] if row["image_id"] != 2]
    things = read(write(path, content))[2][1]
    assert things.boxes.shape == (0, 4)
    assert things.labels.shape == (0,)


def test_a_category_may_be_left_out(folder):
    path, _, _ = folder
    kinds = torch.cat([things.labels for _, things in read(path, labels={"rover": 0, "lander": None})])
    assert kinds.unique().tolist() == [0]


def broken(content, part, place, **changes):
    content[part][place] = {**content[part][place], **changes}
    return content


def without(content, part, place, field):
    del content[part][place][field]
    return content


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda c: broken(c, "annotations", 0, image_id=44), "image_id 44, which the file does not list"),
        (lambda c: broken(c, "annotations", 0, category_id=9), "annotation 0 has category_id 9, which"),
        (lambda c: broken(c, "annotations", 1, bbox=[1, 2, 3]), r"annotation 1 has the bbox \[1, 2, 3\]"),
        (lambda c: broken(c, "annotations", 1, bbox=[1, 2, float("nan"), 3]), "has the bbox"),
        (lambda c: broken(c, "annotations", 1, bbox="1 2 3 4"), "has the bbox"),
        (lambda c: broken(c, "images", 1, id=0), "image id 0 stands twice"),
        (lambda c: without(c, "images", 1, "file_name"), "image 1 has no 'id' or no 'file_name'"),
        (lambda c: without(c, "annotations", 1, "bbox"), "has no 'image_id', 'category_id' or 'bbox'"),
        (lambda c: {**c, "annotations": [3]}, "annotation 0 has no"),
        (lambda c: {**c, "categories": None}, "has no list 'categories'"),
        (lambda c: {**c, "images": []}, "lists no pictures"),
        (lambda c: [1, 2], "has no list 'images'"),
        (lambda c: broken(c, "categories", 0, name="buggy"), "category 'buggy', id 5, is not in labels="),
    ],
)
def test_a_file_that_is_wrong_is_refused_at_once(folder, change, match):
    path, _, content = folder
    with pytest.raises(ValueError, match=match):
        read(write(path, change(content)))


def test_what_is_not_there_is_named(folder):
    path, _, content = folder
    with pytest.raises(FileNotFoundError, match=r"none.json is no file"):
        coco_scenes(path / "none.json", path, prepare=pixels)
    with pytest.raises(FileNotFoundError, match="nowhere is no folder"):
        coco_scenes(path / "all.json", path / "nowhere", prepare=pixels)
    with pytest.raises(FileNotFoundError, match=r"1 of 4 pictures of all.json are not in"):
        read(write(path, broken(content, "images", 2, file_name="gone.png")))
    assert len(read(path, limit=2)) == 2  # it is not among these
    for text in (b'{"images": [', b"\xff\xfe"):
        (path / "all.json").write_bytes(text)
        with pytest.raises(ValueError, match="is no JSON"):
            read(path)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"limit": 0}, "limit=0"),
        ({"labels": {0: "rover"}}, "labels= maps to 'rover'; classes are numbers"),
        ({"labels": ["rover"]}, "category 'lander', id 6, is not in labels=, which has 'rover'"),
    ],
)
def test_options_that_cannot_be_are_refused(folder, options, match):
    with pytest.raises(ValueError, match=match):
        read(folder[0], **options)
    with pytest.raises(TypeError, match="prepare is a str"):
        read(folder[0], prepare="resize")


def test_a_picture_that_is_not_what_the_file_says_is_refused(folder):
    path, _, content = folder
    found = read(write(path, broken(content, "images", 0, height=96)))
    with pytest.raises(ValueError, match=r"0.png is 48 x 48 pixels, the COCO file says 48 x 96"):
        found[0]
    content = without(broken(content, "images", 0, height=SIDE), "images", 0, "height")
    found = read(write(path, broken(content, "annotations", 0, bbox=[300, 300, 9, 9])))
    with pytest.raises(ValueError, match="lies outside of the picture, 48 x 48"):
        found[0]
    (path / "1.png").write_bytes((path / "1.png").read_bytes()[:200])
    with pytest.raises(ValueError, match=r"1.png cannot be read as a picture"):
        found[1]
    with pytest.raises(ValueError, match=r"prepare gave int of 2.png"):
        read(path, prepare=lambda image: 3)[2]


def test_pictures_of_another_mode_are_read_as_colours(folder):
    path, _, _ = folder
    Image.fromarray(np.full((SIDE, SIDE), 9, dtype=np.uint8)).save(path / "0.png")
    assert read(path)[0][0].shape == (3, SIDE, SIDE)


def test_without_pillow_the_error_says_how_to_get_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"pip install \"trustgp\[detection\]\""):
        read(folder[0])


def named(names: dict[int, str]) -> Detector:
    network = DETECTORS["plain"](len(names))
    network.config.id2label = names
    return Detector(network, Adapter())


def test_classes_are_the_detectors_before_a_picture_is_read(folder):
    path, _, content = folder
    asked = []
    plain = {"prepare": lambda image: asked.append(1) or pixels(image)}
    with pytest.raises(ValueError, match=r"category 'rover' is class 5; the detector knows 0 to 1.*label2id"):
        as_scenes(read(path, labels=None, **plain), named({0: "rover", 1: "lander"}), name="train")
    shifted = named({0: "lander", 1: "rover"})
    wrong = Subset(read(path, **plain), [0, 1])
    for given in (wrong, DataLoader(wrong)):
        with pytest.raises(ValueError, match=r"category 'rover' is class 0 \('lander'\)"):
            as_scenes(given, shifted, name="train")
    assert asked == []
    right = read(path, labels={"rover": 1, "lander": 0}, **plain)
    assert len(as_scenes(right, shifted, name="train")[1]) == 4
    assert len(as_scenes(read(path), named({0: "LABEL_0", 1: "LABEL_1"}), name="train")[1]) == 4
    assert len(content["images"]) == 4


def test_ids_that_are_texts_need_classes(folder):
    path, _, content = folder
    content["categories"] = [{**row, "id": str(row["id"])} for row in content["categories"]]
    content["annotations"] = [{**r, "category_id": str(r["category_id"])} for r in content["annotations"]]
    with pytest.raises(ValueError, match=r"category id '[56]' is no class"):
        read(write(path, content), labels=None)
    assert len(read(path)) == 4
