"""AOTInductor packages equal the model, in Python and in C++, and are refused when damaged."""

import copy
import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from exported import quick_wrapper
from many import each

import trustgp
from trustgp.export import compiled
from trustgp.export.verify import answers_of

EXAMPLES = Path(__file__).parents[2] / "examples" / "cpp"
pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="a package takes a C++ compiler: no g++ here"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The examples of docs/compile.md, compiled once for all tests: with two experts, without a witness (ONNX
    files test the same trace of it), and without optimisation of the wrapper."""
    text = (EXAMPLES.parents[1] / "docs" / "compile.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    assert code.count("num_experts=3)") == 1
    code = code.replace("num_experts=3)", "num_experts=2, witness=None)")
    names = {"__name__": "example"}
    with pytest.MonkeyPatch.context() as patch, torch._inductor.config.patch(quick_wrapper()):
        patch.chdir(tmp_path_factory.mktemp("package"))
        exec(compile(code, "compile.md", "exec"), names)
        names["path"] = Path("arm.pt2").resolve()
    return names


@pytest.fixture(scope="module")
def model(page):
    return page["model"]


@pytest.fixture(scope="module")
def path(page):
    return page["path"]


@pytest.fixture(scope="module")
def package(path):
    return compiled.open_compiled(path)


@pytest.fixture(scope="module")
def rows():
    return 3 * torch.randn(100, 3, generator=torch.Generator().manual_seed(3))


def assert_same(outputs, model, inputs):
    expected = answers_of(model.predict(inputs), True)
    assert expected.keys() == outputs.keys()
    for name, value in expected.items():  # float32 sums in another order
        torch.testing.assert_close(outputs[name], value, rtol=1e-4, atol=1e-6, msg=name)


@each("batch", [1, 2, 3, 17, 100])
def test_a_package_equals_the_model_at_every_batch_size_and_of_any_type(package, model, rows, batch):
    outputs = package(rows[:batch])
    assert tuple(outputs) == package.output_names
    assert {"mean", "variance", "corrected", "corrected_variance", "novelty", "expert"} <= set(outputs)
    assert_same(outputs, model, rows[:batch])
    assert_same(package(rows[:batch].double().numpy()), model, rows[:batch])
    assert_same(package(np.asfortranarray(rows[:batch].numpy())), model, rows[:batch])
    assert_same(package(rows[:batch:2]), model, rows[:batch:2])


@each(
    ("inputs", "match"),
    [
        (torch.zeros(2, 4), r"shape \(4,\); this takes \(3,\)"),
        (torch.zeros(0, 3), "no rows"),
        ({"a": torch.zeros(2, 3)}, "structure"),
        ((torch.zeros(2, 3), torch.zeros(2, 3)), "structure"),
    ],
)
def test_inputs_that_the_compiled_code_would_misread_are_refused(package, inputs, match):
    with pytest.raises(ValueError, match=match):
        package(inputs)


def test_a_package_has_its_metadata(path, package, model):
    assert [p.name for p in path.parent.iterdir()] == ["arm.pt2"]
    facts = package.metadata
    assert facts["version"] == trustgp.__version__
    assert facts["network"] == model.origin.network
    assert facts["calibration_date"] == "2026-01-31"
    assert json.loads(facts["input_names"]) == ["angle", "speed", "load"]
    assert json.loads(facts["output_units"]) == ["N m", "K"]
    assert float(facts["threshold"]) == float(model.novelty_threshold.threshold)
    assert "(3,)" in repr(package)


def test_a_package_that_disagrees_is_not_kept(path, model, toy, tmp_path, monkeypatch):
    rows = tuple(part.float() for part in toy(140, seed=5))
    network = copy.deepcopy(model.network).requires_grad_(True)
    other = trustgp.fit(network, rows, validation=rows, num_experts=2, witness=None, progress=False)
    other.threshold(false_alarm=0.05)
    monkeypatch.setattr(compiled, "_package", lambda module, flat, made, settings: shutil.copy(path, made))
    monkeypatch.setattr(compiled, "seal", lambda made: None)  # it has its seal
    (tmp_path / "other.pt2").write_text("before")
    with pytest.raises(trustgp.ExportError, match="differs from predict"):
        trustgp.compile(other, tmp_path / "other.pt2")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["before"]


def test_names_and_rows_are_checked_before_the_work(model, tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.pt2"):
        trustgp.compile(model, tmp_path / "arm.onnx")
    model.save(tmp_path / "arm.trustgp")
    loaded = trustgp.load(tmp_path / "arm.trustgp", model.network)
    with pytest.raises(ValueError, match="example_inputs="):
        trustgp.compile(loaded, tmp_path / "arm.pt2")
    with pytest.raises(ValueError, match="structure"):
        trustgp.compile(loaded, tmp_path / "arm.pt2", {"a": torch.zeros(2, 3)})


def damages(path):
    """The same package truncated, extended, and with one flipped bit at several places."""
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as package:
        code = next(i.header_offset for i in package.infolist() if i.filename.endswith(".so"))
        size = max(i.file_size for i in package.infolist())
    # machine code, the numbers behind it, the names of the archive, its end, and the digest
    places = [code + 50_000, code + size - 5_000, 40, len(whole) - 300, len(whole) - 90, len(whole) - 3]
    flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in places]
    cut = [whole[: int(share * len(whole))] for share in (0.0, 0.5, 0.99)]
    return [*cut, whole[:-1], whole + b"0", b"nothing", *flipped]


def test_a_damaged_package_is_refused_before_its_code_runs(path, tmp_path, monkeypatch):
    monkeypatch.setattr("torch._inductor.aoti_load_package", lambda *_: pytest.fail("its code was loaded"))
    for content in damages(path):
        (tmp_path / "bad.pt2").write_bytes(content)
        with pytest.raises(trustgp.ArtifactError, match=r"bad\.pt2: (not a package|damaged)"):
            compiled.open_compiled(tmp_path / "bad.pt2")


@each(
    ("facts", "match"),
    [
        ({}, "not one of trustgp"),
        ({"trustgp.answers": "mean", "trustgp.device": "cpu"}, "not one of trustgp"),
        ({**{f"trustgp.{name}": "" for name in compiled.NEEDED}, "AOTI_MACHINE": "riscv64"}, "for riscv64"),
    ],
)
def test_other_packages_and_other_machines_are_refused(facts, match, tmp_path):
    with zipfile.ZipFile(tmp_path / "other.pt2", "w") as package:
        package.writestr("x/wrapper_metadata.json", json.dumps(facts))
    with pytest.raises(trustgp.ArtifactError, match="no checksum: compile the model again"):
        compiled.open_compiled(tmp_path / "other.pt2")
    compiled.seal(tmp_path / "other.pt2")
    with pytest.raises(trustgp.ArtifactError, match=match):
        compiled.open_compiled(tmp_path / "other.pt2")


@pytest.fixture(scope="module")
def serve(tmp_path_factory):
    """The C++ example, built without optimisation: that takes seconds."""
    program = tmp_path_factory.mktemp("cpp") / "serve"
    torch_home = Path(torch.__file__).parent
    flags = [f"-I{torch_home / 'include'}", f"-I{torch_home / 'include/torch/csrc/api/include'}"]
    lib = torch_home / "lib"
    flags += [f"-L{lib}", f"-Wl,-rpath,{lib}", "-ltorch", "-ltorch_cpu", "-lc10"]
    flags.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}")
    source = str(EXAMPLES / "main.cpp")
    subprocess.run(["g++", "-std=c++20", "-O0", source, "-o", str(program), *flags], check=True)
    return program


def served(program, path, text):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([str(program), str(path)], input=text, capture_output=True, text=True, env=env)


@pytest.mark.nightly
def test_a_cpp_program_prints_the_same_numbers(serve, path, package, rows):
    inputs = rows[:6].clone()
    inputs[4, 0] = torch.nan
    text = "\n".join(" ".join(repr(float(v)) for v in row) for row in inputs)
    done = served(serve, path, text)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    found = {name: [float(value) for value in values] for name, _, *values in lines}
    wanted = package(inputs)
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert np.array_equal(found[name], value.double().flatten().numpy(), equal_nan=True), name


@pytest.mark.nightly
def test_the_cpp_program_names_errors(serve, path, tmp_path):
    assert "do not make rows of 3" in served(serve, path, "1 2 3 4").stderr
    assert served(serve, path, "").returncode == 1
    assert "cannot be opened" in served(serve, tmp_path / "none.pt2", "1 2 3").stderr


@pytest.mark.nightly
def test_the_cpp_program_refuses_a_damaged_package(serve, path, tmp_path):
    """Promise 27: libtorch does not check; with a flipped number its outputs are wrong."""
    every = damages(path)
    for number, content in enumerate([every[1], *every[3:5], *every[6:9], every[-1]]):
        (tmp_path / "bad.pt2").write_bytes(content)
        done = served(serve, tmp_path / "bad.pt2", "1 2 3")
        assert (done.returncode, done.stdout) == (1, ""), number
        assert "bad.pt2: not a package" in done.stderr or "bad.pt2: damaged" in done.stderr, number
