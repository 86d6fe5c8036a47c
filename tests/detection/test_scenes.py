"""Pictures and targets as users have them: one result, or an error that lists what is accepted."""

from types import SimpleNamespace

import pytest
import torch
from many import each
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

from trustgp.detection import BoxTargets
from trustgp.detection.scenes import SceneStream, as_pictures, as_scenes

HEIGHT, WIDTH = 60, 80
BOXES = torch.tensor([[10.0, 20.0, 40.0, 50.0], [30.0, 5.0, 70.0, 25.0]])  # left, top, right, bottom
LABELS = torch.tensor([1, 0])
XYWH = torch.tensor([[10.0, 20.0, 30.0, 30.0], [30.0, 5.0, 40.0, 20.0]])
WIDTHS = torch.tensor([[40.0, 30, 30, 25], [45, 20, 30, 20]])  # xywh that cannot be xyxy
CXCYWH = torch.tensor([[25.0, 35.0, 30.0, 30.0], [50.0, 15.0, 40.0, 20.0]])
SHARES = torch.tensor([WIDTH, HEIGHT, WIDTH, HEIGHT])
IMAGES = torch.linspace(-1, 1, 2 * 3 * HEIGHT * WIDTH).reshape(2, 3, HEIGHT, WIDTH)
DETECTOR = SimpleNamespace(network=SimpleNamespace(), channels=3, labels=3)


def scenes(given, **options):
    return as_scenes(given, DETECTOR, name="pictures", **options)


def annotations(crowd: bool = False) -> list[dict]:
    rows = zip(XYWH.tolist(), LABELS.tolist(), strict=True)
    rows = [{"bbox": box, "category_id": label, "iscrowd": 0, "area": 1.0} for box, label in rows]
    return rows + [{"bbox": [0, 0, 80, 60], "category_id": 77, "iscrowd": 1}] * crowd


PROCESSED = {"boxes": CXCYWH / SHARES, "class_labels": LABELS}
TARGETS = {
    "BoxTargets": BoxTargets(BOXES, LABELS),
    "torchvision": {"boxes": BOXES.numpy(), "labels": LABELS.tolist(), "image_id": 3},
    "processor": {**PROCESSED, "orig_size": torch.tensor([900, 1200])},
    "processor, size": {
        **{"boxes": CXCYWH / torch.tensor([75.0, 55.0] * 2), "class_labels": LABELS},
        "size": torch.tensor([55, 75]),
    },
    "coco": annotations(),
    "coco, crowd": annotations(crowd=True),
    "coco, target": {"image_id": 9, "annotations": annotations()},
}  # fmt: skip


@pytest.mark.parametrize("kind", TARGETS)
def test_every_kind_of_targets_gives_the_same_corners_in_pixels(kind):
    images, (first, second) = scenes((IMAGES, [TARGETS[kind], TARGETS["BoxTargets"]]))
    assert torch.equal(images, IMAGES)
    torch.testing.assert_close(first.boxes, BOXES)
    assert first.labels.tolist() == LABELS.tolist()
    assert (first.labels.dtype, type(first.boxes)) == (torch.int64, torch.Tensor)
    assert torch.equal(second.boxes, BOXES)
    assert torch.equal(TARGETS["processor"]["boxes"], CXCYWH / SHARES)  # a user's tensors stay as they are


def test_a_picture_may_have_no_objects_and_a_small_one_boxes_of_a_pixel():
    none = {"boxes": torch.zeros(0, 4)}
    sized = {**none, "class_labels": torch.zeros(0), "size": torch.tensor([60, 80])}
    for empty in ([], {"annotations": []}, {**none, "labels": []}, sized):
        _, (first, _) = scenes((IMAGES, [empty, TARGETS["BoxTargets"]]))
        assert (first.boxes.shape, first.labels.shape) == ((0, 4), (0,))
    _, (one,) = scenes((torch.zeros(1, 3, 8, 8), [{"boxes": [[0.0, 0.0, 1.0, 1.0]], "labels": [0]}]))
    assert one.boxes.tolist() == [[0.0, 0.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    ("targets", "match"),
    [
        (BoxTargets(WIDTHS, LABELS), r"box \[40.0, 30.0, 30.0, 25.0\], .*is empty or leaves"),
        (BoxTargets(BOXES / SHARES, LABELS), "all boxes lie between 0 and 1, in 80 x 60 pixels"),
        (BoxTargets(torch.tensor([[0, 0, torch.nan, 9.0]]), LABELS[:1]), "is empty or leaves"),
        (BoxTargets(torch.ones(3), LABELS[:1]), r"boxes are \(3,\), labels 1"),
        (BoxTargets(BOXES, LABELS[:1]), r"boxes are \(2, 4\), labels 1"),
        (BoxTargets(BOXES, LABELS + 2), r"labels are \[3, 2\]; 0 to 2, the detector's, are allowed"),
        (BoxTargets(BOXES, ["lander", "rover"]), "cannot read a BoxTargets"),
        ((BOXES, LABELS), "cannot read a tuple"),
        ({"boxes": BOXES}, r"cannot read a dict \(KeyError\('labels'\)\)"),
        ({**PROCESSED, "size": [600, 800]}, "is empty or leaves"),
        ([{"bbox": [1, 2, 3], "category_id": 0}], "cannot read a list"),
        ([{"bbox": [1, 2, 3, 4]}], r"KeyError\('category_id'\)"),
        (7, "cannot read a int"),
    ],
)
def test_other_targets_are_refused_with_what_is_accepted(targets, match):
    with pytest.raises(ValueError, match=rf"pictures, picture 1: .*({match}).*COCO annotations"):
        scenes((IMAGES, [TARGETS["BoxTargets"], targets]))


BATCH = {"pixel_values": IMAGES, "pixel_mask": torch.ones(2, HEIGHT, WIDTH), "labels": [PROCESSED] * 2}


class Rows(Dataset):
    def __init__(self, rows):
        self.rows, self.reads = rows, 0

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        self.reads += 1
        return self.rows[i]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(image, PROCESSED) for image in IMAGES])


