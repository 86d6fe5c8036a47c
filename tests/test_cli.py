"""The command line: what it prints, and how it fails."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from reliability.helpers import listing, started

import trustgp
from trustgp.cli import _Console, main
from trustgp.state.summary import expert_table, summarise
from trustgp_experiments import studies
from trustgp_experiments.core.result import Column, Result, Table, alone
from trustgp_experiments.demo import run as demo
from trustgp_experiments.peers import mlp


@pytest.fixture(scope="module")
def model():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(120, 2, generator=generator)
    rows = inputs, torch.stack([inputs.sum(1).sin(), inputs.prod(1)], dim=1)
    return trustgp.fit(mlp([2, 8, 2]).eval(), rows, num_experts=4, progress=False)


@pytest.fixture
def saved(model, tmp_path):
    path = tmp_path / "arm.trustgp"
    model.save(path)
    return path


def test_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"trustgp {trustgp.__version__}\n"


def test_the_installed_module_runs():
    command = [sys.executable, "-m", "trustgp.cli", "--version"]
    assert trustgp.__version__ in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_inspect_shows_every_expert_and_where_the_model_comes_from(model, saved, capsys):
    assert main(["inspect", str(saved)]) == 0
    shown = capsys.readouterr().out
    for text in ("JacobianRows(", "Regression()", trustgp.__version__, "120", "2, pseudo"):
        assert text in shown
    assert f"{float(model.bound):.3f}" in shown
    for expert in model.mixtures[0].experts:
        assert f"{int(expert.own)}" in shown
        assert f"{float(expert.scale.log().mean().exp()):.3g}" in shown


def test_the_lines_of_the_experts_are_their_own_numbers(model, saved):
    table = expert_table(summarise(saved))
    columns = {str(column.header): list(column.cells) for column in table.columns}
    mixture = model.mixtures[0]
    assert columns["own rows"] == [str(int(e.own)) for e in mixture.experts]
    assert columns["lent rows"] == [str(len(e.rows) - int(e.own)) for e in mixture.experts]
    assert columns["neighbours"] == [" ".join(map(str, near)) or "-" for near in mixture.neighbours]
    assert columns["kappa"] == [f"{float(e.kappa.log().mean().exp()):.3g}" for e in mixture.experts]
    assert columns["state"] == ["ok"] * len(mixture.experts)


def test_only_the_largest_experts_are_shown_where_there_are_many(model, saved):
    table = expert_table(summarise(saved), most=2)
    sizes = sorted((int(e.own) + len(e.rows) - int(e.own) for e in model.mixtures[0].experts), reverse=True)
    columns = {str(column.header): list(column.cells) for column in table.columns}
    shown = [int(a) + int(b) for a, b in zip(columns["own rows"], columns["lent rows"], strict=True)]
    assert sorted(shown, reverse=True) == sizes[:2]
    assert "--all" in str(table.title)
    assert expert_table(summarise(saved), most=None).row_count == len(sizes)


def test_inspect_of_separate_outputs_names_kernel_and_expert(tmp_path, capsys):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 2, generator=generator), torch.randn(40, 2, generator=generator)
    fitted = trustgp.fit(mlp([2, 4, 2]).eval(), rows, num_experts=2, outputs="separate", progress=False)
    fitted.save(tmp_path / "a.trustgp")
    assert main(["inspect", str(tmp_path / "a.trustgp"), "--all"]) == 0
    assert "1.0" in capsys.readouterr().out


def failing(arguments, capsys) -> str:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("trustgp: ")
    return captured.err


def test_a_missing_file_is_one_line(tmp_path, capsys):
    assert "No such file" in failing(["inspect", str(tmp_path / "none.trustgp")], capsys)


def test_a_folder_is_one_line(tmp_path, capsys):
    assert "directory" in failing(["inspect", str(tmp_path)], capsys)


@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign", "empty"])
def test_a_damaged_file_is_one_line(saved, damage, capsys):
    whole = saved.read_bytes()
    middle = len(whole) - 100
    saved.write_bytes(
        {
            "cut": whole[: len(whole) // 2],
            "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "foreign": b"not a model at all, but long enough to be read",
            "empty": b"",
        }[damage]
    )
    assert saved.name in failing(["inspect", str(saved)], capsys)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["demo", "--part", "legs"],
        ["demo", "--seed", "x"],
        ["demo", "--seed", "-1"],
        ["demo", "--seed", str(2**40)],
        ["study"],
        ["study", "astrology"],
        ["study", "toy", "--seeds", "0"],
        ["study", "toy", "--seeds", "x"],
        ["report"],
    ],
)
def test_wrong_arguments_are_explained_with_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "trustgp" in capsys.readouterr().err


def test_an_out_folder_that_is_a_file_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert "file" in failing(["demo", "--out", str(tmp_path / "file")], capsys)


def a_result(folder) -> None:
    Result("toy", "Is it so?", ["Two rows."]).write(folder / "toy")


def test_report_says_where_the_page_is(tmp_path, capsys):
    a_result(tmp_path)
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"Report: {tmp_path / 'report.html'}\n"
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "new" / "a.html")]) == 0
    assert (tmp_path / "new" / "a.html").read_bytes() == (tmp_path / "report.html").read_bytes()


def test_a_report_of_a_missing_folder_is_one_line(tmp_path, capsys):
    assert "No such file" in failing(["report", str(tmp_path / "none")], capsys)


def test_a_report_of_a_file_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert "Not a directory" in failing(["report", str(tmp_path / "file")], capsys)


def test_a_report_of_an_empty_folder_is_one_line(tmp_path, capsys):
    assert "holds no results" in failing(["report", str(tmp_path)], capsys)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"tables": [], "figures": []}', '{"nll": NaN}'])
def test_a_report_of_a_damaged_result_is_one_line(tmp_path, text, capsys):
    a_result(tmp_path)
    (tmp_path / "toy" / "result.json").write_text(text)
    assert "result.json" in failing(["report", str(tmp_path)], capsys)
    assert not (tmp_path / "report.html").exists()


def test_a_page_that_cannot_be_written_is_one_line(tmp_path, capsys):
    a_result(tmp_path)
    (tmp_path / "file").write_text("")
    assert "file" in failing(["report", str(tmp_path), "--out", str(tmp_path / "file" / "a.html")], capsys)


@pytest.fixture
def asked(monkeypatch) -> list:
    """What studies were asked for; they answer at once."""
    calls = []

    def answer(name, out, **setting):
        calls.append((name, out, {key: setting[key] for key in ("seeds", "quick", "device")}))
        table = Table("NLL", [Column("method", -1), Column("sarcos", 2, "low")], [["ours", -1.25]])
        return Result(name, "Is it so?", ["Two rows."], [table], findings=["It is so."])

    monkeypatch.setattr(studies, "run_study", answer)
    return calls


def test_study_prints_the_tables_the_findings_and_where_the_numbers_are(asked, capsys):
    assert main(["study", "toy"]) == 0
    shown = capsys.readouterr().out
    for text in ("-1.25", "* It is so.", f"All numbers: {Path('results') / 'toy'}"):
        assert text in shown
    assert asked == [("toy", Path("results"), {"seeds": 5, "quick": False, "device": "cpu"})]


def test_study_hands_on_what_it_is_asked(asked, tmp_path, capsys):
    assert main(["study", "toy", "bound", "--seeds", "2", "--out", str(tmp_path)]) == 0
    assert [call[:2] for call in asked] == [("toy", tmp_path), ("bound", tmp_path)]
    assert all(call[2]["seeds"] == 2 for call in asked)
    assert str(tmp_path / "bound") in capsys.readouterr().out


def test_all_quick_studies_have_a_folder_of_their_own(asked, capsys):
    assert main(["study", "all", "--quick"]) == 0
    assert [call[0] for call in asked] == list(studies.STUDIES)
    assert {call[1] for call in asked} == {Path("results-quick")}
    assert all(call[2]["quick"] for call in asked)
    assert "results-quick" in capsys.readouterr().out


def test_a_study_that_is_asked_for_wrongly_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    arguments = ["study", "toy", "--device", "cuda", "--out", str(tmp_path / "new")]
    assert "no CUDA device" in failing(arguments, capsys)


def test_a_study_that_finds_no_recordings_is_one_line(monkeypatch, capsys):
    def missing(*_, **__):
        raise FileNotFoundError(2, "No such file or directory", "recordings/sarcos.npz")

    monkeypatch.setattr(studies, "run_study", missing)
    assert "recordings/sarcos.npz: No such file" in failing(["study", "toy"], capsys)


def test_a_study_without_an_optional_package_is_one_line_with_code_1(monkeypatch, capsys):
    def missing(*_, **__):
        raise ImportError('this needs laplace-torch: pip install "trustgp[baselines]"')

    monkeypatch.setattr(studies, "run_study", missing)
    assert main(["study", "toy"]) == 1
    assert capsys.readouterr().err == 'trustgp: this needs laplace-torch: pip install "trustgp[baselines]"\n'


def test_a_device_that_is_unknown_is_one_line(tmp_path, capsys):
    arguments = ["study", "toy", "--device", "tpu", "--out", str(tmp_path / "new")]
    assert "'cpu' and 'cuda' are allowed" in failing(arguments, capsys)


def interrupted(arguments, capsys) -> None:
    assert main(arguments) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "trustgp: stopped; what was finished is kept, nothing is half-written.\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture(autouse=True)
def heard():
    """Ctrl-C is heard, also where these tests run in the background, which a shell makes deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def stopping(monkeypatch):
    """A demo whose first part does something else."""

    def patch(work):
        monkeypatch.setitem(demo._RUN, "toy", lambda *_: work())

    return patch


