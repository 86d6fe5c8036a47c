"""The command line: what it prints, how it fails, and commands of other distributions."""

import os
import signal
import subprocess
import sys
from importlib.metadata import EntryPoints

import pytest
from fitted_zoo import names

import trustgp
from trustgp import cli
from trustgp.cli import _Console, main
from trustgp.state import summary


@pytest.fixture(scope="module")
def model(fitted_zoo):
    return fitted_zoo["regression-default"].model


@pytest.fixture
def saved(model, tmp_path):
    path = tmp_path / "arm.trustgp"
    model.save(path)
    return path


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"trustgp {trustgp.__version__}\n"


def test_help_imports_neither_torch_nor_the_studies():
    code = "import sys; from trustgp.cli import main\ntry: main(['--help'])\n"
    code += "finally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("inspect", "demo", "study", "report"):
        assert f"\n    {command}" in done.stdout


def test_inspect_shows_every_expert_and_where_the_model_comes_from(model, saved, capsys):
    assert main(["inspect", str(saved)]) == 0
    shown = capsys.readouterr().out
    for text in ("JacobianRows(", "Regression()", trustgp.__version__, "120", "2, pseudo"):
        assert text in shown
    assert f"{float(model.bound):.3f}" in shown
    for expert in model.mixtures[0].experts:
        assert f"{int(expert.own)}" in shown
        assert f"{float(expert.scale.log().mean().exp()):.3g}" in shown


def test_the_table_of_the_experts_shows_their_numbers_and_of_many_the_largest(model, saved, monkeypatch):
    mixture = model.mixtures[0]
    columns = {str(column.header): list(column.cells) for column in summary.inspect_tables(saved)[2].columns}
    assert columns["own rows"] == [str(int(e.own)) for e in mixture.experts]
    assert columns["lent rows"] == [str(len(e.rows) - int(e.own)) for e in mixture.experts]
    assert columns["neighbours"] == [" ".join(map(str, near)) or "-" for near in mixture.neighbours]
    assert columns["kappa"] == [f"{float(e.kappa.log().mean().exp()):.3g}" for e in mixture.experts]
    assert columns["state"] == ["ok"] * len(mixture.experts)
    monkeypatch.setattr(summary, "MAX_EXPERTS_SHOWN", 2)
    table = summary.inspect_tables(saved)[2]
    columns = {str(column.header): list(column.cells) for column in table.columns}
    shown = [int(a) + int(b) for a, b in zip(columns["own rows"], columns["lent rows"], strict=True)]
    assert sorted(shown) == sorted(len(e.rows) for e in mixture.experts)[-2:]
    assert "--all" in str(table.title)
    assert summary.inspect_tables(saved, every=True)[2].row_count == len(mixture.experts)


def test_inspect_of_separate_outputs_names_kernel_and_expert(fitted_zoo, tmp_path, capsys):
    fitted_zoo[names("regression", "separate")[0]].model.save(tmp_path / "a.trustgp")
    assert main(["inspect", str(tmp_path / "a.trustgp"), "--all"]) == 0
    assert "1.0" in capsys.readouterr().out


def test_a_file_that_cannot_be_read_is_one_line(saved, tmp_path, error_line):
    assert "No such file" in error_line("inspect", tmp_path / "none.trustgp")
    assert "directory" in error_line("inspect", tmp_path)
    assert "\\udcff: No such file" in error_line("inspect", os.fsdecode(b"none-\xff"))
    whole = saved.read_bytes()
    flipped = bytearray(whole)
    flipped[-100] ^= 1
    for damaged in (whole[: len(whole) // 2], flipped, b"not a model, but long enough to be read", b""):
        saved.write_bytes(damaged)
        assert saved.name in error_line("inspect", saved)


@pytest.mark.parametrize("arguments", [[], ["fly"], ["inspect"], ["inspect", "one", "two\x1b[31m"]])
def test_wrong_arguments_are_explained_with_status_2_and_escaped(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert "trustgp" in message
    assert "\x1b" not in message


class Plugin:
    """A distribution with one command `work`, which calls a function."""

    name = "work"

    def __init__(self, work) -> None:
        self.work = work

    def load(self):
        def add(commands):
            parser = commands.add_parser("work", help="works")
            parser.set_defaults(run=lambda options: self.work(), user_errors=lambda: (LookupError,))

        return add


@pytest.fixture
def install(monkeypatch):
    """Replaces what is installed by plugins; none: the library alone."""

    def install(*plugins):
        monkeypatch.setattr(cli, "entry_points", lambda group: EntryPoints(plugins))

    return install


@pytest.mark.parametrize("arguments", [["study", "toy", "--quick"], ["demo", "--help"], ["report"]])
def test_without_the_experiments_their_commands_say_how_to_get_them(arguments, install, capsys, error_line):
    install()
    line = error_line(*arguments, status=1)
    assert "pip install ./experiments" in line
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "study" not in capsys.readouterr().out


def raised(error: BaseException):
    raise error


def test_a_command_declares_the_errors_of_its_user_and_any_other_keeps_its_traceback(
    install, capsys, error_line
):
    install(Plugin(lambda: print("done")))
    assert main(["work"]) == 0
    assert capsys.readouterr().out == "done\n"
    install(Plugin(lambda: raised(LookupError("no\nsuch thing"))))
    assert error_line("work") == "trustgp: no such thing\n"
    install(Plugin(lambda: raised(ImportError("pip install it"))))
    assert error_line("work", status=1) == "trustgp: pip install it\n"
    install(Plugin(lambda: raised(RuntimeError("a bug"))))
    with pytest.raises(RuntimeError, match="a bug"):
        main(["work"])


def interrupt_as_another_error() -> None:
    """As a package does that is being imported."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt as stop:
        raise RuntimeError("half imported") from stop


@pytest.mark.parametrize("work", [lambda: signal.raise_signal(signal.SIGINT), interrupt_as_another_error])
def test_ctrl_c_is_one_line_with_status_130(work, interruptible, install, error_line):
    install(Plugin(work))
    line = error_line("work", status=130)
    assert line == "trustgp: stopped; what was finished is kept, nothing is half-written.\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(os.name != "posix", reason="a closed pipe is another error on this system")
def test_a_closed_output_is_quiet():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "trustgp.cli", "--help"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=buffered, check=False)
    assert (done.returncode, done.stderr) == (141, b"")
    with open(writing, "w", buffering=1) as file:
        with pytest.raises(BrokenPipeError):
            _Console(file=file).print("a line")
        os.dup2(devnull := os.open(os.devnull, os.O_WRONLY), writing)  # for what is flushed at exit
        os.close(devnull)
