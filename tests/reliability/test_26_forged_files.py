"""Promise 26: 500 forged files for each opener: its own typed error or an answer, nothing obeyed. `make test`
tries the first sixty of them.

Most are damaged behind a right checksum, so that what reads the contents is tested and not the checksum.
torch's loader of packages is replaced: a package with a right checksum is code, and runs.
"""

import io
import json
import os
import random
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from many import Many
from markupsafe import escape
from reliability.forgeries import TEXTS, VALUES, as_json, changed, damaged, random_forgery, sealed_onnx

import trustgp
from trustgp.cli import main
from trustgp.data.escapes import printable
from trustgp.export import compiled, open_onnx
from trustgp_experiments.core.result import Column, Figure, Result, Table

COUNTS = pytest.mark.parametrize("count", [60, pytest.param(500, marks=pytest.mark.nightly)])
# What must never reach a terminal: all control characters but the line's end, halves, turned directions.
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
SHOWN = [text for text in TEXTS if 0 < len(text) < 100]


def refused(count: int, make: Callable, opener: Callable, kind: type[Exception]) -> float:
    """The share of forgeries, each made from a seed, that an opener refuses with an error of this kind."""
    errors = []
    with Many() as check:
        for number in range(count):
            made = make(random.Random(number))
            with check(number):
                try:
                    opener(made)
                except kind as error:
                    errors.append(str(error))
    assert not OBEYED.search("\n".join(errors))
    return len(errors) / count


@COUNTS
@pytest.mark.parametrize("model", ["gram", "span"])
def test_load(count, model, request, tmp_path):
    saved, path = request.getfixturevalue(f"{model}_file"), tmp_path / "forged"

    def make(draw: random.Random) -> Path:
        path.write_bytes(random_forgery(saved.content, draw))
        return path

    share = refused(count, make, lambda path: trustgp.load(path, saved.network), trustgp.ArtifactError)
    assert share > 0.8


def run(arguments, capsys) -> tuple[int, str]:
    """The status and the output of a command: of a failure one line, and nothing to obey in either."""
    status = main([*map(str, arguments)])
    out, err = capsys.readouterr()
    assert not OBEYED.search(out + err), f"{out}{err}"[:300]
    assert status in (0, 2)
    assert err.count("\n") == (status != 0)
    assert bool(out) == (status == 0)
    return status, out + err


@COUNTS
def test_inspect(count, gram_file, witness_file, tmp_path, capsys):
    path, statuses = tmp_path / "forged", []
    with Many() as check:
        for number in range(count):
            source = (gram_file, witness_file)[number % 2]
            path.write_bytes(random_forgery(source.content, random.Random(number)))
            with check(number):
                statuses.append(run(["inspect", path], capsys)[0])
    assert 0.5 * count < statuses.count(2) < count  # some changes do no harm


