"""The commands `trustgp demo`, `study` and `report`: what they print, and how they fail."""

import signal
from pathlib import Path

import pytest
import torch
from reliability.helpers import listing
from rich.console import Console

from trustgp.cli import main
from trustgp_experiments import studies
from trustgp_experiments.core import registry
from trustgp_experiments.core.result import Column, Result, Table, threads
from trustgp_experiments.demo import run as demo


def test_wrong_arguments_are_explained_with_status_2(capsys):
    wrong = ["demo --part legs", "demo --seed x", "demo --seed -1", f"demo --seed {2**40}", "study"]
    wrong += ["study astrology", "study toy --seeds 0", "study toy --seeds x", "report", "report a b"]
    for arguments in wrong:
        with pytest.raises(SystemExit) as stop:
            main(arguments.split())
        assert stop.value.code == 2, arguments
        assert "trustgp" in capsys.readouterr().err


def test_an_out_folder_that_is_a_file_is_one_line(tmp_path, error_line):
    (tmp_path / "file").write_text("")
    assert "file" in error_line("demo", "--out", tmp_path / "file")


def test_report_prints_where_the_page_is_and_escapes_its_name(tmp_path, capsys):
    folder = tmp_path / "[red]a\x1b[31m:skull:"
    Result("toy", "Is it so?", ["Two rows."]).write(folder / "toy")
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"Report: {tmp_path}/[red]a\\x1b[31m:skull:/report.html\n"
    assert main(["report", str(folder), "--out", str(tmp_path / "new" / "a.html")]) == 0
    assert (tmp_path / "new" / "a.html").read_bytes() == (folder / "report.html").read_bytes()


def test_a_report_of_no_results_is_one_line(tmp_path, error_line):
    assert "No such file" in error_line("report", tmp_path / "none")
    assert "holds no results" in error_line("report", tmp_path)
    (tmp_path / "file").write_text("")
    assert "Not a directory" in error_line("report", tmp_path / "file")
    Result("toy", "Is it so?", ["Two rows."]).write(tmp_path / "toy")
    assert "file" in error_line("report", tmp_path, "--out", tmp_path / "file" / "a.html")
    for text in ("", "{", "[]", '{"tables": [], "figures": []}', '{"nll": NaN}'):
        (tmp_path / "toy" / "result.json").write_text(text)
        assert "result.json" in error_line("report", tmp_path)
    assert not (tmp_path / "report.html").exists()


@pytest.fixture
def studied(monkeypatch) -> list:
    """Which studies were run; they answer at once."""
    calls = []

    def answer(name, out, **setting):
        calls.append((name, out, {key: setting[key] for key in ("seeds", "quick", "device")}))
        table = Table("NLL", [Column("method", -1), Column("sarcos", 2, "low")], [["ours", -1.25]])
        return Result(name, "Is it so?", ["Two rows."], [table], findings=["It is so."])

    monkeypatch.setattr(studies, "run_study", answer)
    return calls


def test_study_prints_the_tables_the_findings_and_where_the_numbers_are(studied, tmp_path, capsys):
    assert main(["study", "toy"]) == 0
    shown = capsys.readouterr().out
    for text in ("-1.25", "* It is so.", f"All numbers: {Path('results') / 'toy'}"):
        assert text in shown
    assert main(["study", "toy", "scale", "--seeds", "2", "--out", str(tmp_path)]) == 0
    assert str(tmp_path / "scale") in capsys.readouterr().out
    setting = {"seeds": 5, "quick": False, "device": "cpu"}
    expected = [("toy", Path("results"), setting)]
    expected += [(name, tmp_path, {**setting, "seeds": 2}) for name in ("toy", "scale")]
    assert studied == expected


def test_all_quick_studies_have_a_folder_of_their_own(studied, capsys):
    assert main(["study", "all", "--quick"]) == 0
    setting = {"seeds": 1, "quick": True, "device": "cpu"}
    assert studied == [(name, Path("results-quick"), setting) for name in studies.STUDIES]
    assert "results-quick" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (FileNotFoundError(2, "No such file or directory", "sarcos.npz"), 2, "sarcos.npz: No such file"),
        (ImportError('this needs laplace: pip install "x[y]"'), 1, 'this needs laplace: pip install "x[y]"'),
    ],
)
def test_a_study_without_its_data_or_an_optional_package_is_one_line(
    error, status, line, monkeypatch, error_line
):
    def missing(*_, **__):
        raise error

    monkeypatch.setattr(studies, "run_study", missing)
    assert line in error_line("study", "toy", status=status)


@pytest.mark.parametrize(("device", "line"), [("cuda", "no CUDA"), ("tpu", "'cpu' and 'cuda' are allowed")])
def test_a_device_that_is_absent_or_unknown_is_one_line(device, line, monkeypatch, tmp_path, error_line):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert line in error_line("study", "toy", "--device", device, "--out", tmp_path / "new")


def test_ctrl_c_in_a_demo_leaves_no_file_and_gives_threads_back(
    interruptible, monkeypatch, tmp_path, error_line
):
    before, counts = torch.get_num_threads(), []

    def work(*_):
        with threads(1):
            counts.append(torch.get_num_threads())
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(demo, "_toy", work)
    assert error_line("demo", "--out", tmp_path, status=130).startswith("trustgp: stopped")
    assert counts == [1]
    assert torch.get_num_threads() == before
    assert listing(tmp_path) == []
    (tmp_path / "results.json").write_text("before")
    monkeypatch.setattr("os.fsync", lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        demo.write_results(tmp_path, {}, 0.0, Console(quiet=True))
    assert (tmp_path / "results.json").read_text() == "before"
    assert listing(tmp_path) == ["results.json"]


def test_missing_packages_are_named_at_once_with_their_commands(monkeypatch):
    missing = {"matplotlib", "PIL", "laplace"}
    monkeypatch.setattr(registry, "find_spec", lambda name: None if name in missing else object())
    with pytest.raises(ImportError) as caught:
        registry.require_extras("The demo", ["plots", "detection"])
    assert str(caught.value).startswith("The demo needs matplotlib, PIL,")
    assert 'pip install "trustgp[plots,detection]"' in str(caught.value)
    assert "transformers" not in str(caught.value)
    with pytest.raises(ImportError, match="then pip install --no-deps laplace-torch"):
        registry.require_extras("The study transfer", ["peers"])
    missing.clear()
    registry.require_extras("The demo", registry.MODULES)
