"""Pictures and things in the shapes in which people have them: one result, or an error with what to do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import trustgp
from trustgp.detection import Things
from trustgp.detection.scenes import as_pictures, as_scenes

HEIGHT, WIDTH = 60, 80
NAMES = {0: "rover", 1: "lander", 2: "rock"}
BOXES = torch.tensor([[10.0, 20.0, 40.0, 50.0], [30.0, 5.0, 70.0, 25.0]])  # left, top, right, bottom
KINDS = torch.tensor([1, 0])
XYWH = torch.tensor([[10.0, 20.0, 30.0, 30.0], [30.0, 5.0, 40.0, 20.0]])
CXCYWH = torch.tensor([[25.0, 35.0, 30.0, 30.0], [50.0, 15.0, 40.0, 20.0]])
SHARES = torch.tensor([WIDTH, HEIGHT, WIDTH, HEIGHT])
IMAGES = torch.linspace(-1, 1, 2 * 3 * HEIGHT * WIDTH).reshape(2, 3, HEIGHT, WIDTH)


def detector(labels: int = 3, names: dict[int, str] | None = NAMES):
    network = SimpleNamespace(config=SimpleNamespace(id2label=names))
    return SimpleNamespace(network=network, channels=3, labels=labels)


def scenes(given, **options):
    return as_scenes(given, detector(**options), name="train")


def annotations(crowd: bool = False) -> list[dict]:
    rows = zip(XYWH.tolist(), KINDS.tolist(), strict=True)
    found = [{"bbox": box, "category_id": kind, "iscrowd": 0, "area": 1.0} for box, kind in rows]
    return found + [{"bbox": [0, 0, 80, 60], "category_id": 77, "iscrowd": 1}] * crowd


class BoundingBoxes(torch.Tensor):
    """As torchvision's: a tensor that knows its format."""

    format = SimpleNamespace(value="CXCYWH")


