"""The closed loop: its physics, and a small run."""

import torch

from trustgp_experiments.datasets import arm
from trustgp_experiments.studies.control import study as control


def test_true_torques_track_and_wrong_ones_need_the_fallback():
    """Would catch wrong dynamics: with the true torques the arm stays on its path, soft as it is."""
    times = torch.arange(80, dtype=torch.float64) * control.STEP
    path = torch.stack(arm.states(arm.random_motion("slow", 1, torch.Generator().manual_seed(0)), times))
    rows = torch.cat(list(path[:, :, :: control.HOLD]), dim=-1)
    true = arm.inverse_dynamics(*rows[0].split(7, dim=1)) + arm.friction_torque(rows[0][:, 7:14])
    size = torch.tensor(arm.TYPICAL_TORQUE, dtype=torch.float64)
    trusted, flagged = torch.zeros(1, 40, dtype=torch.bool), torch.ones(1, 40, dtype=torch.bool)
    both = torch.stack([trusted, flagged])
    right, _ = control.track(path, true[None], both, size)
    wrong, effort = control.track(path, (true + size)[None], both, size)
    right, wrong = right[:, 0].sqrt(), wrong[:, 0].sqrt()
    assert right[0] < 0.003  # torques are held for several steps
    assert right[1] == wrong[1]  # the network is not asked
    assert wrong[0] > 3 * wrong[1] > 3 * right[0]
    assert torch.isfinite(effort).all()


def test_a_small_run_flags_the_same_share_for_every_method(small_run):
    result = small_run("control")[1]
    (seed,) = result.numbers["seeds"]
    assert len(seed) == len(control.SHARES)
    names = [row[0] for row in result.tables[0].rows]
    assert {control.NEVER, control.ALWAYS, control.ORACLE, *control.QUICK_METHODS} <= set(names)
    for by_kind in seed.values():
        assert list(by_kind[control.ALL]) == names
        assert by_kind[control.ALL][control.NEVER]["foreign"] == 0.0
        assert by_kind[control.ALL][control.ALWAYS]["foreign"] == 1.0
    few, *_, many = (by_kind[control.ALL][control.ORACLE]["foreign"] for by_kind in seed.values())
    assert few <= many
