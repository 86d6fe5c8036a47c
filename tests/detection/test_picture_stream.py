"""A fit reads pictures as it needs them, of any sizes, and resumes after it was stopped."""

import weakref
from dataclasses import replace

import pytest
import torch
from detection.conftest import fit_loose, grid, noise_scenes
from draws import normal
from torch.utils.data import DataLoader, Dataset, IterableDataset

import trustgp
from trustgp.data.tensor_file import ArtifactError
from trustgp.detection import fitting, picture_pass
from trustgp.detection.picture_pass import MAX_VARIED, HeldOut, photometric_variants
from trustgp.detection.pictures import MAX_BATCH, MAX_BATCH_PIXELS, batch_size

pytestmark = pytest.mark.filterwarnings("ignore:.*of the .* training pictures are held out")


@pytest.fixture(autouse=True, scope="module")
def short_chunks():
    """Three chunks of 90 pictures."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (picture_pass, fitting):
            patch.setattr(module, "CHUNK", 32)
        yield


class Shelf(Dataset):
    """Counts the pictures that are read; one fails if asked to."""

    def __init__(self, rows, fails: int | None = None) -> None:
        self.rows, self.fails, self.reads = rows, fails, []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int):
        if i == self.fails:
            raise KeyboardInterrupt
        self.reads.append(i)
        return self.rows[i]


class Queue(IterableDataset):
    def __init__(self, rows) -> None:
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def pictures(n: int):
    return noise_scenes(grid(), n, 1, side=32)


def rows(n: int, *, mixed: bool = False):
    """Pairs of a picture and its targets; mixed: every third is of 24 pixels."""
    images, targets = pictures(n)
    if not mixed:
        return list(zip(images, targets, strict=True))
    small = torch.nn.functional.interpolate(images, size=(24, 24), mode="bilinear")
    less = [replace(one, boxes=one.boxes * 24 / 32) for one in targets]
    pairs = zip(zip(images, targets, strict=True), zip(small, less, strict=True), strict=True)
    return [pair[i % 3 == 0] for i, pair in enumerate(pairs)]


def fitted(train, **options):
    return fit_loose(grid(), train, **options)


def collated(part):
    return tuple(zip(*part, strict=True))


def saved(model, folder) -> bytes:
    """The model's file: equal models have equal files."""
    model.save(folder / "model.trustgp")
    return (folder / "model.trustgp").read_bytes()


@pytest.fixture(scope="module")
def whole():
    with pytest.warns(UserWarning, match="9 of the 90 training pictures are held out"):
        return fitted(pictures(90))


@pytest.fixture(scope="module")
def mixed():
    return fitted(Shelf(rows(90, mixed=True)))


def test_every_source_gives_the_same_model(whole, tmp_path):
    given, expected = rows(90), saved(whole, tmp_path)
    for train in (Queue(given), DataLoader(Shelf(given), 7, collate_fn=collated)):
        assert saved(fitted(train), tmp_path) == expected


def test_pictures_are_released_after_their_pass(monkeypatch):
    alive, most = set(), []
    include = picture_pass.PicturePass.include

    class Fleeting(Shelf):
        def __getitem__(self, i: int):
            image, targets = super().__getitem__(i)
            image = image.clone()
            alive.add(i)
            weakref.finalize(image.untyped_storage(), alive.discard, i)
            return image, targets

    def counted(self, chunk):
        most.append(len(alive))
        include(self, chunk)

    monkeypatch.setattr(picture_pass.PicturePass, "include", counted)
    fitted(Fleeting(rows(90)))
    assert max(most) <= 2 * picture_pass.CHUNK


def test_a_stopped_fit_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr(picture_pass, "SAVE_EVERY", 0.0)
    given, options = rows(90), {"validation": Shelf(rows(40))}
    expected = fitted(Shelf(given), **options)
    with pytest.raises(KeyboardInterrupt, match=r"training pictures \(2 of 3\).* the same call resumes"):
        fitted(Shelf(given, fails=80), checkpoint=tmp_path / "kept", **options)
    again = Shelf(given)
    resumed = fitted(again, checkpoint=tmp_path / "kept", **options)
    assert saved(resumed, tmp_path) == saved(expected, tmp_path)
    assert again.reads[0] == 0  # which identifies the pictures
    assert again.reads[1:] == list(range(64, 90))


