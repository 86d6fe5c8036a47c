"""Tables of UCI, of the recordings' folder, and generated."""

import gzip

import numpy as np
import pytest
import torch

from trustgp_experiments.datasets.tables import TABLES, load_table, smooth_rows

HERE = [name for name, source in TABLES.items() if source.origin == "generated"]


@pytest.mark.parametrize("name", [*HERE, "sarcos test", "kinova", "servo", "autompg"])
def test_a_table_is_whole_and_can_be_split(name, data_root, monkeypatch):
    monkeypatch.setenv("TRUSTGP_DATA", str(data_root))
    rows = load_table(name)
    assert rows.inputs.dtype == rows.targets.dtype == torch.float64
    assert rows.inputs.ndim == rows.targets.ndim == 2
    split = rows.split(1)
    parts = torch.cat([split.train, split.validation, split.test])
    assert len(parts.unique()) == len(parts) <= len(rows.inputs)
    assert min(map(len, (split.train, split.validation, split.test))) > 10


def put(folder, name, text):
    (folder / "uci").mkdir(exist_ok=True)
    (folder / "uci" / name).write_bytes(gzip.compress(text.encode()))


def test_public_splits_test_the_rows_of_their_mask_and_validate_on_others(tmp_path, monkeypatch):
    monkeypatch.setenv("TRUSTGP_DATA", str(tmp_path))
    put(tmp_path, "servo.data.csv.gz", "".join(f"{i},{2 * i},{3 * i}\n" for i in range(20)))
    put(tmp_path, "servo.test_mask.csv.gz", "".join(f"{int(i < 2)},{int(i > 17)}\n" for i in range(20)))
    rows = load_table("servo")
    assert rows.inputs[3].tolist() == [3.0, 6.0]
    assert rows.targets[3].tolist() == [9.0]
    for seed, tested in ((0, [0, 1]), (1, [18, 19]), (2, [0, 1])):
        split = rows.split(seed)
        assert split.test.tolist() == tested
        assert len(split.validation) == 2
        assert sorted([*split.train.tolist(), *split.validation.tolist(), *tested]) == list(range(20))
    put(tmp_path, "servo.test_mask.csv.gz", "1,0\n")
    with pytest.raises(ValueError, match="splits of 1"):
        load_table("servo")
    put(tmp_path, "servo.data.csv.gz", "nan,1\n")
    with pytest.raises(ValueError, match="not finite"):
        load_table("servo")


def test_what_is_missing_is_named_with_the_way_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TRUSTGP_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="uci_datasets"):
        load_table("pol")
    with pytest.raises(ValueError, match="choose one of servo"):
        load_table("no such table")


def test_the_noise_grows_with_the_first_input():
    rows = smooth_rows(40_000, tails=False)
    x = rows.inputs.numpy()
    clean = np.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + np.exp(-4 * x[:, 3] ** 2)
    noise = rows.targets[:, 0].numpy() - clean
    for low, high in ((-1.0, -0.9), (0.9, 1.0)):
        inside = (x[:, 0] > low) & (x[:, 0] < high)
        expected = np.sqrt(np.mean((0.05 + 0.1 * (1 + x[inside, 0]) ** 2) ** 2))
        assert noise[inside].std() == pytest.approx(expected, rel=0.05)
