import shutil
from functools import partial

import pytest
import torch

from trustgp import JacobianRows, Threads, Witness


@pytest.fixture(scope="module")
def fit_case(fit_case):
    """Without a witness, which takes half of the time, unless a test asks for one."""
    return partial(fit_case, witness=None)


class Interrupted(Threads):
    """Runs everything, but dies after `survive` experts have been handed back."""

    survive = 10**6
    solved = 0

    def run(self, function, tasks):
        experts = bool(tasks) and type(tasks[0]).__name__ == "Task"
        for position, result in super().run(function, tasks):
            if experts:
                if Interrupted.solved >= Interrupted.survive:
                    raise KeyboardInterrupt
                Interrupted.solved += 1
            yield position, result


@pytest.fixture
def fit_until(fit_case, tmp_path):
    """Fit with a checkpoint; returns the model, or None when killed after `survive` experts."""

    def fit(survive=10**6, **options):
        Interrupted.survive, Interrupted.solved = survive, 0
        options = {"num_experts": 6, "checkpoint": tmp_path / "point", "executor": Interrupted(2), **options}
        try:
            return fit_case(**options)
        except KeyboardInterrupt:
            return None

    return fit


@pytest.fixture(scope="module")
def finished(fit_case, tmp_path_factory):
    """A model of six experts, and the folder of its checkpoint."""
    folder = tmp_path_factory.mktemp("finished") / "point"
    return fit_case(num_experts=6, checkpoint=folder), folder


@pytest.fixture
def first(finished, tmp_path):
    """That model; a copy of its checkpoint is where `fit_until` looks for one."""
    model, folder = finished
    shutil.copytree(folder, tmp_path / "point")
    return model


def files(tmp_path):
    return sorted((tmp_path / "point").glob("expert-*.trustgp"))


OPTIONS = [
    {"witness": Witness(), "groups": torch.arange(160) // 10},
    {"outputs": "separate", "tangents": JacobianRows(keep=60, keep_per_expert=15)},
    {"budget": "220 KiB"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_killed_fit_resumes_and_ends_the_same_to_the_bit(
    fit_case, fit_until, tmp_path, assert_same_state, options
):
    whole = fit_case(num_experts=6, **options)
    assert fit_until(survive=3, **options) is None
    # an expert whose result was handed over just before the end may or may not be on disk
    kept = len(files(tmp_path))
    assert kept == 3
    resumed = fit_until(**options)
    assert Interrupted.solved == whole.num_experts - kept
    assert_same_state(resumed, whole)


def test_a_finished_checkpoint_solves_nothing_again(fit_until, assert_same_state):
    first = fit_until()
    assert Interrupted.solved == first.num_experts
    second = fit_until()
    assert Interrupted.solved == 0
    assert_same_state(first, second)


def test_damaged_and_misplaced_experts_are_solved_again(fit_until, first, tmp_path, assert_same_state):
    paths = files(tmp_path)
    contents = [path.read_bytes() for path in paths]
    flipped = bytearray(contents[1])
    flipped[-20] ^= 1
    damaged = [
        contents[0][: len(contents[0]) // 2],
        bytes(flipped),
        b"",
        b"not a file of ours" * 20,
        contents[5],
    ]
    for path, content in zip(paths, damaged, strict=False):
        path.write_bytes(content)
    second = fit_until()
    assert Interrupted.solved == len(damaged)
    assert_same_state(first, second)
    assert [path.read_bytes() for path in paths] == contents
