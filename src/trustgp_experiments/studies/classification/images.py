"""Images of the classification study: what trains, what is like it, and what is foreign."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.cases import IN_DOMAIN, Case, Test
from ...datasets import Images, add_noise, load_images, rotate, uniform_noise
from ..runtime.rows import patterns

TRAINED = ("fashion_mnist", "mnist")
NAMES = {"fashion_mnist": "Fashion-MNIST", "mnist": "MNIST"}
VALIDATION = 5_000  # images split off the training images
DEGREES, QUICK_DEGREES = (15, 30, 45, 60, 90), (45,)
NOISES, QUICK_NOISES = (0.1, 0.2, 0.4), (0.2,)
UNIFORM = "uniform noise"
QUICK_ROWS = {"train": 240, "validation": 80, "test": 60}


def foreign_to(trained: str) -> str:
    """The other set of images."""
    return next(name for name in TRAINED if name != trained)


def make_images(trained: str, *, seed: int, quick: bool) -> Case:
    """Load, split by the seed, distort and scale.

    Pixels from 0 to 1 are scaled by the mean and the standard deviation of all training pixels, after
    they were distorted. Where it must be quick, some hundred images of each part, generated ones where there
    are no others.
    """
    whole, made = _load(trained, "train", quick)
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))
    held = order[: QUICK_ROWS["validation"] if quick else VALIDATION]
    kept = order[len(held) :][: QUICK_ROWS["train"] if quick else None]
    pixels, labels = _floats(whole), whole.labels
    centre, spread = pixels[kept].mean(), pixels[kept].std()

    def scaled(images: Tensor) -> Tensor:
        return (images - centre) / spread

    test, other = (_load(name, "test", quick)[0] for name in (trained, foreign_to(trained)))
    familiar = _floats(test)
    tests: dict[str, Test] = {IN_DOMAIN: (scaled(familiar), test.labels)}
    tests[foreign_to(trained)] = scaled(_floats(other)), None
    if trained == "fashion_mnist":
        turned = {f"rotated {d}": rotate(familiar, d) for d in (QUICK_DEGREES if quick else DEGREES)}
        levels = QUICK_NOISES if quick else NOISES
        noisy = {f"noisy {level:g}": add_noise(familiar, level, seed=seed) for level in levels}
        tests |= {name: (scaled(images), test.labels) for name, images in (turned | noisy).items()}
        tests[UNIFORM] = scaled(uniform_noise(len(test), seed=seed)), None
    return Case((scaled(pixels[kept]), labels[kept]), (scaled(pixels[held]), labels[held]), tests, made)


def shifts_of(names: list[str]) -> list[str]:
    """The names of tests that show the trained images distorted."""
    return [name for name in names if name.startswith(("rotated", "noisy"))]


def _floats(images: Images) -> Tensor:
    """Pixels from 0 to 1, shape [n, 1, height, width]."""
    return images.pixels[:, None].float() / 255


def _load(name: str, part: str, quick: bool) -> tuple[Images, bool]:
    """The images, all of them or a few, and whether they are stand-ins."""
    if not quick:
        return load_images(name, part), False
    few = QUICK_ROWS["train"] + QUICK_ROWS["validation"] if part == "train" else QUICK_ROWS["test"]
    try:
        whole = load_images(name, part)
    except FileNotFoundError:
        return _stand_ins(name, part, few), True
    return Images(whole.pixels[:few], whole.labels[:few]), False


def _stand_ins(name: str, part: str, n: int) -> Images:
    """Enough to see that the study runs."""
    pixels, labels = patterns(n, TRAINED.index(name), seed=100 + len(part))
    return Images((255 * pixels[:, 0]).byte(), labels)
