"""A fit reads pictures as it needs them, of any sizes, and goes on where it was stopped."""

from __future__ import annotations

import weakref
from dataclasses import fields, replace

import pytest
import torch
from detection.conftest import LOOSE, pictures, plain_detr
from torch.utils.data import DataLoader, Dataset, IterableDataset

import trustgp
from trustgp.data.tensor_file import ArtifactError
from trustgp.detection import Detection, fit_detector, pass_checkpoint, picture_pass
from trustgp.detection.picture_pass import CHANGED, HeldOut
from trustgp.detection.pictures import MOST, PIXELS_AT_ONCE, at_once, for_each

pytestmark = pytest.mark.filterwarnings("ignore:.*of the .* training pictures are kept")
SMALL = 36  # side of some pictures, in place of 48


class Shelf(Dataset):
    """Pictures that are counted when they are taken; one fails if told to."""

    def __init__(self, rows, fails: int | None = None) -> None:
        self.rows, self.fails, self.taken = rows, fails, []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int):
        if i == self.fails:
            raise KeyboardInterrupt
        self.taken.append(i)
        return self.rows[i]


class Queue(IterableDataset):
    """The same without numbers."""

    def __init__(self, rows) -> None:
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def rows(n: int, *, mixed: bool = False):
    images, things = pictures(n)
    if not mixed:
        return list(zip(images, things, strict=True))
    small = torch.nn.functional.interpolate(images, size=(SMALL, SMALL), mode="bilinear")
    less = [replace(one, boxes=one.boxes * SMALL / 48) for one in things]
    pairs = zip(zip(images, things, strict=True), zip(small, less, strict=True), strict=True)
    return [pair[i % 3 == 0] for i, pair in enumerate(pairs)]


def fitted(train, **options):
    return fit_detector(plain_detr(), train, LOOSE, progress=False, **options)


def same(one, other) -> None:
    """All that two models know is alike, bit for bit."""
    for part in ("readout", "pictures", "temperature", "edges"):
        for name in (field.name for field in fields(getattr(one.state, part))):
            assert torch.equal(*(getattr(getattr(m.state, part), name) for m in (one, other))), (part, name)
    assert torch.equal(one.state.held_scores, other.state.held_scores)
    assert torch.equal(one.state.held_pictures, other.state.held_pictures)


@pytest.fixture(scope="module")
def whole():
    return fitted(pictures(150))


def test_it_makes_no_difference_how_pictures_come(whole):
    given = rows(150)
    collate = {"collate_fn": lambda some: tuple(zip(*some, strict=True)), "batch_size": 7}
    for train in (Shelf(given), Queue(given), DataLoader(Shelf(given), **collate)):
        same(fitted(train), whole)


def test_pictures_are_dropped_once_they_were_seen(monkeypatch):
    alive, most = set(), []
    counted = picture_pass.PicturePass.take

    class Fleeting(Shelf):
        def __getitem__(self, i: int):
            image, things = super().__getitem__(i)
            image = image.clone()
            alive.add(i)
            weakref.finalize(image.untyped_storage(), alive.discard, i)
            return image, things

    def take(self, lot):
        most.append(len(alive))
        counted(self, lot)

    monkeypatch.setattr(picture_pass.PicturePass, "take", take)
    fitted(Fleeting(rows(150)))
    assert max(most) <= 2 * picture_pass.LOT


@pytest.mark.parametrize("validated", [False, True])
def test_a_stopped_fit_goes_on_where_it_was(tmp_path, monkeypatch, validated):
    monkeypatch.setattr(pass_checkpoint, "EVERY", 0.0)
    given, held = rows(150), rows(80)
    options = {"validation": Shelf(held)} if validated else {}
    expected = fitted(Shelf(given), **options)
    with pytest.raises(KeyboardInterrupt, match=r"training pictures \(2 of 3\).* the same call goes on"):
        fitted(Shelf(given, fails=140), checkpoint=tmp_path, **options)
    again = Shelf(given)
    same(fitted(again, checkpoint=tmp_path, **options), expected)
    assert again.taken[0] == 0  # by which the pictures are known again
    assert again.taken[1:] == list(range(128, 150))
    if validated:
        stopped = Shelf(given), Shelf(held, fails=79)
        with pytest.raises(KeyboardInterrupt):
            fitted(stopped[0], checkpoint=tmp_path / "b", validation=stopped[1])
        same(fitted(Shelf(given), checkpoint=tmp_path / "b", **options), expected)


