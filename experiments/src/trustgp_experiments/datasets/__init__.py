"""Data for the studies: the simulated arm, a 1-D toy, real recordings, images, splits and scaling."""

from .arm import simulate
from .images import IMAGE_SETS, Images, add_noise, load_images, rotate, uniform_noise
from .letters import draw_letters
from .recordings import Recording, load
from .splits import (
    Split,
    Standardiser,
    recorded_split,
    seams,
    split_groups,
    split_random,
    split_unseen,
    standardise,
    window_ends,
    windows_at,
)
from .textures import draw_textures
from .toy import snelson_like, truth

__all__ = [  # noqa: RUF022 - grouped, not sorted
    # made here
    "simulate", "snelson_like", "truth",
    # recorded
    "Recording", "load",
    # images
    "IMAGE_SETS", "Images", "load_images", "add_noise", "draw_letters", "draw_textures", "rotate",
    "uniform_noise",
    # split and scaled
    "Split", "Standardiser", "recorded_split", "split_groups", "split_random", "split_unseen", "standardise",
    # in time
    "seams", "window_ends", "windows_at",
]  # fmt: skip
