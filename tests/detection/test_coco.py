"""A COCO file and its folder: pictures are read on access, the file is checked at once."""

import json
import sys

import numpy as np
import pytest
import torch
from detection.conftest import plain_detr
from many import each
from torch.utils.data import DataLoader, Subset

from trustgp.detection import Adapter, coco_scenes
from trustgp.detection.adapter import Detector
from trustgp.detection.scenes import as_scenes

Image = pytest.importorskip("PIL.Image")
SIDE = 48
CLASSES = {"rover": 0, "lander": 1}
BOXES = torch.tensor([[[4.0, 5, 20, 25], [15, 10, 40, 44]]]) + torch.arange(4.0)[:, None, None]  # [4, 2, 4]
PIXELS = torch.randint(256, (4, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(0)).byte()


def pixels(image: torch.Tensor) -> torch.Tensor:
    return image.float() / 128 - 1


@pytest.fixture
def folder(tmp_path):
    """Four pictures with an object of each class and their file; categories are numbered from 5."""
    rows = []
    for i in range(4):
        Image.fromarray(PIXELS[i].permute(1, 2, 0).numpy()).save(tmp_path / f"{i}.png")
        for label, (left, top, right, bottom) in enumerate(BOXES[i].tolist()):
            box = [left, top, right - left, bottom - top]
            rows.append({"id": len(rows), "image_id": i, "category_id": 5 + label, "bbox": box, "iscrowd": 0})
    content = {
        "images": [{"id": i, "file_name": f"{i}.png", "height": SIDE, "width": SIDE} for i in range(4)],
        "annotations": rows,
        "categories": [{"id": 5 + i, "name": name} for name, i in CLASSES.items()],
    }
    return write(tmp_path, content), content


def write(folder, content):
    (folder / "all.json").write_text(json.dumps(content))
    return folder


def read(folder, **options):
    options = {"prepare": pixels, "labels": CLASSES, **options}
    return coco_scenes(folder / "all.json", folder, **options)


def batch(image: torch.Tensor) -> dict:
    return {"pixel_values": pixels(image)[None]}


@each(("labels", "prepare"), [(CLASSES, pixels), ({5: 0, 6: 1}, batch)])
def test_pictures_and_boxes_are_those_of_the_file_read_on_access(folder, labels, prepare):
    reads = []
    scenes = read(folder[0], labels=labels, prepare=lambda image: reads.append(1) or prepare(image))
    assert (len(scenes), reads) == (4, [])
    for i in range(4):
        image, targets = scenes[i]
        assert torch.equal(image, pixels(PIXELS[i]))
        torch.testing.assert_close(targets.boxes, BOXES[i])
        assert targets.labels.tolist() == [0, 1]
    assert len(reads) == 4


def test_boxes_are_scaled_with_resized_pictures(folder):
    image, targets = read(folder[0], prepare=lambda image: pixels(image)[:, ::2, ::4])[0]
    assert image.shape == (3, 24, 12)
    torch.testing.assert_close(targets.boxes, BOXES[0] * torch.tensor([0.25, 0.5, 0.25, 0.5]))


def test_crowds_empty_boxes_and_categories_without_a_class_are_left_out(folder):
    path, content = folder
    first = content["annotations"][0]
    content["annotations"] += [{**first, "iscrowd": 1, "id": 70}, {**first, "bbox": [3, 3, 0, 5], "id": 71}]
    content["annotations"] = [row for row in content["annotations"] if row["image_id"] != 2]
    with pytest.warns(UserWarning, match=r"all.json: 1 boxes are empty; they are left out"):
        scenes = read(write(path, content), labels={"rover": 0, "lander": None})
    torch.testing.assert_close(scenes[0][1].boxes, BOXES[0][:1])
    assert scenes[2][1].boxes.shape == (0, 4)


def changed(content, part, **changes):
    """With other values in the second row of a list; None: without them."""
    first, second, *rest = content[part]
    second = {name: value for name, value in {**second, **changes}.items() if value is not None}
    return {**content, part: [first, second, *rest]}


@each(
    ("change", "match"),
    [
        (lambda c: changed(c, "annotations", image_id=44), "annotation 1 is of an image or category that"),
        (lambda c: changed(c, "annotations", category_id=9), "annotation 1 is of an image or category that"),
        (lambda c: changed(c, "annotations", bbox=[1, 2, 3]), r"annotation 1 has the bbox \[1, 2, 3\]"),
        (lambda c: changed(c, "annotations", bbox=[1, 2, float("nan"), 3]), "has the bbox"),
        (lambda c: changed(c, "annotations", bbox="1 2 3 4"), "annotation 1 has the bbox 1 2 3 4"),
        (lambda c: changed(c, "annotations", bbox=["4", "5", "16", "20"]), "annotation 1 has the bbox"),
        (lambda c: changed(c, "annotations", bbox=[4, 5, True, 20]), "annotation 1 has the bbox"),
        (lambda c: changed(c, "annotations", iscrowd="0"), "iscrowd '0'; 0 or 1"),
        (lambda c: changed(c, "annotations", iscrowd=0.7), "iscrowd 0.7"),
        (lambda c: changed(c, "images", id=0), "ids of images and categories must be unique"),
        (lambda c: changed(c, "images", file_name=None), r"KeyError\('file_name'\)"),
        (lambda c: changed(c, "annotations", bbox=None), r"KeyError\('bbox'\)"),
        (lambda c: {**c, "annotations": [3]}, "TypeError"),
        (lambda c: {**c, "images": []}, "there must be a picture"),
        (lambda c: [1, 2], "TypeError"),
    ],
)
def test_a_wrong_file_is_refused_at_once(folder, change, match):
    """Promise 37: numbers are what they say."""
    path, content = folder
    with pytest.raises(ValueError, match=rf"all.json is no COCO file: .*{match}.* It needs lists images"):
        read(write(path, change(content)))


def test_missing_files_are_named(folder):
    path, content = folder
    with pytest.raises(FileNotFoundError, match=r"none.json is no file"):
        coco_scenes(path / "none.json", path, prepare=pixels)
    with pytest.raises(FileNotFoundError, match="nowhere is no folder"):
        coco_scenes(path / "all.json", path / "nowhere", prepare=pixels)
    with pytest.raises(FileNotFoundError, match=r"1 of 4 pictures of all.json are not in"):
        read(write(path, changed(content, "images", file_name="gone.png")))
    for text in (b'{"images": [', b"\xff\xfe"):
        (path / "all.json").write_bytes(text)
        with pytest.raises(ValueError, match="is no COCO file"):
            read(path)


WRONG_CLASSES = [{0: "rover"}, {"rover": 0}, {"rover": 0, "lander": "one"}, {5: 0.7, 6: 1}, {5: True, 6: 1}]


@pytest.mark.parametrize("labels", WRONG_CLASSES)
def test_labels_need_a_number_for_each_category(folder, labels):
    path, content = folder
    wrong = r"category '\w+', id \d, has the class '?[\w.]+'?; pass labels= with"
    with pytest.raises(ValueError, match=wrong):
        read(path, labels=labels)
    for part, key in (("categories", "id"), ("annotations", "category_id")):
        content[part] = [{**row, key: str(row[key])} for row in content[part]]
    with pytest.raises(ValueError, match=r"category 'rover', id '5', has the class '5'"):
        read(write(path, content), labels=None)
    assert len(read(path)) == 4


def test_a_picture_that_contradicts_the_file_is_refused(folder):
    path, content = folder
    scenes = read(write(path, changed(content, "images", height=96)))
    with pytest.raises(ValueError, match=r"1.png is 48 x 48 pixels, but 48 x 96 in the COCO file"):
        scenes[1]
    content = changed(content, "images", height=None)
    scenes = read(write(path, changed(content, "annotations", bbox=[300, 300, 9, 9])))
    with pytest.raises(ValueError, match=r"0.png: a box lies outside of the picture, 48 x 48"):
        scenes[0]
    (path / "1.png").write_bytes((path / "1.png").read_bytes()[:200])
    with pytest.raises(ValueError, match=r"1.png cannot be read as a picture"):
        scenes[1]
    with pytest.raises(ValueError, match=r"prepare gave int of 2.png"):
        read(path, prepare=lambda image: 3)[2]
    Image.fromarray(np.full((SIDE, SIDE), 9, dtype=np.uint8)).save(path / "3.png")  # grey
    assert scenes[3][0].shape == (3, SIDE, SIDE)


def test_without_pillow_the_error_says_how_to_get_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"pip install \"trustgp\[detection\]\""):
        read(folder[0])


