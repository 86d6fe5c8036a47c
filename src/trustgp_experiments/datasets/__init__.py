"""Data for the studies: the simulated arm, a 1-D toy, real recordings, images, splits and scaling."""

from .arm import arm_chain, arm_model, friction_torque, inverse_dynamics, simulate
from .chain import Chain, read_chain
from .distorted import add_noise, rotate, uniform_noise
from .files import verify
from .images import IMAGE_NAMES, Images, load_images
from .recording import Recording, merge_in_time
from .recordings import NAMES, load
from .splits import (
    Split,
    block_labels,
    recorded_split,
    split_blocks,
    split_groups,
    split_new_motion,
    split_random,
    split_repeats,
    split_unseen,
)
from .standardise import Standardiser, standardise
from .toy import snelson_like, truth
from .windows import seams, window_ends, windows_at

__all__ = [  # noqa: RUF022 - grouped, not sorted
    # made here
    "Chain",
    "arm_chain",
    "arm_model",
    "friction_torque",
    "inverse_dynamics",
    "read_chain",
    "simulate",
    "snelson_like",
    "truth",
    # recorded
    "NAMES",
    "Recording",
    "load",
    "merge_in_time",
    "verify",
    # images
    "IMAGE_NAMES",
    "Images",
    "add_noise",
    "load_images",
    "rotate",
    "uniform_noise",
    # split and scaled
    "Split",
    "Standardiser",
    "block_labels",
    "recorded_split",
    "split_blocks",
    "split_groups",
    "split_new_motion",
    "split_random",
    "split_repeats",
    "split_unseen",
    "standardise",
    # in time
    "seams",
    "window_ends",
    "windows_at",
]
