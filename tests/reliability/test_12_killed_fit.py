"""Promise 12, in small: a killed fit goes on where it was, and ends in the same bytes."""

from __future__ import annotations

import time

import pytest
import torch
from reliability.helpers import listing, python, quiet_fit, rows, trained

import trustgp
from trustgp import solving

KILLS = 5

# One process that forks: a fresh interpreter for each fit would spend its time on imports.
SCRIPT = """
import random, sys
from pathlib import Path
import sympy, torch.fx.experimental.symbolic_shapes  # torch.func imports them at its first call
import trustgp
from reliability.helpers import finished, killed_when, listing, mlp, quiet_fit, rows

folder, mode, kills = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
network, (x, y) = mlp(3, 16, 2), rows(900, inputs=3)

def fit(name, checkpoint):
    model = quiet_fit(network, (x, y), num_experts=15, outputs=mode, checkpoint=checkpoint)
    model.save(folder / name)

def count():
    return len(list((folder / "c").glob("expert-*")))

seconds = finished(lambda: fit("whole", None))
chance, done = random.Random(mode), [0]
for number in range(kills):
    wanted = chance.randint(done[-1], 3 * (number + 1))  # experts on disk before the kill
    killed_when(lambda: fit("resumed", folder / "c"), lambda: count() >= wanted, chance.uniform(0, 0.02))
    done.append(count())
finished(lambda: fit("resumed", folder / "c"))
print(*done)
"""


@pytest.mark.parametrize("mode", ["shared", "separate"])
def test_a_fit_killed_at_random_moments_ends_in_the_same_bytes(tmp_path, mode):
    done = [int(word) for word in python(SCRIPT, tmp_path, mode, KILLS).split()]
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()
    assert done == sorted(done)  # what is done stays done
    assert done[-1] > 0  # and the kills came in the middle of it
    assert [name for name in listing(tmp_path / "c") if name.startswith(".")] == []


def test_a_worker_has_one_thread_of_its_own(one_thread):
    """On which the promise of the same bytes rests."""
    torch.set_num_threads(2)

    def threads(_) -> int:
        time.sleep(0.1)
        return torch.get_num_threads()

    assert [count for _, count in trustgp.Threads(2).run(threads, [0, 1])] == [1, 1]
    assert torch.get_num_threads() == 2


def test_finished_experts_are_not_solved_again(tmp_path, monkeypatch):
    network, x, y = trained(120)
    solved, original = [], solving.solve_expert

    def counted(problem, task):
        if len(solved) == 3:
            raise KeyboardInterrupt
        result = original(problem, task)
        solved.append(task)
        return result

    options = {"num_experts": 6, "checkpoint": tmp_path / "c", "executor": trustgp.Threads(1)}
    monkeypatch.setattr(solving, "solve_expert", counted)
    with pytest.raises(KeyboardInterrupt):
        quiet_fit(network, (x, y), **options)
    assert len(list((tmp_path / "c").glob("expert-*"))) == 3
    rest = []
    monkeypatch.setattr(solving, "solve_expert", lambda p, t: rest.append(t) or original(p, t))
    model = quiet_fit(network, (x, y), **options)
    assert len(rest) == model.num_experts - 3
    model.save(tmp_path / "resumed")
    quiet_fit(network, (x, y), num_experts=6).save(tmp_path / "whole")
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("held", ["groups", "validation"])
def test_a_resumed_fit_is_calibrated_the_same(tmp_path, held):
    network, x, y = trained(120)
    options = {"groups": torch.arange(120) // 12} if held == "groups" else {"validation": rows(40, seed=4)}
    options["num_experts"] = 4
    quiet_fit(network, (x, y), **options).save(tmp_path / "whole")
    quiet_fit(network, (x, y), checkpoint=tmp_path / "c", **options)
    sorted((tmp_path / "c").glob("expert-*"))[1].unlink()
    quiet_fit(network, (x, y), checkpoint=tmp_path / "c", **options).save(tmp_path / "resumed")
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()
