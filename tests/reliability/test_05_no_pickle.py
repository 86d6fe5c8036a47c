"""Promise 5: nothing in a file is ever executed."""

import ast
import io
import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

import trustgp
import trustgp_experiments
from trustgp.state.summary import inspect_tables

PACKAGES = [Path(package.__file__).parent for package in (trustgp, trustgp_experiments)]
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
CALLS = {"eval", "exec", "compile", "__import__"}
ATTRIBUTES = {
    "torch.load", "torch.jit.load", "torch.package", "torch.hub.load", "torch.hub.load_state_dict_from_url",
    "joblib.load", "pandas.read_pickle", "pd.read_pickle", "builtins.eval", "builtins.exec",
}  # fmt: skip

# A function travels to Ray's workers: no file of a user's is read.
BETWEEN_PROCESSES = {"trustgp/executors/ray.py": {"pickle", "ray.cloudpickle"}}


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def forbidden(source: str) -> list[str]:
    """What in a source text could execute a file's contents."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names if alias.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom):
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names += full if (node.module or "").split(".")[0] in MODULES else []
            names += [name for name in full if name in ATTRIBUTES or name == "ray.cloudpickle"]
        elif isinstance(node, ast.Name) and node.id in CALLS:
            names.append(node.id)
        elif isinstance(node, ast.Attribute) and _dotted(node) in ATTRIBUTES:
            names.append(_dotted(node))
        elif isinstance(node, ast.Call) and _dotted(node.func) in ("np.load", "numpy.load"):
            allowed = [k.value for k in node.keywords if k.arg == "allow_pickle"]
            if allowed and not (isinstance(allowed[0], ast.Constant) and allowed[0].value is False):
                names.append("np.load(allow_pickle=...)")
    return names


def test_no_source_file_can_execute_what_it_reads():
    files = {f.relative_to(p.parent).as_posix(): f for p in PACKAGES for f in sorted(p.rglob("*.py"))}
    names = {name: set(forbidden(file.read_text())) for name, file in files.items()}
    assert {name: what for name, what in names.items() if what} == BETWEEN_PROCESSES


CODES = (
    "import pickle", "from pickle import loads", "import joblib", "def f():\n    import dill.source",
    "import torch\ntorch.load('x')", "from torch import load", "torch.jit.load('x')", "eval('1')",
    "call = exec", "np.load('x', allow_pickle=True)",
)  # fmt: skip


def test_the_search_itself_finds():
    assert all(forbidden(code) for code in CODES)


class Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return (os.system, (f"touch '{self.trace}'",))


def payloads(trace: Path) -> dict[str, bytes]:
    """Files that would write `trace` if anything in them were executed."""
    canary, new, old, archive = Canary(trace), io.BytesIO(), io.BytesIO(), io.BytesIO()
    pickled = pickle.dumps(canary)
    torch.save({"weights": torch.ones(3), "more": canary}, new)
    torch.save(canary, old, _use_new_zipfile_serialization=False)
    with zipfile.ZipFile(archive, "w") as package:
        package.writestr("archive/data.pkl", pickled)
        package.writestr("__main__.py", f"open({str(trace)!r}, 'w')")
    return {
        "pickle": pickled,
        "old pickle": pickle.dumps(canary, protocol=0),
        "torch": new.getvalue(),
        "old torch": old.getvalue(),
        "zip": archive.getvalue(),
        "where the header should be": len(pickled).to_bytes(8, "little") + pickled,
    }


def test_a_payload_is_never_executed(gram_file, tmp_path):
    trace = tmp_path / "executed"
    for kind, content in payloads(trace).items():
        for name in ("a.trustgp", "a.pt", "a.pth", "a.pkl", "a.joblib", "a.safetensors", "a"):
            gram_file.refusal(tmp_path / name, content)
            with pytest.raises(trustgp.ArtifactError):
                inspect_tables(tmp_path / name)
            assert not trace.exists(), (kind, name)


def test_a_payload_in_a_checkpoint_is_never_executed(gram_file, tmp_path):
    folder, trace, data = tmp_path / "c", tmp_path / "executed", (gram_file.inputs, torch.zeros(24, 2))
    options = {"progress": False, "num_experts": 2, "checkpoint": folder}
    trustgp.fit(gram_file.network, data, **options)
    for content in payloads(trace).values():
        (folder / "expert-000-00000.trustgp").write_bytes(content)
        trustgp.fit(gram_file.network, data, **options)
    for content in payloads(trace).values():
        (folder / "fit.trustgp").write_bytes(content)
        with pytest.raises(trustgp.ArtifactError, match="start over"):
            trustgp.fit(gram_file.network, data, **options)
    assert not trace.exists()


def test_the_canary_works(tmp_path):
    """Otherwise the tests above prove nothing."""
    trace = tmp_path / "executed"
    pickle.loads(pickle.dumps(Canary(trace)))
    assert trace.exists()
