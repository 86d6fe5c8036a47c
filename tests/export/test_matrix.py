"""onnxruntime gives what `predict` gives, for every network, mode and kind of tangents."""

from __future__ import annotations

import pytest
import torch
from exported import BATCHES, CONVS, MLPS, MODES, NETWORKS, PRUNED, assert_equal, model_of, rows_of

import trustgp
from trustgp.export import open_onnx, traced

pytest.importorskip("onnxruntime", reason='onnxruntime is not installed: pip install "trustgp[export]"')
KINDS = {"factors": trustgp.LayerFactors(), "pruned": PRUNED, "sketch": trustgp.Sketch(32)}
KINDS_OF = {**dict.fromkeys(MLPS, tuple(KINDS)), **dict.fromkeys(CONVS, ("pruned", "sketch"))}
# Every network once, each time with the next mode and another kind of tangents. Convolutions once more with
# all outputs differentiated together, which their gradients, and those of pools, see as a second batch.
MIXED = [(name, MODES[place % 3], place // 3) for place, name in enumerate(NETWORKS)]
MIXED += [(name, "shared", turn + 1) for name, mode, turn in MIXED if name in CONVS and mode != "shared"]
PAIRS = [(name, mode, KINDS_OF[name][turn % len(KINDS_OF[name])]) for name, mode, turn in MIXED]


@pytest.mark.parametrize(("name", "mode", "kind"), PAIRS)
def test_onnxruntime_equals_predict_at_every_batch(name, mode, kind, tmp_path):
    model = model_of(name, outputs=mode, tangents=KINDS[kind])
    trustgp.export_onnx(model, tmp_path / "model.onnx", rows_of(name, 4)[0])
    runner = open_onnx(tmp_path / "model.onnx")
    inputs = 1.3 * rows_of(name, max(BATCHES), seed=1)[0]
    for batch in BATCHES:
        assert_equal(model.predict(inputs[:batch]), runner(inputs[:batch]))


@pytest.mark.parametrize(("mode", "kind"), list(zip(MODES, KINDS, strict=True)))
def test_the_traced_graph_of_plain_operations_equals_predict_at_every_batch(mode, kind):
    name = list(MLPS)[MODES.index(mode)]
    model = model_of(name, outputs=mode, tangents=KINDS[kind])
    graph = traced(model, rows_of(name, 1)[0])
    inputs = 1.3 * rows_of(name, max(BATCHES), seed=1)[0]
    for batch in BATCHES:
        assert_equal(model.predict(inputs[:batch]), graph(inputs[:batch]))
    assert not any("trustgp" in str(node.target) for node in graph.graph.nodes)


@pytest.mark.parametrize("mode", MODES)
def test_the_network_runs_once_in_a_traced_graph(mode):
    model = model_of("tanh", outputs=mode)
    graph = traced(model, rows_of("tanh", 1)[0])
    activations = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.tanh.default)
    assert len(activations) == 2


def test_every_network_is_exported_and_every_mode_meets_every_kind_of_tangents():
    assert {name for name, _, _ in PAIRS} == set(NETWORKS)
    assert {(mode, kind) for _, mode, kind in PAIRS} == {(mode, kind) for mode in MODES for kind in KINDS}
    assert {name for name, mode, _ in PAIRS if mode == "shared"} >= set(CONVS)


SMALLER = [
    ("pruned", {"rank": 8}),
    ("sketch", {"rank": 8, "witness": False}),
]


@pytest.mark.parametrize(("kind", "form"), SMALLER)
def test_a_compressed_model_is_exported_as_it_is(kind, form, tmp_path):
    inputs, targets = rows_of("relu", 60, seed=2)
    whole = model_of("relu", tangents=KINDS[kind])
    model = trustgp.compress(whole, validation=(inputs, targets), progress=False, **form)
    trustgp.export_onnx(model, tmp_path / "model.onnx", inputs[:4])
    runner, graph = open_onnx(tmp_path / "model.onnx"), traced(model, inputs[:1])
    for batch in BATCHES:
        expected = model.predict(1.3 * inputs[:batch])
        assert_equal(expected, runner(1.3 * inputs[:batch]))
        assert_equal(expected, graph(1.3 * inputs[:batch]))
