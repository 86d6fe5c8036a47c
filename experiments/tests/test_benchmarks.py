"""The benchmarks run, on tiny networks."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason='not installed: pip install "trustgp[hf]"')
pytestmark = pytest.mark.nightly
FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a benchmark in this process, and returns the JSON of its last line."""

    def run(name, *arguments):
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        with torch.random.fork_rng():
            module.main()
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def test_large_networks(run):
    result = run("large", "--small", "--network", "vit", "resnet50")
    for figures in result["figures"].values():
        names = ("fit", "predict 64", "predict 1", "traced 1")
        assert min(figures[f"{name} over forward"] for name in names) > 0
    images = run("large", "--small", "--images", "80")
    assert images["figures"]["images"]["fit rows per s"] > 0


def test_calls_of_an_exported_model(run):
    pytest.importorskip("onnxruntime")
    threads = torch.get_num_threads()
    found = run("calls", "--calls", "20", "--predict-calls", "10", "--rows", "300")
    torch.set_num_threads(threads)
    assert found["onnxruntime"]["same_over_repeats"]
    assert found["predict"]["calls"] == 10


def test_labels(run):
    (figures,) = run("labels", "--small", "--seeds", "2")["figures"].values()
    assert (
        set(figures["nll"])
        == set(figures["ece"])
        == {"network", "trustgp", "one temperature", "a temperature each"}
    )
    gap = figures["nll"]["trustgp"] - figures["nll"]["a temperature each"]
    assert figures["nll difference"]["mean"] == pytest.approx(gap)
    assert figures["nll"]["one temperature"] < figures["nll"]["network"]  # its NLL on other rows is lower
