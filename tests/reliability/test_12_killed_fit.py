"""Promise 12: a killed fit resumes where it was, and ends in the same bytes."""

import json
import os
import signal
import threading
import time

import pytest
import torch
from reliability.helpers import contents, listing, mlp, python, quiet_fit, rows, trained

import trustgp
from trustgp.fitting import solve as solving

# One process that forks, after a first fit: what that imports and sets up is then there in every fork. It has
# one thread and sees no GPU, since threads of torch do not outlive a fork.
ALONE = {"CUDA_VISIBLE_DEVICES": ""}
SCRIPT = """
import json, os, random, sys, time
from pathlib import Path
import torch, trustgp
from trustgp.fitting import solve as solving
from reliability.helpers import finished, killed_when, mlp, quiet_fit, rows

network, (x, y) = mlp(3, 12, 2), rows(120, inputs=3)
options = {"num_experts": 8, "patchwork": trustgp.Patchwork(neighbours=2)}
quiet_fit(network, (x, y), **options)
root = Path(sys.argv[1])
journal = os.open(root / "journal", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
real = solving.solve_expert

def solve(problem, task):
    os.write(journal, b"s")  # begun
    time.sleep(0.03)  # so small an expert is solved before a kill can come
    return real(problem, task)

solving.solve_expert = solve

def begun():
    return (root / "journal").stat().st_size

def kill_five_times(folder):
    folder.mkdir()

    def fit(name):
        model = quiet_fit(network, (x, y), checkpoint=folder / name, executor=trustgp.Threads(2), **options)
        model.save(folder / f"{name}.trustgp")

    def count(name="killed"):
        return len(list((folder / name).glob("expert-*")))

    def writing():
        place = folder / "killed"
        return place.is_dir() and any(name.endswith(".part") for name in os.listdir(place))

    finished(lambda: fit("whole"))
    total, chance = count("whole"), random.Random(folder.name)
    ends = finished(lambda: fit("whole"))  # what all but the solving takes
    moments = [  # when it is killed, and how long after at most
        (lambda: True, ends / 2),  # in the first stages
        (writing, 0.002),
        (lambda: count() >= wanted, 0.02),  # when so many experts are there, and then some
        (lambda: count() >= wanted, 0.02),
        (lambda: count() >= total, ends / 2),  # in the last stages
    ]
    runs = []
    for ripe, delay in moments:
        there, before = count(), begun()
        wanted = chance.randint(min(there + 1, total), min(there + 4, total))
        killed_when(lambda: fit("killed"), ripe, chance.uniform(0, delay))
        runs.append((there, count(), begun() - before))
    there, before = count(), begun()
    finished(lambda: fit("killed"))
    runs.append((there, count(), begun() - before))
    return {"total": total, "runs": runs}

print(json.dumps([kill_five_times(root / str(number)) for number in range(int(sys.argv[2]))]))
"""


@pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.nightly)])
def test_a_fit_killed_at_random_moments_ends_in_the_same_bytes(tmp_path, times):
    """While rows are divided, while experts are solved and written, at the end: five times, or twenty."""
    halfway = 0
    for number, counts in enumerate(json.loads(python(SCRIPT, tmp_path, times, **ALONE))):
        folder, total, runs = tmp_path / str(number), counts["total"], counts["runs"]
        assert len(runs) == 6
        halfway += sum(0 < after < total for _, after, _ in runs)
        assert (folder / "killed.trustgp").read_bytes() == (folder / "whole.trustgp").read_bytes()
        assert contents(folder / "killed") == contents(folder / "whole")
        for there, after, begun in runs:
            assert there <= after  # what is done stays done
            assert begun <= total - there  # and is not done again
        assert runs[-1][2] == total - runs[-1][0]  # only what is missing is solved at the end
    assert halfway >= times  # some kills came in the middle of it


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_stops_cleanly_and_explains_how_to_resume(tmp_path, monkeypatch):
    """Pending experts are dropped, and no thread is left."""
    real, begun, before = solving.solve_expert, [], set(threading.enumerate())

    def slow(problem, task):
        begun.append(task)
        if len(begun) == 9:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        return real(problem, task)

    monkeypatch.setattr(solving, "solve_expert", slow)
    options = {"checkpoint": tmp_path, "executor": trustgp.Threads(2), "witness": None}
    with pytest.raises(KeyboardInterrupt, match=r"^the fit was stopped while solving the exp") as caught:
        quiet_fit(mlp(2, 3, 2), rows(200), num_experts=100, **options)
    left = {thread.name for thread in threading.enumerate() if thread not in before}
    assert not [name for name in left if name.startswith("ThreadPool")]  # others are Ray's, of another test
    there = len(list(tmp_path.glob("expert-*")))
    assert 0 < there <= len(begun) < 50
    assert f"{there} solved expert" in str(caught.value)
    assert str(caught.value).endswith(f"in {tmp_path}; the same call resumes from there.")
    assert not [name for name in listing(tmp_path) if name.endswith(".part")]


ROWS = trustgp.JacobianRows(keep=9, keep_per_expert=6)
OPTIONS = [
    {"groups": torch.arange(120) // 12, "outputs": "separate", "tangents": ROWS},
    {"validation": rows(40, seed=4), "budget": "220 KiB"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["groups", "validation"])
def test_a_resumed_fit_is_calibrated_the_same(tmp_path, options):
    network, x, y = trained(120)
    options = {"num_experts": 4, **options}
    quiet_fit(network, (x, y), **options).save(tmp_path / "whole")
    quiet_fit(network, (x, y), checkpoint=tmp_path / "c", **options)
    sorted((tmp_path / "c").glob("expert-*"))[1].unlink()
    quiet_fit(network, (x, y), checkpoint=tmp_path / "c", **options).save(tmp_path / "resumed")
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()