SHAPES = {
    "things": Things(BOXES, KINDS),
    "pair": (BOXES.numpy(), KINDS.tolist()),
    "torchvision": {"boxes": BOXES, "labels": KINDS, "image_id": 3},
    "BoundingBoxes": {"boxes": CXCYWH.clone().as_subclass(BoundingBoxes), "labels": KINDS},
    "format in a dict": {"boxes": XYWH, "labels": KINDS, "format": "xywh"},
    "xywh": Things(XYWH, KINDS, format="xywh"),
    "cxcywh": Things(CXCYWH, KINDS, format="cxcywh"),
    "relative": Things(CXCYWH / SHARES, KINDS, format="cxcywh", relative=True),
    "processor": {"boxes": CXCYWH / SHARES, "class_labels": KINDS, "orig_size": torch.tensor([900, 1200])},
    "processor, size": {
        **{"boxes": CXCYWH / torch.tensor([75.0, 55.0] * 2), "class_labels": KINDS},
        "size": torch.tensor([55, 75]),
    },
    "coco": annotations(),
    "coco, crowd": annotations(crowd=True),
    "coco, target": {"image_id": 9, "annotations": annotations()},
    "coco, mapped": Things.from_coco(
        [{**row, "category_id": row["category_id"] + 17} for row in annotations()], labels={17: 0, 18: 1}
    ),
    "names": (BOXES, ["lander", "rover"]),
    "coco, names": [{**row, "category_id": NAMES[row["category_id"]]} for row in annotations()],
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_the_same_corners_in_pixels(shape):
    images, (first, second) = scenes((IMAGES, [SHAPES[shape], SHAPES["things"]]))
    assert torch.equal(images, IMAGES)
    torch.testing.assert_close(first.boxes, BOXES)
    assert type(first.boxes) is torch.Tensor
    assert first.labels.tolist() == KINDS.tolist()
    assert first.labels.dtype == torch.int64
    assert (first.format, first.relative) == ("xyxy", False)
    assert torch.equal(second.boxes, BOXES)


@pytest.mark.parametrize(
    "empty",
    [
        [],
        {"annotations": []},
        {"boxes": torch.zeros(0, 4), "labels": []},
        {"boxes": torch.zeros(0, 4), "class_labels": torch.zeros(0), "size": torch.tensor([60, 80])},
        ([], []),
    ],
)
def test_a_picture_may_be_empty(empty):
    _, (first, _) = scenes((IMAGES, [empty, SHAPES["things"]]))
    assert first.boxes.shape == (0, 4)
    assert first.labels.shape == (0,)


@pytest.mark.parametrize(
    ("things", "match"),
    [
        (
            Things(torch.tensor([[40.0, 30, 30, 25], [45, 20, 30, 20]]), KINDS),
            r"All 4 would fit as left, top, width, height in pixels: .*format=\"xywh\"\)",
        ),
        (Things(CXCYWH / SHARES, KINDS), r"all boxes lie between 0 and 1.*\"cxcywh\", relative=True\)"),
        (Things(BOXES / SHARES, KINDS), r"in pictures of 80 x 60 pixels.*\"xyxy\", relative=True\)"),
        (Things(BOXES, KINDS, relative=True), r"leaves the picture.*fit as .*in pixels: .*format=\"xyxy\"\)"),
        (Things(BOXES, KINDS, format="yxyx"), "format='yxyx'; allowed are xyxy, xywh, cxcywh"),
        (Things(BOXES * 9, KINDS), r"boxes are left, top, right, bottom in pixels\.$"),
    ],
)
def test_boxes_of_another_format_are_refused_with_what_they_look_like(things, match):
    with pytest.raises(ValueError, match=match):
        scenes((IMAGES, [things, things]))


def test_one_bad_box_among_good_ones_gets_no_advice():
    bad = torch.cat([BOXES, torch.tensor([[5.0, 5.0, 5.0, 9.0]])])
    with pytest.raises(ValueError, match=r"picture 1: box \[5.0, 5.0, 5.0, 9.0\] is empty") as caught:
        scenes((IMAGES, [SHAPES["things"], Things(bad, torch.tensor([0, 1, 1]))]))
    assert "would fit" not in str(caught.value)


def test_small_pictures_may_have_boxes_of_a_pixel():
    tiny = torch.zeros(1, 3, 8, 8)
    _, (one,) = scenes((tiny, [([[0.0, 0.0, 1.0, 1.0]], [0])]))
    assert one.boxes.tolist() == [[0.0, 0.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    ("things", "match"),
    [
        ({"boxes": BOXES}, "a mapping with 'boxes'; 'boxes' and 'labels'"),
        ({"boxes": BOXES, "class_labels": KINDS}, "boxes reach 70; a processor's"),
        (
            {"boxes": CXCYWH / SHARES, "class_labels": KINDS, "size": [600, 800]},
            "'size' is 800 x 600 pixels, the picture 80 x 60",
        ),
        ((BOXES, ["lander", "rovr"]), r"no class 'rovr'; it has .*Did you mean \"rover\""),
        ([{"bbox": [1, 2, 3], "category_id": 0}], "a 'bbox' is no list of left, top, width, height"),
        ([{"bbox": None, "category_id": 0}], "a 'bbox' is no list"),
        ([{"bbox": [1, 2, 3, 4]}], "an annotation has no 'category_id'"),
        ([{"bbox": [1, 2, 3, 4], "category_id": 9}], r"labels \[9\]; the detector knows 0 to 2 \(rover, lan"),
        ([{"bbox": [1, 2, 0, 4], "category_id": 0}], "is empty"),
        ((["left"], [0]), "boxes are no table of numbers"),
        (7, "things are a int; Things"),
    ],
)
def test_things_that_cannot_be_read_are_refused(things, match):
    with pytest.raises(ValueError, match=f"train, picture 1: .*{match}"):
        scenes((IMAGES, [SHAPES["things"], things]))


def test_a_mapping_of_categories_must_have_them_all():
    with pytest.raises(ValueError, match="category 1 is not in labels=, which has 7, 8"):
        Things.from_coco(annotations(), labels={7: 0, 8: 1})
    with pytest.raises(ValueError, match="annotations are a str"):
        Things.from_coco("file.json")


def test_detectors_without_names_take_numbers():
    assert scenes((IMAGES, [SHAPES["coco"]] * 2), names=None)[1][0].labels.tolist() == [1, 0]


PROCESSED = {"boxes": CXCYWH / SHARES, "class_labels": KINDS}
BATCH = {"pixel_values": IMAGES, "pixel_mask": torch.ones(2, HEIGHT, WIDTH), "labels": [PROCESSED] * 2}


class Rows(Dataset):
    def __init__(self, rows):
        self.rows, self.asked = rows, 0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        self.asked += 1
        return self.rows[i]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(image, PROCESSED) for image in IMAGES])


