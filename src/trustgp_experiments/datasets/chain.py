"""Which torques move a chain of rigid bodies? Recursive Newton-Euler, many rows at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BLOCK = 8192  # rows at a time: their vectors stay near the processor
AXES = {"RX": (1.0, 0.0, 0.0), "RY": (0.0, 1.0, 0.0), "RZ": (0.0, 0.0, 1.0)}


@dataclass(frozen=True)
class Chain:
    """J bodies, each turning about one axis of the body before; float64, SI units.

    All vectors of a body are in the frame of its own joint, but for its offset and turn, which place that
    frame (at q = 0) in the frame before.
    """

    axes: Tensor  # unit vectors                        [J, 3]
    offsets: Tensor  # of the joint's origin             [J, 3]
    turns: Tensor  # rotations into the frame before     [J, 3, 3]
    masses: Tensor  #                                    [J]
    centres: Tensor  # of mass                           [J, 3]
    inertias: Tensor  # about the centre of mass         [J, 3, 3]
    gravity: Tensor  # in the frame of the base          [3]


def read_chain(model: Any) -> Chain:
    """The chain of a ``pinocchio.Model``, for example of one that pinocchio has read from a file.

    Its joints must turn about an axis x, y or z of their frames and follow one another.
    """
    count = model.njoints - 1
    kinds = [joint.shortname().removeprefix("JointModel") for joint in list(model.joints)[1:]]
    if list(model.parents)[1:] != list(range(count)) or not set(kinds) <= set(AXES):
        raise ValueError(
            f"joints {kinds} with parents {list(model.parents)[1:]}: only a chain without branches of joints "
            f"{', '.join(AXES)} can be read."
        )
    placements, bodies = list(model.jointPlacements)[1:], list(model.inertias)[1:]

    def stack(parts: list) -> Tensor:
        return torch.stack([torch.as_tensor(part, dtype=torch.float64).clone() for part in parts])

    return Chain(
        axes=stack([AXES[kind] for kind in kinds]),
        offsets=stack([placement.translation for placement in placements]),
        turns=stack([placement.rotation for placement in placements]),
        masses=stack([body.mass for body in bodies]),
        centres=stack([body.lever for body in bodies]),
        inertias=stack([body.inertia for body in bodies]),
        gravity=torch.as_tensor(model.gravity.linear, dtype=torch.float64).clone(),
    )


def inverse_dynamics(model: Any, q: Tensor, dq: Tensor, ddq: Tensor) -> Tensor:
    r"""Torques of rigid-body motion, by recursive Newton-Euler.

    .. math:: \tau = M(q) \ddot q + C(q, \dot q) \dot q + g(q)

    Out along the chain goes what each body does; back comes what that takes. The base accelerates against
    gravity instead of every body being pulled by it. The model is a `Chain` of J bodies or a
    ``pinocchio.Model`` of one; angles, velocities, accelerations and torques (float64) are [n, J].
    """
    chain = model if isinstance(model, Chain) else read_chain(model)
    joints = len(chain.masses)
    if not q.shape == dq.shape == ddq.shape or q.dim() != 2 or q.shape[1] != joints:
        raise ValueError(
            f"q, dq, ddq have shapes {tuple(q.shape)}, {tuple(dq.shape)}, {tuple(ddq.shape)}; "
            f"pass three tensors of shape [n, {joints}]."
        )
    with torch.no_grad():
        parts = zip(*(part.double().split(BLOCK) for part in (q, dq, ddq)), strict=True)
        bodies = _bodies(chain, q.device)
        blocks = [_block(chain, bodies, *(part.T.contiguous() for part in block)).T for block in parts]
        return torch.cat(blocks)


@dataclass(frozen=True)
class _Body:
    """One body, as matrices that act on columns, and about the origin of its joint."""

    axis: Tensor  # a                                         [3, 1]
    offset: Tensor  # p                                       [3, 1]
    turn: Tensor  # T                                         [3, 3]
    mass: float
    moment: Tensor  # m c                                     [3, 1]
    inertia: Tensor  # about the joint, I_c + m (c^2 - c c^T)  [3, 3]

    def rotated(self, sine: Tensor, cosine: Tensor, vectors: Tensor) -> Tensor:
        """Vectors [3, k], each about the axis by its own angle: Rodrigues."""
        eye, along = torch.eye(3, dtype=vectors.dtype, device=vectors.device), self.axis @ self.axis.T
        aside = _cross(self.axis, eye)  # v -> a x v
        return along @ vectors + cosine * ((eye - along) @ vectors) + sine * (aside @ vectors)


def _bodies(chain: Chain, device: torch.device) -> list[_Body]:
    eye, found = torch.eye(3, dtype=torch.float64, device=device), []
    for j, mass in enumerate(chain.masses.tolist()):
        parts = (chain.axes, chain.centres, chain.offsets)
        axis, centre, offset = (part[j][:, None].to(device) for part in parts)
        inertia = chain.inertias[j].to(device) + mass * (centre.square().sum() * eye - centre @ centre.T)
        found.append(_Body(axis, offset, chain.turns[j].to(device), mass, mass * centre, inertia))
    return found


def _block(chain: Chain, bodies: list[_Body], q: Tensor, dq: Tensor, ddq: Tensor) -> Tensor:
    """Torques [J, k] of a block of rows, each given as [J, k]."""
    sine, cosine = torch.sin(q), torch.cos(q)
    spin = push = torch.zeros(3, q.shape[1], dtype=q.dtype, device=q.device)  # w and dw/dt, [3, k]
    lift = (-chain.gravity.to(q)[:, None]).expand_as(spin)  # acceleration of the joint's origin
    wrenches = []
    for j, body in enumerate(bodies):
        lift = lift + _carried(spin, push, body.offset)
        inward = body.turn.T @ torch.cat([spin, push, lift], dim=1)  # one rotation for all three
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
        force, wrench = (body.turn @ outward).chunk(2, dim=1)
        wrench = wrench + _cross(body.offset, force)
    return torques


def _carried(spin: Tensor, push: Tensor, arm: Tensor) -> Tensor:
    """dw/dt x r + w x (w x r), for an arm r of shape [3, 1]."""
    return _cross(push, arm) + spin * (arm.T @ spin) - arm * spin.square().sum(dim=0)


def _cross(left: Tensor, right: Tensor) -> Tensor:
    """Cross products of columns, [3, k] or [3, 1]."""
    (a, b, c), (x, y, z) = left, right
    return torch.stack([b * z - c * y, c * x - a * z, a * y - b * x])
