"""Images of the classification study: what trains, what is like it, and what is foreign."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ...core.cases import IN_DOMAIN, Case, Test
from ...datasets import Images, add_noise, load_images, rotate, uniform_noise

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
    """Load, split, distort and scale.

    Pixels from 0 to 1 are scaled by the mean and the standard deviation of all training pixels, after
    they were distorted.

    Args:
        trained: One of `TRAINED`.
        seed: Of the choice of the validation images, and of noise.
        quick: Some hundred images of each part, generated ones where there are no others.
    """
    whole, made = _load(trained, "train", quick)
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))
    held = order[: QUICK_ROWS["validation"] if quick else VALIDATION]
    kept = order[len(held) :][: QUICK_ROWS["train"] if quick else None]
    pixels, labels = as_floats(whole.pixels), whole.labels
    centre, spread = pixels[kept].mean(), pixels[kept].std()

    def scaled(images: Tensor) -> Tensor:
        return (images - centre) / spread

    test = _load(trained, "test", quick)[0]
    other = _load(foreign_to(trained), "test", quick)[0]
    tests: dict[str, Test] = {IN_DOMAIN: (scaled(as_floats(test.pixels)), test.labels)}
    tests[foreign_to(trained)] = scaled(as_floats(other.pixels)), None
    if trained == "fashion_mnist":
        shifted = _distorted(as_floats(test.pixels), seed, quick)
        tests |= {name: (scaled(images), test.labels) for name, images in shifted.items()}
        tests[UNIFORM] = scaled(uniform_noise(len(test), seed=seed)), None
    return Case((scaled(pixels[kept]), labels[kept]), (scaled(pixels[held]), labels[held]), tests, made)


def shifts_of(names: list[str]) -> list[str]:
    """The names of tests that show the trained images distorted."""
    return [name for name in names if name.startswith(("rotated", "noisy"))]


def as_floats(pixels: Tensor) -> Tensor:
    """From 0 to 1, shape [n, 1, height, width]."""
    return pixels[:, None].float() / 255


def _distorted(images: Tensor, seed: int, quick: bool) -> dict[str, Tensor]:
    turned = QUICK_DEGREES if quick else DEGREES
    levels = QUICK_NOISES if quick else NOISES
    found = {f"rotated {degrees}": rotate(images, degrees) for degrees in turned}
    return found | {f"noisy {level:g}": add_noise(images, level, seed=seed) for level in levels}


def _load(name: str, part: str, quick: bool) -> tuple[Images, bool]:
    """The images, all of them or a few, and whether they are stand-ins."""
    if not quick:
        return load_images(name, part), False
    few = sum(QUICK_ROWS[key] for key in ("train", "validation")) if part == "train" else QUICK_ROWS["test"]
    try:
        whole = load_images(name, part)
    except FileNotFoundError:
        return _stand_ins(name, part, few), True
    return Images(whole.pixels[:few], whole.labels[:few]), False


def _stand_ins(name: str, part: str, n: int) -> Images:
    """Ten blurred patterns, others for each name, and noise: enough to see that the study runs."""
    own = torch.Generator().manual_seed(TRAINED.index(name))
    coarse = torch.rand(10, 1, 5, 5, generator=own) ** (1 + 2 * TRAINED.index(name))
    patterns = interpolate(coarse, size=(28, 28), mode="bilinear")[:, 0]
    noise = torch.Generator().manual_seed(100 + len(part))
    labels = torch.randint(0, 10, (n,), generator=noise)
    images = patterns[labels] + 0.1 * torch.randn(n, 28, 28, generator=noise)
    return Images((255 * images.clamp(0, 1)).byte(), labels)