def test_ctrl_c_is_one_line_with_code_130(stopping, tmp_path, capsys):
    stopping(lambda: alone(lambda: signal.raise_signal(signal.SIGINT)))
    interrupted(["demo", "--out", str(tmp_path)], capsys)
    assert listing(tmp_path) == []


def test_ctrl_c_that_becomes_another_error_is_still_ctrl_c(stopping, tmp_path, capsys):
    """As it does in packages that are being imported."""

    def work():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as stop:
            raise RuntimeError("half imported") from stop

    stopping(work)
    interrupted(["demo", "--out", str(tmp_path)], capsys)


def test_any_other_error_shows_itself(stopping, tmp_path):
    def work():
        raise RuntimeError("a bug")

    stopping(work)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["demo", "--out", str(tmp_path)])


STOPPED = """
import signal, sys
from trustgp.cli import main
from trustgp_experiments.demo import run
def work(**_):
    print("begun", flush=True)
    while True:
        signal.pause()
run.run_toy = work
raise SystemExit(main(["demo", "--out", sys.argv[1]]))
"""


@pytest.mark.skipif(os.name != "posix", reason="signals are sent otherwise on this system")
def test_ctrl_c_ends_a_process_with_one_line(tmp_path):
    process = started(STOPPED, tmp_path)
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err.count("\n")) == (130, "", 1)
    assert err.startswith("trustgp: stopped")
    assert listing(tmp_path) == []


