"""Torques of a simulated 7-joint arm, from rigid bodies, friction and sensor noise.

The arm is an invented one: a vertical chain of the size of a mid-weight collaborative arm, whose links are
solid cylinders. All joint frames are parallel at q = 0; the axes alternate between z and y.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from trustgp.executors import Threads

from .recordings import Recording

BLOCK = 8192  # rows at a time: their vectors stay in the processor's cache
AXES = {"y": (0.0, 1.0, 0.0), "z": (0.0, 0.0, 1.0)}
GRAVITY = 9.81  # m/s^2
RATE = 100.0  # rows per second of a trajectory
ROWS_PER_TRAJECTORY = 500
HARMONICS = 4  # sinusoids per joint, H
_TRAJECTORIES_PER_CHUNK = 64  # bounds memory: 32,000 rows at a time
_BLOCK = _TRAJECTORIES_PER_CHUNK * ROWS_PER_TRAJECTORY


@dataclass(frozen=True)
class Link:
    """A joint and the cylinder that it moves; lengths in metres, in the joint's own frame."""

    axis: str  # "y" or "z"
    offset: float  # height of this joint above the one before, at q = 0
    limit: float  # largest absolute angle, rad
    mass: float  # kg
    centre: tuple[float, float, float]  # centre of mass
    radius: float  # of the cylinder, whose axis is z
    length: float  # of the cylinder

    def inertia_diagonal(self) -> tuple[float, float, float]:
        """Moments of inertia about the centre of mass, kg m^2."""
        across = self.mass * (3 * self.radius**2 + self.length**2) / 12
        return across, across, self.mass * self.radius**2 / 2


LINKS = (
    Link("z", 0.15, 2.8, 5.3, (0.010, -0.025, 0.10), 0.075, 0.24),
    Link("y", 0.19, 1.9, 5.1, (-0.008, 0.030, 0.09), 0.072, 0.23),
    Link("z", 0.22, 2.8, 4.0, (0.006, 0.022, 0.10), 0.068, 0.22),
    Link("y", 0.20, 2.0, 3.6, (0.010, -0.028, 0.08), 0.065, 0.21),
    Link("z", 0.20, 2.8, 2.6, (-0.005, 0.018, 0.07), 0.060, 0.19),
    Link("y", 0.19, 1.9, 2.0, (0.004, 0.012, 0.02), 0.055, 0.14),
    Link("z", 0.09, 3.0, 1.4, (0.018, -0.010, 0.06), 0.045, 0.12),  # carries a small tool
)

VISCOUS = (0.8, 0.9, 0.6, 0.6, 0.3, 0.2, 0.15)  # N m s / rad
COULOMB = (1.0, 1.2, 0.7, 0.7, 0.35, 0.25, 0.2)  # N m
STICTION_SPEED = 0.05  # rad/s: below it the Coulomb torque fades through zero
TYPICAL_TORQUE = (2.0, 42.0, 5.0, 15.0, 1.0, 1.5, 0.4)  # N m, rms of slow motion
_LIMITS = torch.tensor([link.limit for link in LINKS], dtype=torch.float64)


def inverse_dynamics(q: Tensor, dq: Tensor, ddq: Tensor) -> Tensor:
    r"""Torques of the arm's rigid-body motion without friction, by recursive Newton-Euler.

    .. math:: \tau = M(q) \ddot q + C(q, \dot q) \dot q + g(q)

    Motion is propagated from the base to the tool, forces from the tool to the base; the base accelerates
    upwards instead of gravity pulling every body. Angles, velocities, accelerations and torques (float64)
    are [n, 7].
    """
    with torch.no_grad():
        parts = zip(*(part.double().split(BLOCK) for part in (q, dq, ddq)), strict=True)
        bodies = [_Body.of(link, q.device) for link in LINKS]
        return torch.cat([_block(bodies, *(part.T.contiguous() for part in block)).T for block in parts])


