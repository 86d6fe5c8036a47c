"""Which torques does a simulated 7-joint arm need? Rigid bodies, friction and sensor noise.

The arm is our own: a vertical chain of the size of a mid-weight collaborative arm, whose links are
solid cylinders. All joint frames are parallel at q = 0; the axes alternate between z and y.
"""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trustgp.executors import Threads

from .chain import AXES, Chain, newton_euler, read_chain
from .motion import Motion, random_motion, states
from .recording import Recording

GRAVITY = 9.81  # m/s^2
RATE = 100.0  # rows per second of a trajectory
ROWS_PER_TRAJECTORY = 500
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
    radius: float  # of the cylinder, which stands along z
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


def arm_model() -> Any:
    """The rigid-body model of the arm, a ``pinocchio.Model`` with 7 revolute joints.

    For other tools; `arm_chain` is the same arm without pinocchio. The model has no friction;
    `friction_torque` adds it.
    """
    pin = _pinocchio()
    joints = {"y": pin.JointModelRY, "z": pin.JointModelRZ}
    model, parent = pin.Model(), 0
    for number, link in enumerate(LINKS, start=1):
        placement = pin.SE3(np.eye(3), np.array([0.0, 0.0, link.offset]))
        parent = model.addJoint(parent, joints[link.axis](), placement, f"joint{number}")
        body = pin.Inertia(link.mass, np.array(link.centre), np.diag(link.inertia_diagonal()))
        model.appendBodyToJoint(parent, body, pin.SE3.Identity())
    limits = np.array([link.limit for link in LINKS])
    model.lowerPositionLimit, model.upperPositionLimit = -limits, limits
    return model


def arm_chain() -> Chain:
    """The same arm as plain numbers; this one needs no pinocchio."""
    joints = len(LINKS)

    def table(rows: list) -> Tensor:
        return torch.tensor(rows, dtype=torch.float64)

    return Chain(
        axes=table([AXES["R" + link.axis.upper()] for link in LINKS]),
        offsets=table([(0.0, 0.0, link.offset) for link in LINKS]),
        turns=torch.eye(3, dtype=torch.float64).expand(joints, 3, 3),
        masses=table([link.mass for link in LINKS]),
        centres=table([link.centre for link in LINKS]),
        inertias=torch.diag_embed(table([link.inertia_diagonal() for link in LINKS])),
        gravity=table([0.0, 0.0, -GRAVITY]),
    )


def inverse_dynamics(model: Any, q: Tensor, dq: Tensor, ddq: Tensor) -> Tensor:
    r"""Torques of rigid-body motion, by recursive Newton-Euler.

    .. math:: \tau = M(q) \ddot q + C(q, \dot q) \dot q + g(q)

    Args:
        model: A `Chain`, such as `arm_chain` makes, or a ``pinocchio.Model`` of one.
        q: Joint angles, shape [n, joints].
        dq: Velocities, shape [n, joints].
        ddq: Accelerations, shape [n, joints].

    Returns:
        Torques, float64, shape [n, joints], where ``q`` is.
    """
    chain = model if isinstance(model, Chain) else read_chain(model)
    if not q.shape == dq.shape == ddq.shape or q.dim() != 2 or q.shape[1] != chain.joints:
        raise ValueError(
            f"q, dq, ddq have shapes {tuple(q.shape)}, {tuple(dq.shape)}, {tuple(ddq.shape)}; "
            f"pass three tensors of shape [n, {chain.joints}]."
        )
    with torch.no_grad():
        return newton_euler(chain, q.double(), dq.double(), ddq.double())


_CHAIN = arm_chain()
_LIMITS = torch.tensor([link.limit for link in LINKS], dtype=torch.float64)


def friction_torque(dq: Tensor) -> Tensor:
    r"""Viscous and Coulomb friction of the arm, smooth through zero speed.

    .. math:: \tau_f = b \dot q + c \tanh(\dot q / v)

    Args:
        dq: Velocities, shape [..., 7].

    Returns:
        Torques, the shape of ``dq``.
    """
    return dq.new_tensor(VISCOUS) * dq + dq.new_tensor(COULOMB) * torch.tanh(dq / STICTION_SPEED)


