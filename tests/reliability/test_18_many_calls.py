"""Line 18: many single calls in one thread: constant memory, equal outputs.

experiments/benchmarks/calls.py publishes their times with 20,000 calls; a test machine is busy.
"""

import json
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from reliability.helpers import TESTS, python

BENCHMARKS = TESTS.parent / "experiments" / "benchmarks"
# 400 calls of onnxruntime and 150 of predict in one process, 20,000 each in the benchmark.
CALLS = """
import json, sys, tempfile
from pathlib import Path
import torch
from reliability.helpers import quiet_fit, trained
sys.path.append(sys.argv[1])
from calls import endure

torch.set_num_threads(1)
network, x, y = trained(60, 3, 8, 2, dtype=torch.float32)
rows, tables = [x[i : i + 1] for i in range(32)], {}

if "onnxruntime" in sys.argv:
    from trustgp import export_onnx
    from trustgp_experiments.studies.runtime.calls import onnx_session
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        model = quiet_fit(network, (x, y), num_experts=2, outputs="shared", witness=None)
        export_onnx(model, file, x[:2])
        session = onnx_session(file, threads=1)
    name = session.get_inputs()[0].name
    inputs = [{name: row.numpy()} for row in rows]
    tables["onnxruntime"] = endure(lambda feed: session.run(None, feed), inputs, calls=400)

model = quiet_fit(network, (x, y), num_experts=2, outputs="pseudo")
assert model.witness is not None

def call(row):
    p = model.predict(row)
    return [p.mean.numpy(), p.variance.numpy(), p.corrected.mean.numpy()]

tables["predict"] = endure(call, rows, calls=150, repeats=300)
print(json.dumps(tables))
"""


@pytest.fixture
def benchmark(monkeypatch):
    """experiments/benchmarks/calls.py as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import calls

    yield calls
    sys.modules.pop("calls")


def test_memory_does_not_grow_and_repeats_are_equal_to_the_bit(benchmark):
    """A leak of onnxruntime's inputs, or of predict's caches, shows only over many calls in a new process."""
    installed = all(find_spec(name) for name in ("onnx", "onnxruntime"))
    tables = json.loads(python(CALLS, BENCHMARKS, *["onnxruntime"] * installed).splitlines()[-1])
    assert len(tables) == 1 + installed
    for name, table in tables.items():
        assert table["same_over_repeats"] is True, name
        assert table["repeats"] >= 300, name
        assert table["growth_bytes"] < benchmark.MAX_GROWTH, name


def test_growth_and_unequal_outputs_are_detected(benchmark, monkeypatch):
    numbers, sizes = iter(range(10_000)), iter([5 * 2**20, 9 * 2**20])
    with monkeypatch.context() as patch:  # a kernel may reclaim as much as a call that leaks takes
        patch.setattr(benchmark, "status_bytes", lambda name: next(sizes))
        constant = benchmark.endure(lambda value: [np.array(value)], [1.0], calls=40, repeats=3)
    assert constant["growth_bytes"] == 4 * 2**20 > benchmark.MAX_GROWTH
    changing = benchmark.endure(lambda value: [np.array(next(numbers))], [1.0], calls=10, repeats=20)
    assert not changing["same_over_repeats"]