def test_work_alone_has_one_thread_and_gives_the_others_back():
    before = torch.get_num_threads()
    assert alone(torch.get_num_threads) == 1
    with pytest.raises(KeyboardInterrupt):
        alone(lambda: signal.raise_signal(signal.SIGINT))
    assert torch.get_num_threads() == before


def test_results_that_are_interrupted_leave_what_was_there(tmp_path, monkeypatch):
    (tmp_path / "results.json").write_text("before")
    monkeypatch.setattr("os.fsync", lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        demo.write_results(tmp_path, {}, 0.0, _Console(quiet=True))
    assert (tmp_path / "results.json").read_text() == "before"
    assert listing(tmp_path) == ["results.json"]


@pytest.mark.skipif(os.name != "posix", reason="a closed pipe is another error on this system")
def test_an_output_that_is_closed_is_quiet():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "trustgp.cli", "--help"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=buffered, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_table_for_a_closed_output_reaches_the_command_line_as_such():
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=1) as file:
        with pytest.raises(BrokenPipeError):
            _Console(file=file).print("a line")
        os.dup2(nowhere := os.open(os.devnull, os.O_WRONLY), writing)  # what is flushed at its end
        os.close(nowhere)


def test_names_are_shown_and_not_obeyed(tmp_path, capsys):
    folder = tmp_path / "[red]a\x1b[31m:skull:"
    folder.mkdir()
    a_result(folder)
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"Report: {tmp_path}/[red]a\\x1b[31m:skull:/report.html\n"
    with pytest.raises(SystemExit):
        main(["inspect", "one", "two\x1b[31m"])
    assert "two\\x1b[31m" in capsys.readouterr().err


def test_a_name_that_is_no_text_is_one_line(capsys):
    assert "\\udcff: No such file" in failing(["inspect", os.fsdecode(b"none-\xff")], capsys)