def simulate(
    *, rows: int, style: str = "slow", seed: int = 0, noise: float = 0.01, blocks: bool = False
) -> Recording:
    """Record the simulated arm along random trajectories of a style.

    Every trajectory is 5 s long at 100 Hz (the last one may be cut short). Torques are computed
    in float64 with friction, then the sensor noise is added and everything becomes float32.

    Args:
        rows: Number of rows n.
        style: "slow" (to train on), "shifted" (same speeds, other region) or "fast" (higher
            speeds, other region).
        seed: Seed of the trajectories and of the noise.
        noise: Standard deviation of the torque noise, as a fraction of `TYPICAL_TORQUE`.
        blocks: Draw each 64 trajectories from a seed of their own: the first rows are then the same
            however many are asked for, and all cores make them. Other rows than without.

    Returns:
        A recording with inputs [n, 21] = (q, dq, ddq), targets [n, 7], and the number of the
        trajectory of each row in ``groups`` [n].
    """
    if rows < 1 or noise < 0:
        raise ValueError(f"rows={rows}, noise={noise}: pass rows >= 1 and noise >= 0.")
    inputs, targets = torch.empty(rows, 21), torch.empty(rows, 7)

    def record(first: int) -> None:
        """Write rows from the first on: a block, or all."""
        drawn = _block(first // _BLOCK, style, seed) if blocks else _at_once(rows, style, seed)
        for (q, dq, ddq), sensor in drawn:
            q, dq, ddq, sensor = (part[: rows - first] for part in (q, dq, ddq, sensor))
            torque = inverse_dynamics(_CHAIN, q, dq, ddq) + friction_torque(dq)
            torque += noise * sensor.new_tensor(TYPICAL_TORQUE) * sensor
            inputs[first : first + len(q)] = torch.cat([q, dq, ddq], dim=1)
            targets[first : first + len(q)] = torque
            first += len(q)

    for _ in Threads().run(record, range(0, rows, _BLOCK if blocks else rows)):
        pass
    groups = torch.arange(rows) // ROWS_PER_TRAJECTORY
    return Recording(inputs, targets, name=f"arm_{style}", groups=groups, style=style)


Drawn = Iterator[tuple[list[Tensor], Tensor]]


def _at_once(rows: int, style: str, seed: int) -> Drawn:
    """States and unit noise of 32,000 rows at a time, all from one generator, the trajectories first."""
    generator = torch.Generator().manual_seed(seed)
    trajectories = -(-rows // ROWS_PER_TRAJECTORY)
    motion = random_motion(style, trajectories=trajectories, limits=_LIMITS, generator=generator)
    for first in range(0, trajectories, _TRAJECTORIES_PER_CHUNK):
        chunk = _chunk(motion, first)
        left = min(len(chunk[0]), rows - first * ROWS_PER_TRAJECTORY)
        yield chunk, torch.randn(left, len(LINKS), generator=generator, dtype=torch.float64)


def _block(number: int, style: str, seed: int) -> Drawn:
    """States and unit noise of one block of 32,000 rows, always whole, from a generator of its own."""
    own = int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0])
    generator = torch.Generator().manual_seed(own)
    motion = random_motion(style, trajectories=_TRAJECTORIES_PER_CHUNK, limits=_LIMITS, generator=generator)
    chunk = _chunk(motion, 0)
    yield chunk, torch.randn(chunk[0].shape, generator=generator, dtype=torch.float64)


def _chunk(motion: Motion, first: int) -> list[Tensor]:
    """States of the trajectories from ``first`` on, a chunk of them, each of shape [rows, 7]."""
    chosen = slice(first, first + _TRAJECTORIES_PER_CHUNK)
    part = Motion(
        motion.centre[chosen],
        motion.amplitude[chosen],
        motion.pulsation[chosen],
        motion.phase[chosen],
    )
    times = torch.arange(ROWS_PER_TRAJECTORY, dtype=torch.float64) / RATE
    return [state.flatten(0, 1) for state in states(part, times)]


def _pinocchio() -> Any:
    try:
        return importlib.import_module("pinocchio")
    except ImportError as error:
        raise ImportError(
            'this model of the arm needs pinocchio, which is not installed: pip install "trustgp[sim]"'
        ) from error
