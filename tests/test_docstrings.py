"""Every public name, those of the API reference, has an example in its docstring, which runs."""

import doctest
import importlib
import inspect
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from tiny_networks import adam
from torch import nn

import trustgp

Image = pytest.importorskip("PIL.Image")
PAGES = Path(__file__).parent.parent / "docs" / "api"
PARTS = slice(100), slice(100, 200), slice(200, 260)  # training, held-out and unseen rows
TEXT = "\n".join(page.read_text() for page in sorted(PAGES.glob("*.md")))
NAMES = sorted(set(re.findall(r"^::: (\S+)", TEXT, flags=re.MULTILINE)))
# run elsewhere: tests/export/test_compiled.py, and docs/distributed.md
SLOW = {"trustgp.compile", "trustgp.export.open_compiled", "trustgp.executors.Ray"}

COCO = {
    "images": [{"id": 1, "file_name": "0.png", "height": 32, "width": 32}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [4, 5, 16, 20]}],
    "categories": [{"id": 1, "name": "arm"}],
}


def named(name: str) -> Any:
    """The object of a dotted name."""
    module, rest = importlib.import_module("trustgp"), name.split(".")[1:]
    for part in rest:
        try:
            module = getattr(module, part)
        except AttributeError:
            module = importlib.import_module(f"{module.__name__}.{part}")
    return module


def trained(outputs: int, loss: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> nn.Module:
    network = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, outputs))
    return adam(network, lambda net: loss(net(inputs), targets), 100, 3e-2)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the examples use: docs/api/index.md lists it."""
    pytest.importorskip("transformers", reason="the detector's backbone")
    from detection.conftest import GRID, fitted_to, grid, noise_scenes

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inputs = 4 * torch.rand(260, 2) - 2
        targets = inputs.sum(1, keepdim=True).sin() + 0.1 * torch.randn(260, 1)
        tags = torch.stack([inputs[:, 0] > 0, inputs[:, 1] > 0], dim=1).float()
        kinds = tags.sum(1).long()
        images, masks = torch.randn(12, 1, 6, 6), torch.randint(0, 2, (12, 6, 6))
        network = trained(1, nn.MSELoss(), inputs[:100], targets[:100])
        classifier = trained(3, nn.CrossEntropyLoss(), inputs[:100], kinds[:100])
        tagger = trained(2, nn.BCEWithLogitsLoss(), inputs[:100], tags[:100])
        segmenter = nn.Conv2d(1, 2, 3, padding=1).eval()
    train, held_out, unseen = ((inputs[part], targets[part]) for part in PARTS)
    quiet = {"progress": False}
    detector = grid()
    pictures, boxes = noise_scenes(detector, 30, 1)
    return {
        **{"trustgp": trustgp, "torch": torch, "inputs": inputs, "targets": targets, "kinds": kinds},
        **{"network": network, "classifier": classifier, "tagger": tagger, "segmenter": segmenter},
        **{"train": train, "held_out": held_out, "unseen": unseen, "tags": tags, "images": images},
        **{"masks": masks, "unseen_kinds": (inputs[PARTS[2]], kinds[PARTS[2]])},
        **{"detector": detector, "adapter": GRID, "pictures": pictures, "boxes": boxes},
        "held_pictures": noise_scenes(detector, 24, 2),
        "model": trustgp.fit(network, train, validation=held_out, **quiet),
        "classes": trustgp.fit(classifier, (inputs, kinds), likelihood="classification", **quiet),
        "labels": trustgp.fit(tagger, (inputs, tags), likelihood="multilabel", **quiet),
        "dense": trustgp.fit(segmenter, (images, masks), likelihood="classification", **quiet),
        "detections": fitted_to(detector),
    }


def examples(name: str) -> str:
    return inspect.getdoc(named(name)) or ""


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_an_example(name):
    assert ">>> " in examples(name)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SLOW])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_example_of_a_public_name_runs(name, names, tmp_path, monkeypatch):
    if name == "trustgp.logs":
        pytest.importorskip("mcap")
        from log_files import record

        from trustgp.logs import JointState

        row = np.zeros(2)
        record(tmp_path / "arm.mcap", [JointState(t, ("a", "b"), row, row, row) for t in range(3)], "json")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("no model")
    (tmp_path / "boxes.json").write_text(json.dumps(COCO))
    Image.new("RGB", (32, 32)).save(tmp_path / "0.png")
    test = doctest.DocTestParser().get_doctest(examples(name), dict(names), name, None, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=sys.stderr.write)
    assert test.examples
    assert runner.failures == 0


@pytest.mark.parametrize("name", ["trustgp.metrics", "trustgp.plots", "trustgp.logs"])
def test_the_example_of_a_module_has_all_its_functions(name):
    module = named(name)
    assert isinstance(module, ModuleType)
    functions = [one for one in module.__all__ if inspect.isfunction(getattr(module, one))]
    missing = [one for one in functions if f"{one}(" not in (module.__doc__ or "")]
    assert missing == []