def test_a_damaged_checkpoint_is_discarded_and_that_of_another_fit_refused(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(picture_pass, "SAVE_EVERY", 0.0)
    kept = tmp_path / "kept"
    fitted(pictures(90), checkpoint=kept)
    file = kept / "pass-pictures.trustgp"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert saved(fitted(pictures(90), checkpoint=kept), tmp_path) == saved(whole, tmp_path)
    with pytest.raises(ArtifactError, match="checkpoint of another fit; different: pictures"):
        fitted(pictures(85), checkpoint=kept)
    with pytest.raises(ArtifactError, match="different: settings"):
        fitted(pictures(90), threshold=0.02, checkpoint=kept)
    shuffled = DataLoader(Shelf(rows(20)), shuffle=True, collate_fn=collated)
    with pytest.raises(ValueError, match="pictures in the same order; pass shuffle=False"):
        fitted(shuffled, checkpoint=kept)


def test_too_few_pictures_to_hold_some_out_are_refused():
    for train in (pictures(9), Shelf(rows(9)), Queue(rows(9))):
        with pytest.raises(ValueError, match="9 pictures are too few to hold some out"):
            fitted(train)


def test_pictures_of_mixed_sizes_are_fitted_predicted_saved_and_evaluated(mixed, tmp_path):
    assert mixed.state.mixed
    assert "and others" in repr(mixed)
    images = [image for image, _ in rows(9, mixed=True)]
    together = mixed.predict(images)
    for image, one in zip(images, together, strict=True):
        (single,) = mixed.predict(image)
        torch.testing.assert_close(one.boxes, single.boxes)
        torch.testing.assert_close(one.novelty, single.novelty, rtol=1e-4, atol=1e-6)
        assert float(one.boxes.max()) <= 2 * image.shape[-1]
    mixed.save(tmp_path / "model.trustgp")
    again = trustgp.load(tmp_path / "model.trustgp", grid())
    torch.testing.assert_close(again.predict(images[0])[0].std, together[0].std)
    assert "D-ECE" in str(trustgp.evaluate(mixed, Shelf(rows(12, mixed=True)), progress=False))
    images[4] = images[4] * float("nan")
    assert [one.valid for one in mixed.predict(images)] == [i != 4 for i in range(9)]


def test_batches_are_bounded_in_pictures_and_pixels():
    assert batch_size(16, 16) == MAX_BATCH
    assert batch_size(800, 1066) * 800 * 1066 <= MAX_BATCH_PIXELS
    assert batch_size(10**4, 10**4) == 1


def test_variants_are_of_held_out_pictures_evenly_spread():
    for every, total in ((1, 100_000), (10, 100_000), (1, 700), (10, 90), (1, None)):
        plan = HeldOut(every, total)
        held_out = [i for i in range(total or 2000) if i in plan]
        varied = [i for i in held_out if plan.varied(i)]
        assert min(len(held_out), MAX_VARIED // 2) <= len(varied) <= MAX_VARIED
        if total is not None:
            assert varied[-1] > 0.9 * held_out[-1] or len(held_out) == len(varied)
    assert 3 not in HeldOut(None)


IMAGES = normal(3, 3, 6, 5)


def test_brightness_and_contrast_of_each_picture_change_by_itself():
    variants = photometric_variants(IMAGES)
    assert len(variants) == picture_pass.VARIANTS
    for shift, other in zip(picture_pass.BRIGHTNESS, variants, strict=False):
        spread = IMAGES.flatten(2).std(dim=2, correction=0)
        torch.testing.assert_close((other - IMAGES).mean(dim=(2, 3)), shift * spread)
        torch.testing.assert_close(other.std(dim=(2, 3)), IMAGES.std(dim=(2, 3)))
    for times, other in zip(picture_pass.CONTRAST, variants[len(picture_pass.BRIGHTNESS) :], strict=True):
        torch.testing.assert_close(other.mean(dim=(2, 3)), IMAGES.mean(dim=(2, 3)))
        torch.testing.assert_close(other.std(dim=(2, 3)), times * IMAGES.std(dim=(2, 3)))
    single, scaled = photometric_variants(IMAGES[1:2]), photometric_variants(255 * IMAGES + 7)
    for i, plain in enumerate(variants):
        assert torch.equal(single[i][0], plain[1])
        torch.testing.assert_close(255 * plain + 7, scaled[i])
