import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trustgp_experiments.datasets import Recording, load, splits
from trustgp_experiments.datasets.splits import BLOCKS, seams, split_blocks, split_groups, split_unseen


def parts_of(split):
    return torch.cat([split.train, split.validation, split.test])


@given(n=st.integers(10, 400), seed=st.integers(0, 2**31))
def test_a_random_split_uses_every_row_once(n, seed):
    split = splits.split_random(n, test=0.2, validation=0.1, seed=seed)
    assert parts_of(split).sort().values.tolist() == list(range(n))
    assert (len(split.test), len(split.validation)) == (round(0.2 * n), round(0.1 * n))


@given(spare=st.integers(0, 500), seed=st.integers(0, 2**31))
def test_a_block_split_uses_every_row_once_and_keeps_blocks_whole(spare, seed):
    n = BLOCKS + spare
    split = split_blocks(n, purge=0, seed=seed)
    assert parts_of(split).sort().values.tolist() == list(range(n))
    sets = labels_of(split, torch.arange(n) * BLOCKS // n)
    assert sum(map(len, sets)) == BLOCKS == len(set.union(*sets))
    assert sets[2] == set(range((4 - seed) % 5, BLOCKS, 5))


def test_the_seed_moves_the_validation_blocks_and_five_seeds_test_every_row_once():
    first, again, other = (split_blocks(3000, purge=0, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.validation, again.validation)
    assert not torch.equal(first.validation, other.validation)
    tested = torch.cat([split_blocks(3000, purge=0, seed=seed).test for seed in range(5)])
    assert tested.sort().values.tolist() == list(range(3000))


@given(purge=st.integers(0, 20), seed=st.integers(0, 9))
def test_no_row_stands_nearer_to_a_held_out_block_than_was_asked(purge, seed):
    n, whole = 3000, split_blocks(3000, purge=0, seed=seed)
    split = split_blocks(n, purge=purge, seed=seed)
    assert torch.equal(split.test, whole.test)
    gap = (split.test[:, None] - torch.cat([split.train, split.validation])).abs().min()
    assert gap == purge + 1
    assert (split.validation[:, None] - split.train).abs().min() >= purge + 1
    gone = torch.isin(torch.arange(n), parts_of(split), invert=True).nonzero()
    held = torch.cat([whole.validation, whole.test])
    assert bool(((held - gone).abs().amin(dim=1) <= purge).all())


def test_rows_are_alike_as_long_as_they_correlate_by_more_than_a_half():
    time = torch.arange(4000.0)
    wave = torch.stack([torch.sin(time / 20), torch.cos(time / 20), torch.ones(4000)], dim=1)
    # cos(lag / 20) = 1/2; the constant column counts for nothing
    assert splits.rows_alike(wave) == pytest.approx(20 * torch.pi / 3, abs=1)
    noise = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0))
    assert splits.rows_alike(noise) == 1


def test_unseen_blocks_are_purged_of_what_is_alike_but_never_of_more_than_a_quarter():
    slow = torch.sin(torch.arange(3000.0) / 200)[:, None].expand(3000, 21)
    fast = torch.sin(torch.arange(3000.0) / 5)[:, None].expand(3000, 21)
    for rows, wanted in ((slow, 25), (fast, 6)):
        split = split_unseen(Recording(rows, rows[:, :7], name="made up"), seed=1)
        assert (split.test[:, None] - split.train).abs().min() == wanted + 1


def test_impossible_splits_are_refused():
    groups = torch.tensor([1, 2, 3])
    for call, match in (
        (lambda: splits.split_random(10, test=0.6, validation=0.4), "leave none to train on"),
        (lambda: split_blocks(20, purge=0, seed=0), "20 rows cannot be split into 30 blocks"),
        (lambda: split_groups(groups, test_share=0.6), "3 groups, 2 of them to test"),
        (lambda: split_groups(groups, test_share=-0.1), "3 groups, 1 of them to test"),
    ):
        with pytest.raises(ValueError, match=match):
            call()


def labels_of(split, labels):
    return [set(labels[part].tolist()) for part in (split.train, split.validation, split.test)]