def unzipped(rows):
    return tuple(zip(*rows, strict=True))


SOURCES = {
    "mapping": BATCH,
    "mapping and things": (BATCH, [PROCESSED] * 2),
    "lists": {"pixel_values": list(IMAGES), "labels": [PROCESSED] * 2},
    "rows": Rows([(image, PROCESSED) for image in IMAGES]),
    "rows of annotations": Rows([(image, annotations()) for image in IMAGES]),
    "rows of mappings": Rows([{"pixel_values": image, "labels": PROCESSED} for image in IMAGES]),
    "rows of batches": Rows([{"pixel_values": image[None], "labels": [PROCESSED]} for image in IMAGES]),
    "rows with numbers": Rows([(image, PROCESSED, i) for i, image in enumerate(IMAGES)]),
    "stream": Stream(),
    "loader of mappings": DataLoader(Rows([BATCH]), batch_size=None),
    "loader of pairs": DataLoader(Rows([(i, PROCESSED) for i in IMAGES]), 2, collate_fn=unzipped),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_same_pictures_and_things(source):
    images, things = scenes(SOURCES[source])
    assert torch.equal(images, IMAGES)
    for one in things:
        torch.testing.assert_close(one.boxes, BOXES)
        assert one.labels.tolist() == [1, 0]
    assert len(things) == 2


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"pixel_values": IMAGES}, "'pixel_values', but no 'labels'"),
        ({"images": IMAGES, "labels": []}, "'pixel_values' is needed"),
        ({**BATCH, "pixel_values": IMAGES.byte()}, "train: pictures are torch.uint8; scale them to floats"),
        ({**BATCH, "labels": [PROCESSED]}, "train has 2 pictures, but things for 1"),
        (
            {**BATCH, "pixel_mask": torch.zeros(2, 60, 80)},
            "train: a 'pixel_mask' .* is no whole rectangle at its top left",
        ),
        (Rows([IMAGES[0]]), "train gives a Tensor; pairs"),
        (Rows([]), "train holds no pictures"),
        (DataLoader(Rows([(i, Things(BOXES, KINDS)) for i in IMAGES])), "pass collate_fn=lambda rows"),
    ],
)
def test_sources_that_cannot_be_read_are_refused(given, match):
    with pytest.raises(ValueError, match=match):
        scenes(given)


def test_a_wrong_first_row_is_told_before_the_others_are_read():
    rows = Rows([(IMAGES[0].byte(), PROCESSED)] * 50)
    with pytest.raises(ValueError, match="scale them"):
        scenes(rows)
    assert rows.asked == 1


def test_pictures_of_a_processor_are_taken_by_predict_too():
    assert torch.equal(as_pictures(BATCH, channels=3, size=(HEIGHT, WIDTH)), IMAGES)


def test_a_users_tensors_stay_as_they_are():
    before = {name: tensor.clone() for name, tensor in (("boxes", BOXES), ("shares", PROCESSED["boxes"]))}
    scenes((IMAGES, [PROCESSED, Things(BOXES, KINDS, format="xyxy")]))
    assert torch.equal(before["boxes"], BOXES)
    assert torch.equal(before["shares"], PROCESSED["boxes"])


def test_a_real_processors_output_is_taken():
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, "DetrImageProcessorPil", None) or pytest.skip("transformers 5.0 has no such")
    larger = [{**row, "bbox": [2 * v for v in row["bbox"]]} for row in annotations()]
    target = {"image_id": 1, "annotations": larger}
    whole = torch.zeros(3, 2 * HEIGHT, 2 * WIDTH, dtype=torch.uint8)
    sizes = {"height": HEIGHT, "width": WIDTH}, {"shortest_edge": HEIGHT, "longest_edge": 900}
    sized, padded = (kind(size=size) for size in sizes)
    images, (one,) = scenes(sized(whole, annotations=target, return_tensors="pt"))
    assert images.shape == (1, 3, HEIGHT, WIDTH)
    torch.testing.assert_close(one.boxes, BOXES)
    mixed = padded([whole, whole[:, :, :HEIGHT]], annotations=[target, target], return_tensors="pt")
    images, things = scenes(mixed)
    assert [tuple(one.shape) for one in images] == [(3, HEIGHT, WIDTH), (3, 2 * HEIGHT, HEIGHT)]
    torch.testing.assert_close(things[0].boxes, BOXES)


def test_things_is_one_class():
    assert trustgp.Things is Things
