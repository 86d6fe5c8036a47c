"""The demo, as `make demo` and CI run it."""

import json
import sys

import pytest
import torch

from trustgp.cli import main
from trustgp.likelihoods.prediction import Prediction
from trustgp_experiments.demo import arm as demo_arm
from trustgp_experiments.demo import run as demo
from trustgp_experiments.demo.run import border_jumps

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """One quick run of everything, with an even smaller arm: its folder, its JSON and what it printed."""
    out = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "QUICK", demo_arm.ArmSize(trajectories=60, foreign=6, width=32, epochs=12))
        printed = []
        patch.setattr(sys, "stdout", _Tape(printed))
        assert main(["demo", "--quick", "--out", str(out)]) == 0
    return out, json.loads((out / "results.json").read_text()), "".join(printed)


class _Tape:
    encoding = "utf-8"

    def __init__(self, printed: list[str]) -> None:
        self.write = printed.append

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return False


def test_the_json_holds_what_the_tables_show(quick):
    _, results, printed = quick
    for numbers in results["toy"].values():
        assert f"{numbers['mean_jump']:.2f}" in printed
        assert f"{numbers['largest_jump']:.2f}" in printed
    for method, motions in results["arm"]["scores"].items():
        assert method in printed
        assert list(motions) == ["same", "shifted", "fast"]
        for scores in motions.values():
            assert f"{scores['nll']:.2f}" in printed
            assert f"{100 * scores['coverage']:.1f} %" in printed


def test_the_figures_are_there_and_small_enough_for_the_readme(quick):
    out, _, printed = quick
    for name in ("toy.png", "arm.png"):
        assert 20_000 < (out / name).stat().st_size < 200_000
        assert str(out / name) in printed
    assert str(out / "results.json") in printed


def test_no_trajectory_is_in_two_sets():
    size = demo_arm.ArmSize(trajectories=20, foreign=2, width=8, epochs=1)
    data = demo_arm.arm_data(size, seed=0)
    per = demo_arm.TRAJECTORY // demo_arm.STRIDE
    assert [len(part[0]) for part in (data.train, data.validation)] == [16 * per, 2 * per]
    assert {motion: len(rows[0]) for motion, rows in data.tests.items()} == dict.fromkeys(
        demo_arm.LABELS, 2 * per
    )
    sets = [data.train[0], data.validation[0], *(inputs for inputs, _ in data.tests.values())]
    every = torch.cat(sets)
    assert len(every.unique(dim=0)) == len(every)
    torch.testing.assert_close(data.train[1].mean(0), torch.zeros(7), atol=1e-5, rtol=0)
    torch.testing.assert_close(data.train[1].std(0, correction=0), torch.ones(7))


def test_jumps_are_ratios_of_the_two_sides_whichever_is_larger():
    std = torch.tensor([1.0, 2.0, 2.0, 1.0])
    blank = torch.zeros(4)
    line = Prediction(
        mean=blank,
        epistemic=std.square(),
        aleatoric=blank,
        excess=blank,
        novelty=blank,
        expert=torch.tensor([0, 1, 1, 0]),
        valid=torch.ones(4, dtype=torch.bool),
    )
    borders, jumps = border_jumps(line)
    assert borders.tolist() == [0, 2]
    assert jumps.tolist() == [2.0, 2.0]


def test_without_matplotlib_nothing_runs_and_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["demo", "--out", str(tmp_path / "out")]) == 1
    assert 'matplotlib, which is not installed: pip install "trustgp[plots]"' in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