@dataclass(frozen=True)
class _Body:
    """One body, as float64 matrices that act on columns, with moments about the origin of its joint."""

    axis: Tensor  # a                                         [3, 1]
    offset: Tensor  # p                                       [3, 1]
    mass: float
    moment: Tensor  # m c                                     [3, 1]
    inertia: Tensor  # about the joint, I_c + m (c^2 - c c^T)  [3, 3]

    @classmethod
    def of(cls, link: Link, device: torch.device) -> Self:
        vectors = (AXES[link.axis], link.centre, (0.0, 0.0, link.offset), link.inertia_diagonal())
        table = torch.tensor(vectors, dtype=torch.float64, device=device)
        axis, centre, offset = table[:3, :, None]
        eye = torch.eye(3).to(table)
        steiner = link.mass * (centre.square().sum() * eye - centre @ centre.T)
        return cls(axis, offset, link.mass, link.mass * centre, torch.diag(table[3]) + steiner)

    def rotated(self, sine: Tensor, cosine: Tensor, vectors: Tensor) -> Tensor:
        """Vectors [3, k], each rotated about the axis by its own angle (Rodrigues' formula)."""
        eye, along = torch.eye(3, dtype=vectors.dtype, device=vectors.device), self.axis @ self.axis.T
        aside = _cross(self.axis, eye)  # v -> a x v
        return along @ vectors + cosine * ((eye - along) @ vectors) + sine * (aside @ vectors)


def _block(bodies: list[_Body], q: Tensor, dq: Tensor, ddq: Tensor) -> Tensor:
    """Torques [J, k] of a block of rows, each given as [J, k]."""
    sine, cosine = torch.sin(q), torch.cos(q)
    spin = push = torch.zeros(3, q.shape[1], dtype=q.dtype, device=q.device)  # w and dw/dt, [3, k]
    lift = q.new_tensor([[0.0], [0.0], [GRAVITY]]).expand_as(spin)  # acceleration of the joint's origin
    wrenches = []
    for j, body in enumerate(bodies):
        lift = lift + _carried(spin, push, body.offset)
        inward = torch.cat([spin, push, lift], dim=1)  # one rotation for all three
        spin, push, lift = body.rotated(-sine[j].repeat(3), cosine[j].repeat(3), inward).chunk(3, dim=1)
        turning = body.axis * dq[j]
        push = push + body.axis * ddq[j] + _cross(spin, turning)
        spin = spin + turning
        force = body.mass * lift + _carried(spin, push, body.moment)
        wrench = body.inertia @ push + _cross(spin, body.inertia @ spin) + _cross(body.moment, lift)
        wrenches.append((force, wrench))
    torques = torch.empty_like(q)
    force = wrench = torch.zeros_like(spin)
    for j, body in reversed(list(enumerate(bodies))):
        force, wrench = force + wrenches[j][0], wrench + wrenches[j][1]
        torques[j] = (body.axis.T @ wrench)[0]
        outward = body.rotated(sine[j].repeat(2), cosine[j].repeat(2), torch.cat([force, wrench], dim=1))
        force, wrench = outward.chunk(2, dim=1)
        wrench = wrench + _cross(body.offset, force)
    return torques


def _carried(spin: Tensor, push: Tensor, arm: Tensor) -> Tensor:
    """Acceleration dw/dt x r + w x (w x r), for an arm r of shape [3, 1]."""
    return _cross(push, arm) + spin * (arm.T @ spin) - arm * spin.square().sum(dim=0)


def _cross(left: Tensor, right: Tensor) -> Tensor:
    """Cross products of columns, [3, k] or [3, 1]."""
    (a, b, c), (x, y, z) = left, right
    return torch.stack([b * z - c * y, c * x - a * z, a * y - b * x])


# ranges of uniform draws: centre and amplitude, as fractions of a joint's limit, and frequency in Hz
# centre + amplitude stays below 1, so motions are inside the joint limits
STYLES = {
    "slow": ((-0.5, 0.2), (0.15, 0.4), (0.05, 0.3)),  # the training style
    "shifted": ((0.55, 0.7), (0.15, 0.25), (0.05, 0.3)),  # the same speeds, elsewhere
    "fast": ((0.55, 0.7), (0.15, 0.25), (0.5, 1.0)),  # other speeds, elsewhere
}


@dataclass(frozen=True)
class Motion:
    """Trajectories as sums of H sinusoids per joint, T trajectories of 7 joints, float64."""

    centre: Tensor  # rad    [T, 7]
    amplitude: Tensor  # rad   [T, 7, H]
    pulsation: Tensor  # rad/s [T, 7, H]
    phase: Tensor  # rad     [T, 7, H]


