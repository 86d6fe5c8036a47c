"""Line 18: very many single calls in one thread; memory stays, and so does the answer.

How long they take is published by experiments/benchmarks/calls.py, not asserted: a test machine is busy.
"""

import json
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from reliability.helpers import TESTS, python

BENCHMARKS = TESTS.parent / "experiments" / "benchmarks"
# Both ways in one process: 1,000 calls and 300 here, 20,000 each in the benchmark.
CALLED = """
import json, sys, tempfile
from pathlib import Path
import torch
from reliability.helpers import quiet_fit, trained
sys.path.append(sys.argv[1])
from calls import endure

torch.set_num_threads(1)
network, x, y = trained(60, 3, 8, 2, dtype=torch.float32)
rows, found = [x[i : i + 1] for i in range(32)], {}

def fitted(outputs):
    model = quiet_fit(network, (x, y), num_experts=2, outputs=outputs)
    assert model.witness is not None
    return model

if "onnxruntime" in sys.argv:
    from trustgp import export_onnx
    from trustgp_experiments.studies.runtime.calls import onnx_session
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        export_onnx(fitted("shared"), file, x[:2])
        session = onnx_session(file, threads=1)
    name = session.get_inputs()[0].name
    inputs = [{name: row.numpy()} for row in rows]
    found["onnxruntime"] = endure(lambda feed: session.run(None, feed), inputs, calls=1000)

model = fitted("pseudo")

def call(row):
    said = model.predict(row)
    return [said.mean.numpy(), said.variance.numpy(), said.corrected.mean.numpy()]

found["predict"] = endure(call, rows, calls=300)
print(json.dumps(found))
"""


@pytest.fixture
def benchmark(monkeypatch):
    """experiments/benchmarks/calls.py as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import calls

    yield calls
    sys.modules.pop("calls")


@pytest.fixture(scope="module")
def made() -> dict:
    """What was found, by the way of calling."""
    there = all(find_spec(name) for name in ("onnx", "onnxruntime"))
    return json.loads(python(CALLED, BENCHMARKS, *["onnxruntime"] * there).splitlines()[-1])


@pytest.mark.parametrize("way", ["onnxruntime", "predict"])
def test_memory_does_not_grow_and_repeats_give_the_same_bits(way, made, benchmark):
    if way not in made:
        pytest.skip("onnx or onnxruntime is not installed")
    assert made[way]["same_over_repeats"] is True
    assert made[way]["repeats"] == 1000
    assert made[way]["growth_bytes"] < benchmark.MAX_GROWTH


def test_growth_and_different_answers_are_detected(benchmark):
    arrays = []

    def leaks(given):
        arrays.append(np.ones(2**17))  # 1 MiB, more than free space of earlier allocations
        return [np.array(given)]

    assert benchmark.endure(leaks, [1.0], calls=200, repeats=3)["growth_bytes"] > benchmark.MAX_GROWTH
    answers = iter(range(10_000))
    changing = benchmark.endure(lambda given: [np.array(next(answers))], [1.0], calls=10, repeats=20)
    assert not changing["same_over_repeats"]
    with pytest.raises(ValueError, match="calls=9"):
        benchmark.endure(lambda given: [given], [1.0], calls=9)


def test_the_published_quantiles_are_times_of_calls(benchmark):
    seconds = np.array([0.001] * 970 + [0.004] * 25 + [0.006] * 4 + [0.5])
    expected = {"first": 1000.0, "p50": 1.0, "p99": 4.0, "p99.9": 6.0, "max": 500.0}
    assert benchmark.milliseconds(1.0, seconds) == expected
