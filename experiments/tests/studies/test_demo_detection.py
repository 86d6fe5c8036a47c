"""The demo of detection, as CI runs it."""

import json
import sys

import pytest

from trustgp.cli import main
from trustgp.data.tensor_file import ArtifactError

pytest.importorskip("matplotlib")
pytest.importorskip("PIL")
pytest.importorskip("transformers", reason="the detector needs it: pip install trustgp[detection]")
from trustgp_experiments.demo.detection import DARK
from trustgp_experiments.training import detector_error_bar


def test_the_quick_demo_prints_what_it_writes(tmp_path, capsys):
    assert main(["demo", "--detection", "--quick", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    results = json.loads((tmp_path / "results.json").read_text())
    assert (tmp_path / "detection.png").read_bytes().startswith(b"\x89PNG")
    assert {kind: len(statuses) for kind, statuses in results["verdicts"].items()} == dict.fromkeys(
        ("as in training", "from high up, haze", "an object of another type", DARK), 2
    )
    assert results["verdicts"][DARK] == ["novel", "novel"]
    assert f"calls 2 of 2 pictures novel: {DARK}" in printed
    assert detector_error_bar.COMMAND in printed


def test_the_stored_error_bar_is_the_one_the_demo_describes():
    state = detector_error_bar.load_error_bar().state
    assert len(state.held_pictures) == detector_error_bar.HELD_OUT
    assert state.rows > detector_error_bar.PICTURES  # more than one object in a picture, on average
    assert float(state.threshold.false_alarm) == detector_error_bar.FALSE_ALARM
    assert detector_error_bar.FILE.stat().st_size < 1_000_000


def test_the_error_bar_is_fitted_again_by_one_command(tmp_path, monkeypatch, capsys):
    target = tmp_path / "own.trustgp"
    options = ["--pictures", "16", "--held-out", "20", "--out", str(target)]
    monkeypatch.setattr(sys, "argv", ["detector_error_bar", *options])
    detector_error_bar.main()
    assert str(target) in capsys.readouterr().out
    assert len(detector_error_bar.load_error_bar(target).state.held_pictures) == 20


def test_a_missing_or_damaged_error_bar_says_how_to_make_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="detector_error_bar"):
        detector_error_bar.load_error_bar(tmp_path / "none.trustgp")
    (tmp_path / "cut.trustgp").write_bytes(detector_error_bar.FILE.read_bytes()[:1000])
    with pytest.raises(ArtifactError, match=r"To fit it again.*detector_error_bar"):
        detector_error_bar.load_error_bar(tmp_path / "cut.trustgp")
