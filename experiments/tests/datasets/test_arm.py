"""The simulated arm against pinocchio, and its motions."""

import numpy as np
import pytest
import torch
from draws import Draws

from trustgp_experiments.datasets import arm
from trustgp_experiments.datasets.arm import STYLES, random_motion, states

LIMITS = torch.tensor([link.limit for link in arm.LINKS], dtype=torch.float64)


def random_states(rows, *, seed=0):
    unit = Draws(seed).uniform(3, rows, 7) * 2 - 1
    return unit[0] * LIMITS, 2 * unit[1], 5 * unit[2]


def test_torques_equal_pinocchios_for_random_states():
    pin = pytest.importorskip("pinocchio", reason="the independent dynamics need ./experiments[sim]")
    model, parent = pin.Model(), 0
    for number, link in enumerate(arm.LINKS, start=1):
        placement = pin.SE3(np.eye(3), np.array([0.0, 0.0, link.offset]))
        kind = getattr(pin, f"JointModelR{link.axis.upper()}")
        parent = model.addJoint(parent, kind(), placement, f"joint{number}")
        body = pin.Inertia(link.mass, np.array(link.centre), np.diag(link.inertia_diagonal()))
        model.appendBodyToJoint(parent, body, pin.SE3.Identity())
    data, states = model.createData(), random_states(200)
    rows = zip(*(part.numpy() for part in states), strict=True)
    expected = torch.stack([torch.from_numpy(pin.rnea(model, data, *row).copy()) for row in rows])
    torch.testing.assert_close(arm.inverse_dynamics(*states), expected, rtol=1e-9, atol=1e-9)


def test_rows_of_several_blocks_are_those_of_one(monkeypatch):
    states = random_states(50)
    whole = arm.inverse_dynamics(*states)
    monkeypatch.setattr(arm, "BLOCK", 7)
    torch.testing.assert_close(arm.inverse_dynamics(*states), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("style", STYLES)
def test_velocities_and_accelerations_are_derivatives(style, generator):
    motion = random_motion(style, 3, generator)
    step = 1e-5
    times = torch.linspace(0, 5, 50, dtype=torch.float64)
    _, dq, ddq = states(motion, times)
    (q0, dq0, _), (q1, dq1, _) = states(motion, times - step), states(motion, times + step)
    # Central differences in float64: rounding 1e-16/step and truncation step^2 are both 1e-10.
    torch.testing.assert_close((q1 - q0) / (2 * step), dq, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close((dq1 - dq0) / (2 * step), ddq, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("style", STYLES)
def test_joint_limits_are_kept_and_rows_are_consistent_in_time(style):
    recording = arm.simulate(rows=5000, style=style)
    q, dq, _ = recording.inputs.split(7, dim=1)
    assert (q.abs() <= LIMITS).all()
    same = recording.groups[2:] == recording.groups[:-2]
    slope = (q[2:] - q[:-2]) * arm.RATE / 2
    # 100 Hz central differences of float32 angles: about 1e-3 of truncation in fast motion.
    torch.testing.assert_close(slope[same], dq[1:-1][same], rtol=0.01, atol=5e-3)


def test_targets_are_rigid_body_torques_plus_viscous_and_coulomb_friction():
    fast = torch.full((1, 7), 2.0, dtype=torch.float64)
    expected = 2.0 * fast.new_tensor(arm.VISCOUS) + fast.new_tensor(arm.COULOMB)
    torch.testing.assert_close(arm.friction_torque(fast)[0], expected)
    torch.testing.assert_close(arm.friction_torque(-fast), -arm.friction_torque(fast))

    recording = arm.simulate(rows=600, noise=0.0)
    q, dq, ddq = recording.inputs.double().split(7, dim=1)
    expected = arm.inverse_dynamics(q, dq, ddq) + arm.friction_torque(dq)
    # The stored states are rounded to float32, and friction is steep at small speeds.
    torch.testing.assert_close(recording.targets.double(), expected, rtol=1e-4, atol=1e-4)


def test_the_noise_is_the_given_fraction_of_a_typical_torque():
    noisy, clean = (arm.simulate(rows=20_000, noise=noise) for noise in (0.05, 0.0))
    spread = (noisy.targets - clean.targets).std(0) / torch.tensor(arm.TYPICAL_TORQUE)
    torch.testing.assert_close(spread, torch.full((7,), 0.05), rtol=0.03, atol=0)


def test_seeds_give_the_same_rows_and_blocks_the_same_first_rows_however_many_are_asked_for():
    state = torch.get_rng_state()
    first, second, other = (arm.simulate(rows=700, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.targets, second.targets)
    assert not torch.equal(first.inputs, other.inputs)
    block = arm._BLOCK
    sizes = (1234, block, block + 700)
    few, one, more = (arm.simulate(rows=rows, seed=4, blocks=True) for rows in sizes)
    for part in ("inputs", "targets", "groups"):
        assert torch.equal(getattr(more, part)[:block], getattr(one, part))
        assert torch.equal(getattr(more, part)[:1234], getattr(few, part))
    assert not torch.equal(more.inputs[block : block + 500], more.inputs[:500])


def test_wrong_options_are_refused_with_the_allowed_ones():
    with pytest.raises(ValueError, match=r"fast.*shifted.*slow"):
        arm.simulate(rows=10, style="wild")
    with pytest.raises(ValueError, match="rows=0"):
        arm.simulate(rows=0)
