"""The toy study, small: on generated rows, as on a machine without data."""

import json
import sys

import pytest
import torch

from trustgp_experiments.core.claim import change, mean_spread, words
from trustgp_experiments.core.toy import NUM_EXPERTS, toy_data
from trustgp_experiments.studies import run_study
from trustgp_experiments.studies.toy import study as toy

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Its folder and its result."""
    out = tmp_path_factory.mktemp("toy")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRUSTGP_DATA", raising=False)
        return out, run_study("toy", out, quick=True, seeds=2)


def test_patchwork_makes_mean_and_largest_jump_smaller_in_every_seed(quick):
    for seed in quick[1].numbers["seeds"]:
        for key in ("mean_jump", "largest_jump"):
            for variant in ("patchwork", "default"):
                assert 1 <= seed[variant][key] < seed["independent"][key]


def test_the_band_is_wider_in_the_gap_and_beyond_the_rows(quick):
    for variant in ("independent", "patchwork"):
        numbers = quick[1].numbers["variants"][variant]
        assert (
            min(numbers[key][0] for key in ("gap_std", "left_std", "right_std")) > 2 * numbers["rows_std"][0]
        )


def test_every_variant_has_the_borders_of_the_one_division(quick):
    for seed in quick[1].numbers["seeds"]:
        counts = {numbers["borders"] for numbers in seed.values()}
        assert len(counts) == 1
        assert counts.pop() >= NUM_EXPERTS - 1
        assert all(len(numbers["jumps"]) == numbers["borders"] for numbers in seed.values())


def test_the_table_shows_mean_and_spread_over_seeds(quick):
    (table,) = quick[1].tables
    place = [column.name for column in table.columns].index("mean jump")
    for row, variant in zip(table.rows, toy.VARIANTS, strict=True):
        values = [seed[variant]["mean_jump"] for seed in quick[1].numbers["seeds"]]
        assert row[place] == pytest.approx([sum(values) / 2, abs(values[0] - values[1]) / 2**0.5])


def test_protocol_and_provenance_say_that_the_rows_are_generated(quick):
    out, result = quick
    assert "generated" in result.protocol[0]
    assert result.provenance["data"] == "snelson_like"
    assert result.provenance["rows"] == 200
    stored = json.loads((out / "toy" / "result.json").read_text())
    assert stored["numbers"] == json.loads(json.dumps(result.numbers))
    assert (out / "toy" / result.figures[0].file).stat().st_size > 20_000


def test_the_same_seed_gives_the_same_numbers(quick, tmp_path, monkeypatch):
    monkeypatch.delenv("TRUSTGP_DATA", raising=False)
    again = run_study("toy", tmp_path, quick=True, seeds=1)
    assert again.numbers["seeds"] == quick[1].numbers["seeds"][:1]


def test_without_matplotlib_nothing_runs_and_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"trustgp\[plots\]"):
        run_study("toy", tmp_path, quick=True)
    assert not (tmp_path / "toy" / "parts").exists()


def test_snelsons_rows_lose_those_in_the_gap(data_root, monkeypatch):
    monkeypatch.setenv("TRUSTGP_DATA", str(data_root))
    data = toy_data()
    assert data.source == "snelson"
    assert len(data.inputs) == len(data.targets) == 148
    low, high = data.gap
    assert not bool(((data.inputs > low) & (data.inputs < high)).any())
    assert "52 of them" in data.about


def test_changes_are_counted_seed_by_seed():
    assert change([2.0, 3.0], [1.0, 2.0]) == "falls in every seed, from 2.50 ± 0.71 to 1.50 ± 0.71"
    assert change([2.0, 3.0], [3.0, 4.0]).startswith("grows in every seed")
    assert change([2.0, 3.0], [1.0, 4.0]).startswith("falls in 1 of 2 seeds")
    assert change([2.0, 3.0], [2.0, 2.5], digits=1) == "falls in 1 of 2 seeds, from 2.5 ± 0.7 to 2.2 ± 0.4"


def test_spread_is_the_standard_deviation_over_seeds():
    values = [1.0, 2.0, 6.0]
    tensor = torch.tensor(values, dtype=torch.float64)
    assert mean_spread(values) == pytest.approx([3.0, float(tensor.std(correction=1))])
    assert words([1.234, 0.056]) == "1.23 ± 0.06"