def test_a_damaged_checkpoint_begins_anew_and_that_of_another_fit_is_refused(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(pass_checkpoint, "EVERY", 0.0)
    fitted(pictures(150), checkpoint=tmp_path)
    file = tmp_path / "pictures-train.trustgp"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    same(fitted(pictures(150), checkpoint=tmp_path), whole)
    with pytest.raises(ArtifactError, match="checkpoint of another fit; different: train"):
        fitted(pictures(140), checkpoint=tmp_path)
    with pytest.raises(ArtifactError, match="different: settings"):
        fit_detector(plain_detr(), pictures(150), Detection(0.02), progress=False, checkpoint=tmp_path)


def test_too_few_pictures_to_hold_some_out_are_refused():
    for train in (Shelf(rows(9)), Queue(rows(9))):
        with pytest.raises(ValueError, match="9 pictures are too few to hold some out"):
            fitted(train)


def test_a_checkpoint_needs_an_order(tmp_path):
    loader = DataLoader(Shelf(rows(20)), shuffle=True, collate_fn=lambda some: tuple(zip(*some, strict=True)))
    with pytest.raises(ValueError, match="the same order each time"):
        fitted(loader, checkpoint=tmp_path)


def test_pictures_of_mixed_sizes_are_fitted_predicted_and_kept_apart(tmp_path):
    model = fitted(Shelf(rows(120, mixed=True)))
    assert model.state.mixed
    assert "and others" in repr(model)
    images = [image for image, _ in rows(9, mixed=True)]
    together = model.predict(images)
    for image, one in zip(images, together, strict=True):
        (alone,) = model.predict(image)
        torch.testing.assert_close(one.boxes, alone.boxes)
        torch.testing.assert_close(one.novelty, alone.novelty, rtol=1e-4, atol=1e-6)
        assert float(one.boxes.max()) <= 2 * image.shape[-1]
    images[4] = images[4] * float("nan")
    assert [one.valid for one in model.predict(images)] == [i != 4 for i in range(9)]
    model.save(tmp_path / "model.trustgp")
    again = trustgp.load(tmp_path / "model.trustgp", plain_detr())
    torch.testing.assert_close(again.predict(images[0])[0].std, together[0].std)
    told = trustgp.evaluate(model, Shelf(rows(12, mixed=True)), progress=False)
    assert "PDQ" in str(told)


def test_padded_pictures_are_those_without_the_padding():
    model = fitted(Shelf(rows(120, mixed=True)))
    images = [image for image, _ in rows(4, mixed=True)]
    batch = torch.zeros(4, 3, 48, 48)
    mask = torch.zeros(4, 48, 48, dtype=torch.int64)
    for i, image in enumerate(images):
        batch[i, :, : image.shape[1], : image.shape[2]] = image
        mask[i, : image.shape[1], : image.shape[2]] = 1
    padded = model.predict({"pixel_values": batch, "pixel_mask": mask})
    for one, other in zip(padded, model.predict(images), strict=True):
        assert torch.equal(one.boxes, other.boxes)
        assert torch.equal(one.std, other.std)


def test_a_model_of_one_size_takes_no_other(whole):
    with pytest.raises(ValueError, match="the model was fitted on"):
        whole.predict([image for image, _ in rows(4, mixed=True)])
    with pytest.raises(ValueError, match=r"validation: pictures are \(36, 36\) pixels"):
        fitted(pictures(30), validation=[list(part) for part in zip(*rows(30, mixed=True)[::3], strict=True)])


def test_large_pictures_go_through_the_detector_few_at_a_time():
    assert at_once(16, 16) == MOST
    assert at_once(800, 1066) * 800 * 1066 <= PIXELS_AT_ONCE
    assert at_once(10**4, 10**4) == 1
    given = [torch.full((1, side, 1), float(i)) for i, side in enumerate((2, 3, 2, 2, 3))]
    asked = []

    def work(some):
        asked.append(len(some))
        return [float(one.mean()) for one in some]

    assert for_each(given, work) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert asked == [3, 2]


def test_as_many_held_out_pictures_as_said_are_seen_in_another_light_all_over():
    for every, total in ((1, 100_000), (10, 100_000), (1, 700), (10, 90), (1, None)):
        plan = HeldOut(every, total)
        held = [i for i in range(total or 2000) if i in plan]
        changed = [i for i in held if plan.changed(i)]
        assert len(changed) <= CHANGED
        assert len(changed) >= min(len(held), CHANGED // 2)
        if total is not None:
            assert changed[-1] > 0.9 * held[-1] or len(held) == len(changed)
    assert 3 not in HeldOut(None)
