"""Windows of past states: no window crosses a border, and none is left out."""

import pytest
import torch

from trustgp_experiments.datasets import Recording, load
from trustgp_experiments.datasets.splits import seams, window_ends


def arm(runs: list[int], *, step: float = 0.01) -> Recording:
    """Two joints on sines; each run begins elsewhere."""
    parts = []
    for number, rows in enumerate(runs):
        time = 4.0 * number + step * torch.arange(rows, dtype=torch.float64)[:, None]
        angle = time * torch.tensor([1.0, 2.0])
        speed = torch.tensor([1.0, 2.0])
        parts.append(torch.cat([angle.sin(), speed * angle.cos(), -speed.square() * angle.sin()], dim=1))
    inputs = torch.cat(parts)
    return Recording(inputs, inputs[:, :2], name="made")


def test_a_jump_and_the_end_of_a_run_are_borders_and_motion_is_none():
    assert seams(arm([300, 250, 400])).nonzero().flatten().tolist() == [299, 549]
    whole = arm([100])
    runs = Recording(whole.inputs, whole.targets, name="two", groups=(torch.arange(100) >= 40).long())
    assert seams(runs).nonzero().flatten().tolist() == [39]


def test_windows_are_all_those_whose_rows_share_a_label_and_cross_no_border(generator):
    labels = torch.randint(0, 2, (12,), generator=generator).repeat_interleave(9)
    borders = torch.rand(107, generator=generator) < 0.05
    for length in (1, 2, 5, 9):
        expected = [
            end
            for end in range(length - 1, 108)
            if len(labels[end - length + 1 : end + 1].unique()) == 1
            and not borders[end - length + 1 : end].any()
        ]
        assert window_ends(labels, borders, length).tolist() == expected


@pytest.mark.parametrize(("name", "places"), [("sarcos", 8), ("barrett", 0), ("kuka", 2)])
def test_the_real_arms_have_as_many_seams_as_are_known(data_root, name, places):
    jumps = seams(load(name)).nonzero().flatten()
    starts = 1 + int((jumps.diff() > 10).sum()) if len(jumps) else 0  # a seam is smeared over a few rows
    assert starts == places