def unzipped(rows):
    return tuple(zip(*rows, strict=True))


SOURCES = {
    "mapping": BATCH,
    "mapping and targets": (BATCH, [PROCESSED] * 2),
    "rows": Rows([(image, PROCESSED) for image in IMAGES]),
    "rows of mappings": Rows([{"pixel_values": image, "labels": PROCESSED} for image in IMAGES]),
    "rows of batches": Rows([{"pixel_values": image[None], "labels": [PROCESSED]} for image in IMAGES]),
    "rows with numbers": Rows([(image, PROCESSED, i) for i, image in enumerate(IMAGES)]),
    "stream": Stream(),
    "loader of mappings": DataLoader(Rows([BATCH]), batch_size=None),
    "loader of pairs": DataLoader(Rows([(i, PROCESSED) for i in IMAGES]), 2, collate_fn=unzipped),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_same_pictures_and_targets(source):
    images, targets = scenes(SOURCES[source])
    assert torch.equal(images, IMAGES)
    for one in targets:
        torch.testing.assert_close(one.boxes, BOXES)
        assert one.labels.tolist() == [1, 0]
    assert len(targets) == 2
    assert torch.equal(as_pictures(BATCH, channels=3, size=(HEIGHT, WIDTH)), IMAGES)


def test_the_number_of_pictures_is_that_of_the_sampler():
    def total(sampler, **options):
        loader = DataLoader(SOURCES["rows"], 2, collate_fn=unzipped, sampler=sampler, **options)
        return SceneStream(loader, DETECTOR, name="scenes").total

    assert total(SubsetRandomSampler([1])) == 1
    assert total([0, 1, 0], drop_last=True) == 2


ALONE = IMAGES, list(IMAGES), IMAGES[0], DataLoader(IMAGES, 2), TensorDataset(IMAGES)


@each("given", [*ALONE, {"pixel_values": IMAGES}])
def test_foreign_pictures_may_come_without_targets_and_with_other_labels(given):
    images, targets = scenes(given, foreign=True)
    assert targets is None
    assert torch.equal(images, IMAGES[: len(images)])
    beyond = BoxTargets(BOXES, LABELS + 9)
    assert scenes((IMAGES, [beyond] * 2), foreign=True)[1][1].labels.tolist() == [10, 9]
    with pytest.raises(ValueError, match="0 or more are allowed"):
        scenes((IMAGES, [BoxTargets(BOXES, LABELS - 9)] * 2), foreign=True)


NAN = torch.full_like(IMAGES, torch.nan)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("folder", r"pictures has a str; \(images, targets\), a Hugging Face"),
        ({"pixel_values": IMAGES}, "pictures has a dict"),
        ({"images": IMAGES, "labels": []}, "pictures are NoneType; .*'pixel_values' is needed"),
        ({**BATCH, "labels": [PROCESSED]}, "pictures has 2 pictures, but targets of 1"),
        ({**BATCH, "pixel_mask": torch.zeros(2, 60, 80)}, "a 'pixel_mask' .* is no whole rectangle"),
        ((NAN, [PROCESSED] * 2), "pictures: 2 pictures hold NaN or infinity, the first is 0"),
        ((IMAGES[:0], []), "pictures holds no pictures"),
    ],
)
def test_other_sources_are_refused(given, match):
    with pytest.raises(ValueError, match=match):
        scenes(given)


def test_an_error_in_the_first_row_is_raised_before_the_others_are_read():
    rows = Rows([(IMAGES[0].byte(), PROCESSED)] * 50)
    with pytest.raises(ValueError, match="scale them"):
        scenes(rows)
    assert rows.reads == 1


def test_a_real_processors_output_is_accepted():
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
    images, targets = scenes(mixed)
    assert [tuple(one.shape) for one in images] == [(3, HEIGHT, WIDTH), (3, 2 * HEIGHT, HEIGHT)]
    torch.testing.assert_close(targets[0].boxes, BOXES)