def test_inspect_shows_the_text_of_a_file_and_does_not_obey_it(gram_file, tmp_path, capsys, monkeypatch):
    with Many() as check:
        for text in SHOWN:
            with check(text):
                shown = {"structure": f"<{text}>"}
                path = gram_file.forged(tmp_path / "f", text=lambda table, s=shown: table.update(s))
                status, out = run(["inspect", path], capsys)
                assert status == 0
                assert f"<{printable(text)}>" in out
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal has colours, which are escapes of our own
    hostile = "[red]\x1b]0;owned\x07[/red]"
    path = gram_file.forged(tmp_path / "[bold]forged", text=lambda table: table.update(network=hostile))
    assert main(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b[" in out
    assert "\x1b]" not in out
    assert "[red]\\x1b]0;owned\\x07[/red]" in out
    assert "[bold]forged" in out.replace("\n", "")  # a long path is wrapped


def forged_onnx(content: bytes, draw: random.Random) -> bytes:
    """An ONNX file: damaged, before or behind its digest, or with other metadata."""
    import onnx

    kind = draw.randrange(8)
    if kind < 2:
        return damaged(content, draw)
    if kind < 6:  # more than of the others: onnxruntime takes long over what it accepts
        tail = content.rindex(b"trustgp.sha256") - 4
        return sealed_onnx(damaged(content[:tail], draw) + content[tail:])
    made = onnx.load_model_from_string(content)
    entry = draw.choice(made.metadata_props[:-1])
    with suppress(ValueError):  # protobuf refuses half characters itself: then the file is as it was
        setattr(entry, draw.choice(("key", "value")), str(draw.choice((*TEXTS, *VALUES))))
    return sealed_onnx(made.SerializeToString())


@COUNTS
def test_open_onnx(count, tmp_path, capfd):
    """onnxruntime takes long over what it accepts; its own log, which quotes what it reads, is silent."""
    pytest.importorskip("onnx", reason='onnx is not installed: pip install "trustgp[export]"')
    from exported import model_of, rows_of

    path = tmp_path / "model.onnx"
    content = trustgp.export_onnx(model_of("tanh"), path, rows_of("tanh", 3)[0]).read_bytes()
    capfd.readouterr()

    def make(draw: random.Random) -> Path:
        path.write_bytes(forged_onnx(content, draw))
        return path

    assert refused(count, make, open_onnx, trustgp.ArtifactError) > 0.5
    assert capfd.readouterr() == ("", "")


FACTS = {
    "trustgp.answers": "mean,variance", "trustgp.structure": "tensor", "trustgp.input_types": "float32",
    "trustgp.input_shapes": "[[3]]", "trustgp.device": "cpu", "trustgp.network": "x", "AOTI_MACHINE": "",
}  # fmt: skip


def package(metadata: str | bytes, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An archive as torch makes it."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        archive.writestr("m/data/aotinductor/model/x.wrapper_metadata.json", metadata)
        archive.writestr("m/data/aotinductor/model/x.wrapper.so", b"\x7fELF" + bytes(500))
    return content.getvalue()


@COUNTS
def test_open_compiled(count, tmp_path, monkeypatch):
    path = tmp_path / "forged.pt2"

    def make(draw: random.Random) -> Path:
        """With other metadata, or damaged before or after it was sealed."""
        kind = draw.randrange(3)
        facts = as_json(changed(FACTS, draw) if kind == 0 else FACTS, draw)
        content = package(facts, draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
        path.write_bytes(damaged(content, draw) + bytes(2) if kind == 1 else content)
        compiled.seal(path)
        if kind == 2:
            path.write_bytes(damaged(path.read_bytes(), draw))
        return path

    def fail(path):
        raise RuntimeError("invalid ELF header \x1b[31m")

    monkeypatch.setattr("torch._inductor.aoti_load_package", lambda path: None)
    assert 0.5 < refused(count, make, compiled.open_compiled, trustgp.ArtifactError) < 1.0
    monkeypatch.setattr("torch._inductor.aoti_load_package", fail)
    # 64 MB of blanks in a few bytes: no more of it is unpacked than metadata may have
    bomb = (b"{" + b" " * 2**26, "a package of trustgp")
    for metadata, message in (bomb, (json.dumps(FACTS), r"\.pt2: torch cannot .*header \\x1b\[31m")):
        path.write_bytes(package(metadata))
        compiled.seal(path)
        with pytest.raises(trustgp.ArtifactError, match=message):
            compiled.open_compiled(path)


PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000030000000408000000006e46dadb0000000b49444154789c636040"
    "05000010000139bd8f650000000049454e44ae426082"
)


@pytest.fixture
def result(tmp_path) -> tuple[Path, dict]:
    """A folder of results, and the contents of the only one in it."""
    columns = [Column.text("method"), Column("sarcos", 2, "low", "N m"), Column("share", 1, "high")]
    cells = [["ours", -1.25, [1.0, 0.5]], ["`theirs`", 3, None], ["1 < 2", 2, True]]
    table = Table("NLL", columns, cells, block="method", note="A note.")
    figure = Figure("a.png", "A picture", "of it")
    origin = {"command": "trustgp study toy", "quick": True, "seeds": [0, 1], "versions": {"torch": "2"}}
    made = Result("toy", "Is it so?", ["Rows."], [table], [figure], ["It is."], {"x": [1]}, origin)
    made.write(tmp_path / "in" / "toy")
    (tmp_path / "in" / "toy" / "a.png").write_bytes(PICTURE)
    return tmp_path / "in", json.loads((tmp_path / "in" / "toy" / "result.json").read_text())


@COUNTS
def test_report(count, result, tmp_path, capsys):
    folder, whole = result
    file, out, statuses = folder / "toy" / "result.json", tmp_path / "page.html", []
    content = file.read_bytes()
    with Many() as check:
        for number in range(count):
            draw = random.Random(number)
            kind = draw.randrange(8)
            tree = damaged(content, draw) if kind == 0 else as_json(changed(whole, draw), draw).encode()
            file.write_bytes(tree)
            (folder / "toy" / "a.png").write_bytes(damaged(PICTURE, draw) if kind == 1 else PICTURE)
            out.unlink(missing_ok=True)
            with check(number):
                statuses.append(run(["report", folder, "--out", out], capsys)[0])
                assert out.exists() == (statuses[-1] == 0)
                page = out.read_text("utf-8") if out.exists() else "<script>"
                assert not OBEYED.search(page.replace("\t", ""))
                assert page.count("<script>") == 1
                assert "<img src=x" not in page
        assert 0.4 * count < statuses.count(2) < count
        (folder / "toy" / "a.png").write_bytes(PICTURE)
        for text in SHOWN:
            file.write_text(json.dumps({**whole, "title": f"<{text}>", "findings": [text]}))
            with check(text):
                assert run(["report", folder, "--out", out], capsys)[0] == 0
                assert escape(printable(f"<{text}>", keep="\n\t")) in out.read_text("utf-8")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_pipes_and_devices_are_refused_and_not_waited_for(result, tmp_path, capsys):
    openers = [lambda path: trustgp.load(path, None), compiled.open_compiled]
    with suppress(ImportError):
        import onnx  # noqa: F401

        openers.append(open_onnx)
    os.mkfifo(tmp_path / "pipe")
    for opener in openers:
        for path in (tmp_path / "pipe", Path("/dev/zero")):
            with pytest.raises(trustgp.ArtifactError, match="pipe or a device"):
                opener(path)
    assert "pipe or a device" in run(["inspect", tmp_path / "pipe"], capsys)[1]
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path, tmp_path / "loop", tmp_path / ("x" * 5000), tmp_path / "\x1b[31m"):
        assert run(["inspect", path], capsys)[0] == 2
    file = result[0] / "toy" / "result.json"
    file.unlink()
    os.mkfifo(file)
    assert "is not a file" in run(["report", result[0]], capsys)[1]


def test_in_a_process_of_its_own_it_is_one_line_and_status_2(gram_file, tmp_path):
    """What in-process calls cannot see: the end of the interpreter, and a terminal that knows ASCII only."""
    kind = {"kind": "\x1b[31m\u00e9"}
    path = gram_file.forged(tmp_path / "forged", text=lambda table: table["likelihood"].update(kind))
    command = [sys.executable, "-m", "trustgp.cli", "inspect", str(path)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert b"\\x1b[31m\\xe9" in done.stderr
