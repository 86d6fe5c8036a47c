"""Tables of other packages, of the recordings' folder, and generated."""

import json
import sys

import numpy as np
import pytest
import torch

from trustgp_experiments.datasets.tables import TABLES, encode, load_table, package_file, smooth_rows

HERE = [name for name, source in TABLES.items() if source.origin in ("scikit-learn", "generated")]


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder on the path, in which files of packages can be put; others of that name are hidden."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in ("statsmodels", "vega_datasets"):
        (tmp_path / name).mkdir()
    return tmp_path


def put(folder, file, text):
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("name", HERE)
def test_a_table_is_whole_and_can_be_split(name):
    rows = load_table(name)
    assert rows.inputs.dtype == rows.targets.dtype == torch.float64
    assert rows.inputs.ndim == rows.targets.ndim == 2
    split = rows.split(0)
    parts = torch.cat([split.train, split.validation, split.test])
    assert len(parts.unique()) == len(parts) <= len(rows.inputs)
    assert min(map(len, (split.train, split.validation, split.test))) > 10


@pytest.mark.parametrize("name", ["snelson", "sarcos test", "kinova"])
def test_the_recordings_are_tables_too(name, data_root, monkeypatch):
    monkeypatch.setenv("TRUSTGP_DATA", str(data_root))
    rows = load_table(name)
    assert (rows.recording is None) == (name == "snelson")
    assert len(rows.split(1).test) > 10


def test_text_becomes_a_number_for_each_value_and_gaps_are_left_out(packages):
    assert encode([["1", "2.5"], ["b", "a"]]).tolist() == [[1.0, 0.0, 1.0], [2.5, 1.0, 0.0]]
    text = "invest,value,firm\n1.5,2,GM\n,3,Ford\n2.5,4,Ford\n"
    put(packages, "statsmodels/datasets/grunfeld/grunfeld.csv", text)
    rows = load_table("grunfeld")
    assert rows.inputs.tolist() == [[2.0, 0.0, 1.0], [4.0, 1.0, 0.0]]
    assert rows.targets.tolist() == [[1.5], [2.5]]


def test_dates_become_a_year_and_a_place_on_its_circle(packages):
    put(packages, "statsmodels/datasets/co2/co2.csv", "date,co2\n19580101,316.1\n19580108,\n19590702,317.3\n")
    rows = load_table("co2")
    assert rows.targets[:, 0].tolist() == [316.1, 317.3]
    assert rows.inputs[0].tolist() == [1958.0, 0.0, 1.0]
    angle = 2 * np.pi * 182 / 365.25
    np.testing.assert_allclose(rows.inputs[1], [1959 + 182 / 365.25, np.sin(angle), np.cos(angle)])


def test_cars_without_a_number_are_left_out(packages):
    car = {"Name": "a", "Miles_per_Gallon": 18, "Cylinders": 8, "Displacement": 307, "Horsepower": 130}
    car |= {"Weight_in_lbs": 3504, "Acceleration": 12, "Year": "1970-01-01", "Origin": "USA"}
    cars = [car, {**car, "Horsepower": None}, {**car, "Origin": "Japan", "Year": "1982-01-01"}]
    put(packages, "vega_datasets/_data/cars.json", json.dumps(cars))
    rows = load_table("cars")
    assert rows.inputs.tolist() == [[8, 307, 130, 3504, 12, 1970, 0, 1], [8, 307, 130, 3504, 12, 1982, 1, 0]]


def test_what_is_missing_is_named_with_the_way_to_get_it(packages):
    for package in ("statsmodels", "nowhere_at_all"):
        with pytest.raises(FileNotFoundError, match=rf'{package}/no.csv .* pip install "trustgp\[tables\]"'):
            package_file(package, "no.csv")
    with pytest.raises(ValueError, match="choose one of snelson"):
        load_table("no such table")
    put(packages, "statsmodels/datasets/engel/engel.csv", "income,foodexp\n1,nan\n2,3\n")
    with pytest.raises(ValueError, match="not finite"):
        load_table("engel")


def test_the_noise_grows_with_the_first_input():
    rows = smooth_rows(40_000, tails=False)
    x = rows.inputs.numpy()
    clean = np.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + np.exp(-4 * x[:, 3] ** 2)
    noise = rows.targets[:, 0].numpy() - clean
    for low, high in ((-1.0, -0.9), (0.9, 1.0)):
        inside = (x[:, 0] > low) & (x[:, 0] < high)
        expected = np.sqrt(np.mean((0.05 + 0.1 * (1 + x[inside, 0]) ** 2) ** 2))
        assert noise[inside].std() == pytest.approx(expected, rel=0.05)
