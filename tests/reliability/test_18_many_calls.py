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
from endurance import endure

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
    found["onnxruntime"] = endure(lambda feed: session.run(None, feed), inputs, calls=1000).table()

model = fitted("pseudo")

def call(row):
    said = model.predict(row)
    return [said.mean.numpy(), said.variance.numpy(), said.corrected.mean.numpy()]

found["predict"] = endure(call, rows, calls=300).table()
print(json.dumps(found))
"""


@pytest.fixture
def endurance(monkeypatch):
    """experiments/benchmarks/endurance.py as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import endurance

    yield endurance
    sys.modules.pop("endurance")


@pytest.fixture(scope="module")
def made() -> dict:
    """What was found, by the way of calling."""
    there = all(find_spec(name) for name in ("onnx", "onnxruntime"))
    return json.loads(python(CALLED, BENCHMARKS, *["onnxruntime"] * there).splitlines()[-1])


@pytest.mark.parametrize("way", ["onnxruntime", "predict"])
def test_memory_does_not_grow_and_repeats_give_the_same_bits(way, made, endurance):
    if way not in made:
        pytest.skip("onnx or onnxruntime is not installed")
    found = made[way]
    assert found["same_over_repeats"] is True
    assert found["repeats"] == 1000
    assert found["growth_bytes"] < endurance.GROWTH


def test_a_call_that_keeps_what_it_made_is_found_out(endurance):
    kept = []

    def leaks(given):
        kept.append(np.ones(2**17))  # 1 MiB: little enough would find room in what others have given back
        return [np.array(given)]

    found = endurance.endure(leaks, [1.0], calls=200, repeats=3)
    assert found.growth > endurance.GROWTH
    assert found.table()["met"]["memory grows under 1 MB"] is False


def test_a_call_that_answers_differently_is_found_out(endurance):
    answers = iter(range(10_000))
    assert not endurance.endure(lambda given: [np.array(next(answers))], [1.0], calls=10, repeats=20).same
    assert endurance.endure(lambda given: [np.array(given)], [1.0], calls=10, repeats=20).same


def test_the_published_table_tells_the_tail_apart_from_the_middle(endurance):
    seconds = [0.001] * 970 + [0.004] * 25 + [0.006] * 4 + [0.5]
    busy = [0.001] * 900 + [0.002] * 100
    found = endurance.Endurance(1.0, seconds, busy, growth=10, same=True, repeats=1000).table()
    assert found["milliseconds"] == {"first": 1000.0, "p50": 1.0, "p99": 4.0, "p99.9": 6.0, "max": 500.0}
    assert found["busy_p99_over_p50"] == 2.0
    assert found["met"] == {
        "p99 at most 3 x p50": False,
        "memory grows under 1 MB": True,
        "same output over repeats": True,
    }


def test_too_few_calls_are_refused(endurance):
    with pytest.raises(ValueError, match="calls=9"):
        endurance.endure(lambda given: [given], [1.0], calls=9)