def random_motion(style: str, trajectories: int, generator: torch.Generator) -> Motion:
    """Draw T trajectories of a style, a key of `STYLES`, all inside the joint limits."""
    if style not in STYLES:
        raise ValueError(f"style={style!r} is unknown; choose one of {sorted(STYLES)}.")
    (centre, amplitude, frequency), joints = STYLES[style], (trajectories, len(LINKS))

    def draw(low: float, high: float, shape: tuple[int, ...]) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)

    weight = draw(0.2, 1.0, (*joints, HARMONICS))
    weight = weight / weight.sum(-1, keepdim=True)  # at most the amplitude when all peaks meet
    swing = draw(*amplitude, joints) * _LIMITS
    return Motion(
        centre=draw(*centre, joints) * _LIMITS,
        amplitude=swing[..., None] * weight,
        pulsation=2 * math.pi * draw(*frequency, (*joints, HARMONICS)),
        phase=draw(0.0, 2 * math.pi, (*joints, HARMONICS)),
    )


def states(motion: Motion, times: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""q, dq and ddq of every trajectory at times in seconds [k], each of shape [T, k, 7].

    .. math:: q(t) = c + \sum_h a_h \sin(w_h t + p_h), \quad \dot q, \ddot q \text{ in closed form}
    """
    pulsation = motion.pulsation[:, None]  # [T, 1, 7, H]
    angle = pulsation * times[None, :, None, None] + motion.phase[:, None]  # [T, k, 7, H]
    sine = motion.amplitude[:, None] * torch.sin(angle)
    cosine = motion.amplitude[:, None] * torch.cos(angle)
    q = motion.centre[:, None] + sine.sum(-1)
    return q, (pulsation * cosine).sum(-1), -(pulsation.square() * sine).sum(-1)


def friction_torque(dq: Tensor) -> Tensor:
    r"""Viscous and Coulomb friction, smooth through zero speed; velocities and torques are [..., 7].

    .. math:: \tau_f = b \dot q + c \tanh(\dot q / v)
    """
    return dq.new_tensor(VISCOUS) * dq + dq.new_tensor(COULOMB) * torch.tanh(dq / STICTION_SPEED)


def simulate(
    *, rows: int, style: str = "slow", seed: int = 0, noise: float = 0.01, blocks: bool = False
) -> Recording:
    """Record the simulated arm along random trajectories of a style.

    Every trajectory is 5 s long at 100 Hz (the last one may be cut short). Torques are computed
    in float64 with friction, then the sensor noise is added, with a standard deviation that is a fraction
    of `TYPICAL_TORQUE`, and everything becomes float32; trajectories are numbered in ``groups``.
    With ``blocks``, every 64 trajectories are drawn from their own seed: the first rows then do not depend
    on ``rows``, and all cores are used. They differ from the rows without ``blocks``.
    """
    if rows < 1 or noise < 0:
        raise ValueError(f"rows={rows}, noise={noise}: pass rows >= 1 and noise >= 0.")
    inputs, targets = torch.empty(rows, 21), torch.empty(rows, 7)

    def record(first: int) -> None:
        # a block is always drawn whole, from a seed of its own
        own = np.random.SeedSequence([seed, first // _BLOCK]).generate_state(1, np.uint64)
        drawn = _draw(_BLOCK, style, int(own[0])) if blocks else _draw(rows, style, seed)
        for (q, dq, ddq), sensor in drawn:
            q, dq, ddq, sensor = (part[: rows - first] for part in (q, dq, ddq, sensor))
            torque = inverse_dynamics(q, dq, ddq) + friction_torque(dq)
            torque += noise * sensor.new_tensor(TYPICAL_TORQUE) * sensor
            inputs[first : first + len(q)] = torch.cat([q, dq, ddq], dim=1)
            targets[first : first + len(q)] = torque
            first += len(q)

    list(Threads().run(record, range(0, rows, _BLOCK if blocks else rows)))
    groups = torch.arange(rows) // ROWS_PER_TRAJECTORY
    return Recording(inputs, targets, name=f"arm_{style}", groups=groups)


def _draw(rows: int, style: str, seed: int) -> Iterator[tuple[list[Tensor], Tensor]]:
    """States and unit noise of 32,000 rows at a time, all from one generator, the trajectories first."""
    generator = torch.Generator().manual_seed(seed)
    motion = random_motion(style, -(-rows // ROWS_PER_TRAJECTORY), generator)
    times = torch.arange(ROWS_PER_TRAJECTORY, dtype=torch.float64) / RATE
    parts = zip(*(value.split(_TRAJECTORIES_PER_CHUNK) for value in vars(motion).values()), strict=True)
    for number, part in enumerate(parts):
        chunk = [state.flatten(0, 1) for state in states(Motion(*part), times)]  # each [rows, 7]
        left = min(len(chunk[0]), rows - number * _BLOCK)
        yield chunk, torch.randn(left, len(LINKS), generator=generator, dtype=torch.float64)
