"""Rows of the runtime study, known and new: a simulated arm, small images, pictures of rectangles."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from ...core.arm import scaled_rows
from ...core.cases import IN_DOMAIN, Case, Pair, Test
from ...datasets import Recording, load_images, simulate, standardise

STRIDE = 20  # of the arm's rows, since neighbours in time hardly differ
OBJECTS = 4  # in a picture, at most
TEXTURES = ("plain", "lines", "columns")  # that the detector learns
NEW_TEXTURES = ("checks", "diagonals", "rings")
NEW = "new"  # test rows of another kind


@dataclass(frozen=True)
class CaseSize:
    """Numbers of rows, and the length of the network's training with AdamW in one cycle."""

    train: int  # rows that train the network
    fitted: int  # of these, the first, that error bars are fitted on
    held: int  # rows that validate; as many test, and as many are new
    steps: int = 6  # of the training, of `batch` rows each
    batch: int = 32
    rate: float = 1e-3  # the highest learning rate


def arm(size: CaseSize, seed: int) -> Case:
    """Slow motions of the simulated arm, and fast ones as new rows: inputs [n, 21], targets [n, 7]."""

    def motions(rows: int, number: int, style: str = "slow") -> Recording:
        return simulate(rows=rows * STRIDE, seed=10 * seed + number, style=style, blocks=True)

    train, held, fast = motions(size.train, 0), motions(2 * size.held, 1), motions(size.held, 2, "fast")
    order = STRIDE * torch.randperm(size.train, generator=torch.Generator().manual_seed(seed))
    scaled = partial(scaled_rows, standardise(train.inputs[order], train.targets[order]))
    half = size.held * STRIDE
    first, second = (slice(at, at + half, STRIDE) for at in (0, half))
    new = scaled(fast, slice(0, half, STRIDE))[0]
    tests = {IN_DOMAIN: scaled(held, second), NEW: (new, None)}
    return Case(scaled(train, order), scaled(held, first), tests)


def small_images(size: CaseSize, seed: int, *, colour: bool) -> Case:
    """Images of Fashion-MNIST, and new ones of MNIST, or generated patterns if the data is missing.

    Images are [1, 28, 28], or with `colour` [3, 32, 32]: the grey ones padded, repeated in three channels.
    """
    total = size.train + size.held
    try:
        sets = [load_images("fashion_mnist", "train"), load_images("fashion_mnist", "test")]
        sets.append(load_images("mnist", "test"))
        pairs, made = [(one.pixels[:, None].float() / 255, one.labels) for one in sets], False
    except FileNotFoundError:
        parts, made = ((total, 0), (size.held, 0), (size.held, 1)), True
        pairs = [patterns(n, kind, seed=1000 * seed + n + kind) for n, kind in parts]
    (pixels, labels), (test, test_labels), (novel, _) = pairs
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[:total]
    centre, spread = pixels[order].mean(), pixels[order].std()

    def ready(images: Tensor) -> Tensor:
        if colour:
            images = pad(images, (2, 2, 2, 2)).repeat(1, 3, 1, 1)
        return (images - centre) / spread

    held, kept = order[: size.held], order[size.held :]
    tests: dict[str, Test] = {IN_DOMAIN: (ready(test[: size.held]), test_labels[: size.held])}
    tests[NEW] = ready(novel[: size.held]), None
    return Case((ready(pixels[kept]), labels[kept]), (ready(pixels[held]), labels[held]), tests, made)


def patterns(n: int, kind: int, *, seed: int) -> Pair:
    """Images [n, 1, 28, 28] in [0, 1], with ten blurred patterns that depend on `kind`, and noise; labels."""
    coarse = torch.rand(10, 1, 5, 5, generator=torch.Generator().manual_seed(kind)) ** (1 + 2 * kind)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (n,), generator=generator)
    smooth = interpolate(coarse, size=(28, 28), mode="bilinear")[labels]
    return (smooth + 0.1 * torch.randn(n, 1, 28, 28, generator=generator)).clamp(0, 1), labels


def rectangles(size: CaseSize, seed: int, *, side: int, queries: int) -> Case:
    """Pictures [3, side, side] of textured rectangles, new ones with other textures, and targets of queries.

    Query k is for the k-th rectangle from the left: scores of the classes and of "nothing", 1 or 0, then
    its box (centre, width and height as shares of the side). So all outputs are a regression.
    """
    total, held = size.train, size.held
    parts = [(total, TEXTURES), (held, TEXTURES), (held, TEXTURES), (held, NEW_TEXTURES)]
    made = [_pictures(n, kinds, 10 * seed + k, side, queries) for k, (n, kinds) in enumerate(parts)]
    return Case(made[0], made[1], {IN_DOMAIN: made[2], NEW: (made[3][0], None)})


def _pictures(n: int, kinds: tuple[str, ...], seed: int, side: int, queries: int) -> Pair:
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    size = 0.15 + 0.25 * uniform(n, OBJECTS, 2)
    centre = size / 2 + (1 - size) * uniform(n, OBJECTS, 2)
    order = centre[..., 0].argsort(dim=1)[..., None].expand(-1, -1, 2)
    centre, size = centre.gather(1, order), size.gather(1, order)
    kind = torch.randint(0, len(kinds), (n, OBJECTS), generator=generator)
    number = torch.randint(1, OBJECTS + 1, (n,), generator=generator)
    colour = uniform(n, OBJECTS, 3) * 1.5 + 0.5
    images = 0.1 * torch.randn(n, 3, side, side, generator=generator)
    grid = (torch.arange(side) + 0.5) / side
    x, y = grid[None, None, :], grid[None, :, None]
    for k in range(OBJECTS):
        (across, down), (wide, high) = (part[:, k, :, None, None].unbind(1) for part in (centre, size / 2))
        inside = ((x - across).abs() < wide) & ((y - down).abs() < high) & (k < number)[:, None, None]
        texture = torch.stack([_texture(name, x[0], y[0]) for name in kinds])[kind[:, k]]  # [n, side, side]
        painted = texture[:, None] * colour[:, k, :, None, None]
        images = torch.where(inside[:, None], painted, images)
    there = torch.arange(OBJECTS) < number[:, None]
    scores = torch.zeros(n, queries, len(TEXTURES) + 1)
    label = torch.where(there, kind, len(TEXTURES))
    scores[:, OBJECTS:, -1] = 1.0
    scores[:, :OBJECTS].scatter_(2, label[..., None], 1.0)
    boxes = torch.zeros(n, queries, 4)
    boxes[:, :OBJECTS] = torch.cat([centre, size], dim=2) * there[..., None]
    return images, torch.cat([scores, boxes], dim=2).flatten(1)


def _texture(name: str, x: Tensor, y: Tensor) -> Tensor:
    """Texture [side, side] with values from 0 to 1."""
    waves = {
        "plain": torch.ones_like(x + y),
        "lines": (50 * y).sin().expand_as(x + y),
        "columns": (50 * x).sin().expand_as(x + y),
        "checks": (50 * x).sin() * (50 * y).sin(),
        "diagonals": (40 * (x + y)).sin(),
        "rings": (60 * ((x - 0.5) ** 2 + (y - 0.5) ** 2).sqrt()).sin(),
    }
    return (waves[name] + 1) / 2
