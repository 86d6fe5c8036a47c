"""Every example under examples/ runs, at toy size."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trustgp import UncertaintyModel

FOLDER = Path(__file__).parent.parent / "examples"
SMALL = {
    "resnet18_like": ["--images", "40", "--width", "4", "--steps", "2"],
    "gru_torques": ["--trajectories", "3", "--hidden", "8", "--epochs", "1"],
    "transformer_regression": ["--sentences", "60", "--hidden", "8", "--steps", "2"],
    "serve_onnx": ["--calls", "20", "--rows", "300"],
    "monitor_log": ["--rows", "600", "--messages", "60", "--width", "8", "--steps", "20", "--out", "made"],
}


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OWN_TESTS = {"ros2_node", "training_callbacks"}  # tests/test_stand_ins.py
NEEDS = {
    "transformer_regression": ("transformers", "hf"),
    "serve_onnx": ("onnxruntime", "export"),
    "monitor_log": ("rosbags", "logs"),
}


@pytest.mark.parametrize("name", SMALL)
def test_an_example_runs(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name in NEEDS:
        package, extra = NEEDS[name]
        pytest.importorskip(package, reason=f'{package} is not installed: pip install "trustgp[{extra}]"')
    model = example(name).main(SMALL[name])
    assert isinstance(model, UncertaintyModel)
    assert "novelty" in capsys.readouterr().out


def test_every_example_is_run_with_the_right_sizes(monkeypatch):
    assert {path.stem for path in FOLDER.glob("*.py")} == {*SMALL, *OWN_TESTS}
    monkeypatch.setitem(sys.modules, "pinocchio", None)
    inputs, targets = example("gru_torques").windows(2, "slow", seed=0)
    assert inputs.shape[1:] == (12, 7)
    assert targets.shape == (len(inputs), 7)
    assert bool(torch.isfinite(targets).all())
    network = example("resnet18_like").ResNet18(10)
    assert sum(parameter.numel() for parameter in network.parameters()) == 11_173_962
