"""Letters as small grey images, drawn from matplotlib's fonts: novel to a classifier of digits."""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, avg_pool2d, grid_sample, max_pool2d

# without those that look like a digit in some font or turned a little (O, I, l, S, Z, B, g, q, ...), or like
# another letter when they are drawn as large
LETTERS = "ACEFHKMNPRUVWXefhkmnrtuw"
FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSerif",
    "DejaVuSerif-Italic", "DejaVuSerif-Bold", "STIXGeneral", "STIXGeneralItalic", "cmr10", "cmss10", "cmtt10",
)  # fmt: skip
SIDE, BOX = 28, 20  # pixels of an image, and of the box a letter is drawn in: those of MNIST
FINER = 4  # factor of oversampling, for smooth edges
THICKER = (0, 1, 2, 3)  # fine pixels that are added around the strokes
TURN, SHIFT = 15.0, 2.0  # degrees and pixels, at most, either way
TOGETHER = 512  # images that are turned at a time


def draw_letters(n: int, *, seed: int = 0) -> tuple[Tensor, list[str]]:
    """White letters on black, float32 from 0 to 1, shape [n, 1, 28, 28], and their names.

    Letter, font, thickness, turn and shift are drawn from the seed, each uniformly.
    """
    generator = torch.Generator().manual_seed(seed)
    counts = len(LETTERS), len(FONTS), len(THICKER)
    letters, fonts, thick = (torch.randint(k, (n,), generator=generator).tolist() for k in counts)
    angle = (2 * torch.rand(n, generator=generator) - 1) * torch.pi * TURN / 180
    shift = (2 * torch.rand(n, 2, generator=generator) - 1) * 2 * SHIFT / SIDE
    glyphs = [_glyph(LETTERS[a], FONTS[b], THICKER[c]) for a, b, c in zip(letters, fonts, thick, strict=True)]
    fine = (torch.stack(glyphs[start : start + TOGETHER])[:, None] for start in range(0, n, TOGETHER))
    parts = zip(fine, angle.split(TOGETHER), shift.split(TOGETHER), strict=True)
    return torch.cat([_moved(*part) for part in parts]), [LETTERS[place] for place in letters]


def _moved(fine: Tensor, angle: Tensor, shift: Tensor) -> Tensor:
    """Fine images [b, 1, s, s] turned by angles [b], shifted by [b, 2] half sides, and downsampled."""
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], dim=1).reshape(-1, 2, 2)
    theta = torch.cat([turn, shift[:, :, None]], dim=2)
    grid = affine_grid(theta, list(fine.shape), align_corners=False)
    return avg_pool2d(grid_sample(fine, grid, align_corners=False), FINER).clamp(0.0, 1.0)


@cache
def _glyph(letter: str, font: str, thicker: int) -> Tensor:
    """A letter whose longer side fills the box, in the middle, shape [112, 112]."""
    try:
        import matplotlib
        from PIL import Image, ImageDraw, ImageFont  # a dependency of matplotlib
    except ImportError as error:
        raise ImportError('letters are drawn with matplotlib: pip install "trustgp[plots]"') from error
    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"
    side, box = SIDE * FINER, BOX * FINER
    canvas = Image.new("L", (3 * side, 3 * side))
    typeface = ImageFont.truetype(str(file), size=box)
    ImageDraw.Draw(canvas).text((side, side), letter, fill=255, font=typeface)
    drawn = canvas.crop(canvas.getbbox())
    factor = (box - 2 * thicker) / max(drawn.size)
    width, height = (max(1, round(factor * length)) for length in drawn.size)
    whole = Image.new("L", (side, side))
    whole.paste(drawn.resize((width, height)), ((side - width) // 2, (side - height) // 2))
    pixels = torch.from_numpy(np.asarray(whole, dtype=np.float32) / 255)
    # a stroke grows by the largest value around: the same for every font
    return max_pool2d(pixels[None, None], 2 * thicker + 1, stride=1, padding=thicker)[0, 0]
