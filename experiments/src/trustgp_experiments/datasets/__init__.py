"""Data for the studies: the simulated arm, a 1-D toy, real recordings, images, splits and scaling."""

from .arm import simulate
from .images import IMAGE_SETS, Images, add_noise, load_images, rotate
from .letters import draw_letters
from .recordings import Recording, load
from .splits import Split, Standardiser, split_groups, split_random, split_unseen, standardise
from .textures import draw_textures
from .toy import snelson_like, truth

__all__ = [  # noqa: RUF022 - grouped, not sorted
    "simulate", "snelson_like", "truth",
    "Recording", "load",
    "IMAGE_SETS", "Images", "load_images", "add_noise", "draw_letters", "draw_textures", "rotate",
    "Split", "Standardiser", "split_groups", "split_random", "split_unseen", "standardise",
]  # fmt: skip
