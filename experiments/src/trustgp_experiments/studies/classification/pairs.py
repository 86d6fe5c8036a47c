"""Images of the classification study: for training, and familiar, distorted and novel ones for tests."""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Self

from ...core.cases import IN_DOMAIN, Case, Test
from ...datasets import draw_letters, draw_textures
from ...datasets.images import IMAGE_SETS, Images, add_noise, load_images, rotate
from ..runtime.rows import patterns

SETS = IMAGE_SETS
EIGHT = "-8"  # suffix of the name of a training on eight of ten classes
TRAINED = (*SETS, *(f"{name}{EIGHT}" for name in SETS))
QUICK_TRAINED = ("fashion_mnist", f"mnist{EIGHT}")
NAMES = {**SETS, **{f"{name}{EIGHT}": f"eight classes of {title}" for name, title in SETS.items()}}
VALIDATION = 5_000  # images split off the training images
NOVEL = 5_000  # letters, and textures
DEGREES, QUICK_DEGREES = (15, 30, 45, 60, 90), (30,)
NOISES, QUICK_NOISES = (0.1, 0.2, 0.4), (0.2,)
LETTERS, TEXTURES, HELD_OUT = "letters", "textures", "held-out classes"
QUICK_ROWS = {"train": 240, "validation": 80, "test": 50}
Pair = tuple[str, str]  # a training set, and what is novel to it


@dataclass(frozen=True)
class ImageTraining:
    """The training set of a network."""

    data: str  # a name of `SETS`
    eight: bool = False  # whether two classes are held out

    @classmethod
    def of(cls, name: str) -> Self:
        return cls(name.removesuffix(EIGHT), name.endswith(EIGHT))

    @property
    def classes(self) -> int:
        return 8 if self.eight else 10

    def held_out(self, seed: int) -> tuple[int, ...]:
        """Classes without training images; five seeds hold out each once, the next five in other pairs."""
        first = 2 * seed % 10
        return (first, (first + 1 + 2 * (seed // 5)) % 10) if self.eight else ()


def foreign_to(data: str) -> str:
    """Name of the image set other than `data`."""
    return next(name for name in SETS if name != data)


def new_pairs() -> list[Pair]:
    """Pairs of a training set and novel images that were used for no choice."""
    pairs = [((name, LETTERS), (name, TEXTURES), (f"{name}{EIGHT}", HELD_OUT)) for name in SETS]
    return [pair for three in pairs for pair in three]


def looked_at() -> list[Pair]:
    """Pairs that were evaluated when defaults of trustgp, or the form of its score, were chosen."""
    return [(name, foreign_to(name)) for name in SETS]


def pair_name(pair: Pair) -> str:
    """Name of a pair for a column: "MNIST → letters"."""
    return f"{SETS[ImageTraining.of(pair[0]).data]} → {SETS.get(pair[1], pair[1])}"


def shifts_of(names: list[str]) -> list[str]:
    """Names of the test sets of distorted images."""
    return [name for name in names if name.startswith(("rotated", "noisy"))]


def make_images(trained: str, *, seed: int, quick: bool) -> Case:
    """Images split by the seed, distorted and scaled; with eight classes, the two others are novel.

    Pixels from 0 to 1 are distorted, then scaled by the mean and the standard deviation of all training
    pixels. `quick`: at most some hundred images of each part, generated if the data is missing.
    """
    training = ImageTraining.of(trained)
    (whole, made), (test, _) = (_load(training.data, part, quick) for part in ("train", "test"))
    held_out = training.held_out(seed)
    (pixels, labels), _ = without(whole, held_out)
    (familiar, known), (novel, _) = without(test, held_out)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    held = order[: QUICK_ROWS["validation"] if quick else VALIDATION]
    kept = order[len(held) :][: QUICK_ROWS["train"] if quick else None]
    centre, spread = pixels[kept].mean(), pixels[kept].std()

    def scaled(images: Tensor) -> Tensor:
        return (images - centre) / spread

    tests: dict[str, Test] = {IN_DOMAIN: (scaled(familiar), known)}
    if training.eight:
        tests[HELD_OUT] = scaled(novel), None
    else:
        distorted = _distorted(familiar, seed, quick)
        tests |= {name: (scaled(images), known) for name, images in distorted.items()}
        other = _foreign(training.data, seed, quick)
        tests |= {name: (scaled(images), None) for name, images in other.items()}
    return Case((scaled(pixels[kept]), labels[kept]), (scaled(pixels[held]), labels[held]), tests, made)


def without(images: Images, held_out: tuple[int, ...]) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Pixels from 0 to 1 and labels, renumbered from 0, of classes not held out; then of those held out."""
    pixels = images.pixels[:, None].float() / 255
    out = torch.isin(images.labels, torch.tensor(held_out, dtype=torch.int64))
    numbers = torch.arange(10)
    for label in sorted(held_out):
        numbers[label:] -= 1
    labels = images.labels[~out]
    return (pixels[~out], numbers[labels]), (pixels[out], images.labels[out])


def _distorted(familiar: Tensor, seed: int, quick: bool) -> dict[str, Tensor]:
    turned = {f"rotated {d}": rotate(familiar, d) for d in (QUICK_DEGREES if quick else DEGREES)}
    levels = QUICK_NOISES if quick else NOISES
    return turned | {f"noisy {level:g}": add_noise(familiar, level, seed=seed) for level in levels}


def _foreign(data: str, seed: int, quick: bool) -> dict[str, Tensor]:
    """Images of none of the classes, by name."""
    n = QUICK_ROWS["test"] if quick else NOVEL
    other = _load(foreign_to(data), "test", quick)[0]
    return {
        LETTERS: draw_letters(n, seed=seed)[0],
        TEXTURES: draw_textures(n, seed=seed)[0],
        foreign_to(data): other.pixels[:, None].float() / 255,
    }


def _load(name: str, part: str, quick: bool) -> tuple[Images, bool]:
    """The images, all or a few, and whether they are generated stand-ins."""
    if not quick:
        return load_images(name, part), False
    few = QUICK_ROWS["train"] + QUICK_ROWS["validation"] if part == "train" else QUICK_ROWS["test"]
    try:
        whole = load_images(name, part)
    except FileNotFoundError:  # enough to see that the study runs
        pixels, labels = patterns(few, list(SETS).index(name), seed=100 + len(part))
        return Images((255 * pixels[:, 0]).byte(), labels), True
    return Images(whole.pixels[:few], whole.labels[:few]), False