@given(labels=st.lists(st.integers(-3, 40), min_size=12, max_size=200), seed=st.integers(0, 2**31))
def test_a_split_by_groups_uses_every_row_once_and_keeps_groups_whole(labels, seed):
    groups = torch.tensor([*labels, *range(-3, 3)])
    split = split_groups(groups, seed=seed)
    assert parts_of(split).sort().values.tolist() == list(range(len(groups)))
    train, held, tested = labels_of(split, groups)
    count = len(groups.unique())
    assert len(train) + len(held) + len(tested) == count == len(train | held | tested)
    assert (len(tested), len(held)) == (max(1, round(0.2 * count)), max(1, round(0.12 * count)))


def repeated(name="made up"):
    """Two runs of three rounds of one loop of 100 rows, and a run of six rounds of one of 50 rows."""
    places = torch.cat([torch.arange(300.0) % 100, torch.arange(300.0) % 100, 100 + torch.arange(300.0) % 50])
    motions = torch.tensor([1] * 600 + [3] * 300)
    rows = torch.zeros(900, 21)
    return Recording(rows, rows[:, :7], name=name, groups=motions, motions=motions, places=places)


@pytest.mark.parametrize("seed", [0, 1])
def test_all_repeats_of_a_place_fall_on_one_side(seed):
    recording = repeated()
    split = splits.split_repeats(recording.places, purge=0, seed=seed)
    train, held, tested = labels_of(split, recording.places)
    assert parts_of(split).sort().values.tolist() == list(range(900))
    assert not train & held
    assert not train & tested
    assert not held & tested
    assert [len(side) for side in (train, held, tested)] == pytest.approx([100, 20, 30], abs=3)


def test_the_unseen_split_is_by_what_is_known_of_the_recording():
    whole = repeated()
    by_place = splits.split_repeats(whole.places, purge=0, seed=2)
    assert torch.equal(split_unseen(whole, seed=2).validation, by_place.validation)
    rows, motions = torch.zeros(60, 21), torch.arange(60) // 10
    runs = Recording(rows, rows[:, :7], name="made up", groups=torch.arange(60), motions=motions)
    assert torch.equal(split_unseen(runs, seed=1).test, split_groups(motions, seed=1).test)
    trajectories = Recording(rows, rows[:, :7], name="made up", groups=motions)
    assert torch.equal(split_unseen(trajectories, seed=1).test, split_groups(motions, seed=1).test)
    plain = split_unseen(Recording(rows, rows[:, :7], name="made up"))  # nothing to purge in 2 rows
    assert torch.equal(plain.validation, split_blocks(60, purge=0, seed=0).validation)


@pytest.mark.parametrize("name", ["kuka", "kuka_sim"])
def test_random_splits_of_the_kuka_test_memory_and_unseen_ones_do_not(name, data_root):
    recording = load(name, root=data_root)

    def distance(split):
        """Median distance of a held-out row to the nearest training row, in units of the training rows."""
        rows = recording.inputs / recording.inputs[split.train].std(0)
        held = torch.cat([split.validation, split.test])[::20]
        return torch.cdist(rows[held], rows[split.train]).amin(1).median().item()

    assert distance(splits.split_random(len(recording.inputs))) < 0.05
    assert distance(split_unseen(recording)) > 0.3


def test_training_rows_get_mean_zero_and_variance_one_and_a_constant_column_zero(generator):
    x = 5 + 3 * torch.randn(200, 4, generator=generator)
    y = 100 * torch.randn(200, 2, generator=generator) - 7
    scaler = splits.standardise(x, y)
    torch.testing.assert_close(scaler.restore_targets(scaler.targets(y)), y)
    for rows in (scaler.inputs(x), scaler.targets(y)):
        assert rows.dtype == torch.float32
        torch.testing.assert_close(rows.mean(0), torch.zeros(rows.shape[1]), atol=1e-6, rtol=0)
        torch.testing.assert_close(rows.var(0, correction=0), torch.ones(rows.shape[1]))

    x[:, 1], x[:, 2] = 0.1, 0.0
    scaler = splits.standardise(x, y)
    assert scaler.inputs(x)[:, 1:3].abs().max() < 1e-6
    assert scaler.inputs(x + 1).isfinite().all()


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
        assert splits.window_ends(labels, borders, length).tolist() == expected


@pytest.mark.parametrize(("name", "places"), [("sarcos", 8), ("barrett", 0), ("kuka", 2)])
def test_the_real_arms_have_as_many_seams_as_are_known(data_root, name, places):
    jumps = seams(load(name)).nonzero().flatten()
    starts = 1 + int((jumps.diff() > 10).sum()) if len(jumps) else 0  # a seam is smeared over a few rows
    assert starts == places