def named(*names: str) -> Detector:
    network = plain_detr(len(names))
    network.config.id2label = dict(enumerate(names))
    return Detector(network, Adapter())


def test_classes_are_compared_with_the_detectors_before_a_picture_is_read(folder):
    reads = []
    counted = {"prepare": lambda image: reads.append(1) or pixels(image)}
    with pytest.raises(ValueError, match=r"'rover' is class 5 \(None\); the detector has 0 to 1.*label2id"):
        as_scenes(read(folder[0], labels=None, **counted), named("rover", "lander"), name="train")
    swapped = Subset(read(folder[0], **counted), [0, 1])
    for given in (swapped, DataLoader(swapped)):
        with pytest.raises(ValueError, match=r"category 'rover' is class 0 \('lander'\)"):
            as_scenes(given, named("lander", "rover"), name="train")
    assert reads == []
    right = read(folder[0], labels={"rover": 1, "lander": 0}, **counted)
    assert len(as_scenes(right, named("lander", "rover"), name="train")[1]) == 4
    assert len(as_scenes(read(folder[0]), named("LABEL_0", "LABEL_1"), name="train")[1]) == 4


@each("name", ["/etc/hostname", "../outside.png", "inner/../../outside.png", "link.png"])
def test_a_picture_outside_of_the_folder_is_refused(folder, name):
    """Promise 37: absolute paths, `..` and links out of the folder."""
    place, content = folder
    inner = place / "pictures"
    inner.mkdir(exist_ok=True)
    (place / "outside.png").write_bytes((place / "0.png").read_bytes())
    (inner / "link.png").unlink(missing_ok=True)
    (inner / "link.png").symlink_to(place / "outside.png")
    content["images"] = [{**content["images"][0], "file_name": name}]
    content["annotations"] = content["annotations"][:2]
    outside = r"all.json names .*, which is not in .*; pass a file whose pictures"
    with pytest.raises(ValueError, match=outside):
        coco_scenes(write(place, content) / "all.json", inner, prepare=pixels, labels=CLASSES)
