"""The benchmarks run, on tiny networks."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from test_examples import example

pytest.importorskip("transformers", reason='not installed: pip install "trustgp[hf]"')
pytestmark = pytest.mark.nightly
FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a benchmark in this process, and returns the JSON of its last line."""

    monkeypatch.setenv("TRUSTGP_COMMIT", "0123456789ab")

    def run(name, *arguments):
        module = example(name, FOLDER)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        with torch.random.fork_rng():
            module.main()
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert result["commit"] == "0123456789ab"
        return result

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
    ways = {"network", "trustgp", "one temperature", "a temperature each"}
    assert set(figures["nll"]) == set(figures["ece"]) == ways
    gap = figures["nll"]["trustgp"] - figures["nll"]["a temperature each"]
    assert figures["nll difference"]["mean"] == pytest.approx(gap)
    assert figures["nll"]["one temperature"] < figures["nll"]["network"]  # its NLL on other rows is lower


def test_public_networks_on_cifar(run, tmp_path, monkeypatch):
    """On random images and weights; the stored figures have the same form."""
    pytest.importorskip("matplotlib")
    torch.manual_seed(0)
    pixels, labels = torch.randint(0, 256, (60, 32, 32, 3), dtype=torch.uint8), torch.arange(60) % 10
    names = {"train": pixels, "train_labels": labels, "test": pixels, "test_labels": labels}
    np.savez(tmp_path / "images.npz", **{name: value.numpy() for name, value in names.items()})
    monkeypatch.setenv("TRUSTGP_DATA", str(tmp_path))
    (tmp_path / "cifar_resnets").mkdir()
    weights = example("cifar", FOLDER).ResNet(3).state_dict()
    torch.save(weights, tmp_path / "cifar_resnets" / "cifar10_resnet20.pt")
    images = str(tmp_path / "images.npz")
    (made,) = run("cifar", "--small", "--images", images, "--network", "ResNet-20")["figures"].values()
    stored = json.loads((FOLDER.parent / "results" / "benchmarks" / "cifar-cuda.json").read_text())
    for figures in stored["figures"].values():
        assert set(figures) == set(made)
        mine, theirs = made["means and deviations"], figures["means and deviations"]
        assert set(theirs) <= set(mine)
        assert all(set(theirs[key]) == set(mine[key]) for key in theirs)
    scores = made["means and deviations"]
    assert scores["one temperature"]["nll"][0] < scores["network"]["nll"][0] + 0.5
    assert 0 <= scores["novelty"]["auroc, letters, score"][0] <= 1
