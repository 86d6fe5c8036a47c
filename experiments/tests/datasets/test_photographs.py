"""Photographs with boxes, read from small folders."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch
from PIL import Image

from trustgp_experiments.datasets import scenes
from trustgp_experiments.datasets.scenes import load_photographs


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "detection_bccd"
    (folder / "images").mkdir(parents=True)
    entries = []
    for name, boxes in {
        "a": [["RBC", 0, 0, 20, 30], ["WBC", 10, 10, 50, 40]],
        "b": [["Platelets", 5, 5, 5, 9], ["RBC", 30, 20, 90, 60]],
    }.items():
        pixels = np.zeros((40, 60, 3), dtype=np.uint8)
        pixels[:, 30:] = 200
        Image.fromarray(pixels).save(folder / "images" / f"{name}.jpg", quality=95)
        entries.append({"file": f"{name}.jpg", "w": 60, "h": 40, "boxes": boxes})
    (folder / "annotations.json").write_text(json.dumps(entries))
    for part, names in {"train": "a\n", "val": "b\n", "trainval": "a\nb\n", "test": "b\na\n"}.items():
        (folder / f"{part}.txt").write_text(names)
    return tmp_path


def test_pictures_come_in_the_order_of_the_list_at_one_size_with_their_boxes(root, monkeypatch):
    monkeypatch.setattr(scenes, "SIZE", (20, 30))
    test = load_photographs("bccd", "test", root)
    assert test.images.shape == (2, 3, 20, 30)
    assert test.images.dtype == torch.uint8
    assert test.boxes[1].tolist() == [[0, 0, 10, 15], [5, 5, 25, 20]]
    assert test.labels[1].tolist() == [0, 1]
    assert int(test.images[0, :, :, 20:].float().mean()) > 180
    # boxes are cut at the edge, and empty ones are dropped
    assert load_photographs("bccd", "val", root).boxes[0].tolist() == [[15, 10, 30, 20]]


def test_unknown_names_and_damaged_folders_are_refused(root):
    for name, part, match in (("cells", "train", "name='cells'"), ("bccd", "all", "part='all'; allowed are")):
        with pytest.raises(ValueError, match=match):
            load_photographs(name, part, root)
    folder = root / "detection_bccd"
    (folder / "images" / "a.jpg").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"a\.jpg cannot be read"):
        load_photographs("bccd", "train", root)
    (folder / "train.txt").write_text("c\n")
    with pytest.raises(ValueError, match=r"no list of all pictures \('c\.jpg'\)"):
        load_photographs("bccd", "train", root)
    (folder / "annotations.json").write_text("{")
    with pytest.raises(ValueError, match="is no list of all pictures"):
        load_photographs("bccd", "train", root)
    with pytest.raises(FileNotFoundError, match="raccoon"):
        load_photographs("raccoon", "all", root)


@pytest.mark.skipif("TRUSTGP_DATA" not in os.environ, reason="TRUSTGP_DATA names no folder of recordings")
def test_the_real_cells_are_all_there():
    parts = {part: load_photographs("bccd", part) for part in ("train", "val", "test")}
    assert {part: len(each) for part, each in parts.items()} == {"train": 205, "val": 87, "test": 72}
    assert sum(sum(map(len, each.boxes)) for each in parts.values()) == 4886
    assert len(load_photographs("raccoon", "all")) == 200
