"""How does the simulated arm move? Sums of sinusoids, differentiated by hand."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class MotionStyle:
    """Where and how fast a kind of motion goes, as ranges of uniform draws.

    Centres and amplitudes are fractions of a joint's limit; centre + amplitude stays below 1, so
    every motion is inside the joint limits.
    """

    centre: tuple[float, float]
    amplitude: tuple[float, float]
    frequency: tuple[float, float]  # Hz


STYLES = {
    # the training style
    "slow": MotionStyle(centre=(-0.5, 0.2), amplitude=(0.15, 0.4), frequency=(0.05, 0.3)),
    # the same speeds, somewhere else
    "shifted": MotionStyle(centre=(0.55, 0.7), amplitude=(0.15, 0.25), frequency=(0.05, 0.3)),
    # other speeds, somewhere else
    "fast": MotionStyle(centre=(0.55, 0.7), amplitude=(0.15, 0.25), frequency=(0.5, 1.0)),
}


@dataclass(frozen=True)
class Motion:
    """Trajectories as sums of H sinusoids per joint, T trajectories of 7 joints, float64."""

    centre: Tensor  # rad    [T, 7]
    amplitude: Tensor  # rad   [T, 7, H]
    pulsation: Tensor  # rad/s [T, 7, H]
    phase: Tensor  # rad     [T, 7, H]


def random_motion(
    style: str, *, trajectories: int, limits: Tensor, generator: torch.Generator, harmonics: int = 4
) -> Motion:
    """Draw trajectories of a style, all inside the joint limits.

    Args:
        style: A key of `STYLES`.
        trajectories: Number of trajectories T.
        limits: Largest absolute joint angles, shape [7].
        generator: Source of randomness.
        harmonics: Sinusoids per joint H.
    """
    if style not in STYLES:
        raise ValueError(f"style={style!r} is unknown; choose one of {sorted(STYLES)}.")
    chosen = STYLES[style]
    joints = (trajectories, len(limits))

    def draw(low: float, high: float, shape: tuple[int, ...]) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)

    weight = draw(0.2, 1.0, (*joints, harmonics))
    weight = weight / weight.sum(-1, keepdim=True)  # at most the amplitude when all peaks meet
    swing = draw(*chosen.amplitude, joints) * limits
    return Motion(
        centre=draw(*chosen.centre, joints) * limits,
        amplitude=swing[..., None] * weight,
        pulsation=2 * math.pi * draw(*chosen.frequency, (*joints, harmonics)),
        phase=draw(0.0, 2 * math.pi, (*joints, harmonics)),
    )


def states(motion: Motion, times: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Angles, velocities and accelerations of every trajectory at the given times.

    .. math:: q(t) = c + \sum_h a_h \sin(w_h t + p_h), \quad \dot q, \ddot q \text{ in closed form}

    Args:
        motion: T trajectories.
        times: Seconds, shape [k].

    Returns:
        q, dq and ddq, each of shape [T, k, 7].
    """
    pulsation = motion.pulsation[:, None]  # [T, 1, 7, H]
    angle = pulsation * times[None, :, None, None] + motion.phase[:, None]  # [T, k, 7, H]
    sine = motion.amplitude[:, None] * torch.sin(angle)
    cosine = motion.amplitude[:, None] * torch.cos(angle)
    q = motion.centre[:, None] + sine.sum(-1)
    return q, (pulsation * cosine).sum(-1), -(pulsation.square() * sine).sum(-1)
