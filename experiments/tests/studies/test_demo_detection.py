"""The demo of detection, as CI runs it."""

import json
import sys

import pytest
import torch

from trustgp.cli import main
from trustgp.data.tensor_file import ArtifactError
from trustgp.detection import Detections, Things

pytest.importorskip("matplotlib")
pytest.importorskip("PIL")
from trustgp_experiments.demo import detection as demo
from trustgp_experiments.demo.detection import GROUPS, DemoSize, SeenPictures, counting, summarise
from trustgp_experiments.training import detector_error_bar


def found(boxes: list[list[float]], novelty: list[float], confidence: list[float]) -> Detections:
    k = len(boxes)
    return Detections(
        torch.tensor(boxes).reshape(k, 4),
        torch.ones(k, 4),
        torch.zeros(k, dtype=torch.int64),
        torch.tensor(confidence),
        torch.full((k, 3), 1 / 3),
        torch.tensor(novelty),
        _threshold=0.25,
        picture_novelty=max(novelty, default=0.0),
        _picture_threshold=0.35,
    )


def test_the_quick_demo_prints_what_it_writes(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers", reason="the detector needs it: pip install trustgp[detection]")
    monkeypatch.setattr(demo, "QUICK", DemoSize(pictures=4, frames=9))
    assert main(["demo", "--detection", "--quick", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results["groups"]) == list(GROUPS)
    for key, group in results["groups"].items():
        assert GROUPS[key] in printed
        assert group["detections"] > 0
        assert f"{group['novelty']:.3f}" in printed
        assert f"{group['std']:.2f} px" in printed
        assert 0.0 <= group["marked"] <= 1.0
        assert f"{100 * group['marked']:.0f} %" in printed
    assert results["groups"]["known"]["auroc_novelty"] is None
    assert f"{results['groups']['novel']['auroc_novelty']:.3f}" in printed
    assert str(tmp_path / "detection.png") in printed
    assert (tmp_path / "detection.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "flight.gif").read_bytes().startswith(b"GIF8")
    assert len(results["flight"]) == 9
    assert results["flight"][1] == "novel"  # the camera is blind
    assert detector_error_bar.COMMAND in printed


def test_a_detection_counts_where_it_is_of_the_group_s_things():
    known, novel, nothing = [0.0, 0, 20, 20], [40.0, 40, 60, 60], [80.0, 0, 100, 20]
    one = found([known, novel, nothing], [0.1, 0.2, 0.3], [0.9, 0.8, 0.7])
    empty = found([], [], [])
    things = [Things(torch.tensor([known, novel]), torch.tensor([1, 3]))] * 2
    assert [c.tolist() for c in counting("known", [one, empty], things)] == [[True, False, False], []]
    assert [c.tolist() for c in counting("novel", [one, empty], things)] == [[False, True, False], []]
    assert [c.tolist() for c in counting("flight", [one, empty], things)] == [[True] * 3, []]


def test_groups_are_told_from_known_things_by_both_scores():
    box = [0.0, 0, 20, 20]
    every = torch.ones(2, dtype=torch.bool)
    near, far = found([box] * 2, [0.1, 0.3], [0.9, 0.8]), found([box] * 2, [0.2, 0.4], [0.5, 0.6])
    image, none = torch.zeros(1, 3, 8, 8), torch.zeros(2, dtype=torch.bool)
    seen = {"known": SeenPictures(image, [near], [every]), "novel": SeenPictures(image, [far], [every])}
    groups = summarise({**seen, "flight": SeenPictures(image, [far], [none])})
    assert groups["novel"]["auroc_novelty"] == 0.75
    assert groups["novel"]["auroc_confidence"] == 1.0
    assert groups["flight"]["detections"] == 0
    assert groups["flight"]["novelty"] is groups["flight"]["auroc_novelty"] is None
    assert [groups[key]["marked"] for key in groups] == [0.5, 0.5, None]
    assert [groups[key]["pictures_marked"] for key in groups] == [0.0, 1.0, 1.0]


def test_the_error_bar_of_the_package_is_the_one_that_the_demo_speaks_of():
    pytest.importorskip("transformers", reason="the detector needs it: pip install trustgp[detection]")
    state = detector_error_bar.load_error_bar().state
    assert len(state.held_pictures) == detector_error_bar.HELD
    assert state.rows > detector_error_bar.PICTURES  # more than one thing in a picture, on average
    assert float(state.threshold.false_alarm) == detector_error_bar.FALSE_ALARM
    assert detector_error_bar.FILE.stat().st_size < 1_000_000


def test_the_error_bar_is_fitted_again_by_one_command(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers", reason="the detector needs it: pip install trustgp[detection]")
    target = tmp_path / "own.trustgp"
    options = ["--pictures", "16", "--held", "20", "--out", str(target)]
    monkeypatch.setattr(sys, "argv", ["detector_error_bar", *options])
    detector_error_bar.main()
    assert str(target) in capsys.readouterr().out
    assert len(detector_error_bar.load_error_bar(target).state.held_pictures) == 20


def test_a_missing_or_damaged_error_bar_says_how_to_make_it(tmp_path):
    pytest.importorskip("transformers", reason="the detector needs it: pip install trustgp[detection]")
    with pytest.raises(FileNotFoundError, match="detector_error_bar"):
        detector_error_bar.load_error_bar(tmp_path / "none.trustgp")
    (tmp_path / "cut.trustgp").write_bytes(detector_error_bar.FILE.read_bytes()[:1000])
    with pytest.raises(ArtifactError, match=r"To make it again here.*detector_error_bar"):
        detector_error_bar.load_error_bar(tmp_path / "cut.trustgp")


def test_all_missing_extras_are_named_at_once_with_code_1(tmp_path, monkeypatch, capsys):
    for name in ("transformers", "PIL", "matplotlib"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["demo", "--detection", "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().err
    assert "needs matplotlib, transformers, PIL" in told
    assert 'pip install "trustgp[plots,detection]"' in told
    assert not (tmp_path / "out").exists()


def test_one_part_of_the_other_demo_is_not_asked_for_with_this_one(capsys):
    with pytest.raises(SystemExit):
        main(["demo", "--detection", "--part", "toy"])
    assert "not allowed with" in capsys.readouterr().err
