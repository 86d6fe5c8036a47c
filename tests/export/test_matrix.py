"""onnxruntime and the traced graph equal `predict`: each network, mode, likelihood and kind of tangents."""

import numpy as np
import pytest
import torch
from exported import BATCHES, CONVS, MLPS, MODES, NETWORKS, PRUNED, assert_equal, model_of, rows_of
from fitted_zoo import NAMES, TANGENTS

import trustgp
from trustgp.export import open_onnx, traced

onnx = pytest.importorskip("onnx", reason='onnx is not installed: pip install "trustgp[export]"')
KINDS = {"factors": trustgp.LayerFactors(), "pruned": PRUNED, "sketch": trustgp.Sketch(32)}
KINDS_OF = {**dict.fromkeys(MLPS, tuple(KINDS)), **dict.fromkeys(CONVS, ("pruned", "sketch"))}
# Every network once, each with the next mode and another kind of tangents. Convolutions also with all outputs
# differentiated together, which is a second batch dimension for their gradients and those of pools.
ONCE = [(name, MODES[i % 3], KINDS_OF[name][i // 3 % len(KINDS_OF[name])]) for i, name in enumerate(NETWORKS)]
TOGETHER = [(name, "shared", "sketch") for name, mode, _ in ONCE if name in CONVS and mode != "shared"]
NIGHTLY = {*NETWORKS} - {"tanh", "layer norm", "groups and dilation", "max pool"}
# Of the zoo a member for each mode, kind of tangents and likelihood; all pairs of them nightly.
DAILY = ("classification-factors-pseudo", "classification-rows-shared-validation",
         "classification-sketch-separate", "regression-sketch-pseudo-validation")  # fmt: skip


def nightly(*parameters):
    return pytest.param(*parameters, marks=pytest.mark.nightly)


def assert_exported(model, inputs, path, *forms):
    for run in (open_onnx(trustgp.export_onnx(model, path, inputs[:4])), *forms):
        for batch in BATCHES:
            expected, outputs = model.predict(inputs[:batch]), run(inputs[:batch])
            assert_equal(expected, outputs)
            if "probabilities" in outputs:
                chances = np.asarray(outputs["probabilities"])
                np.testing.assert_allclose(chances, expected.probabilities.numpy(), atol=1e-5)
    used = str((graph := onnx.load(path).graph).node)  # onnxruntime warns of a constant that is not
    assert all(f'"{constant.name}"' in used for constant in graph.initializer)


@pytest.mark.parametrize(
    ("name", "mode", "kind"),
    [*(nightly(*c) if c[0] in NIGHTLY else c for c in ONCE), *(nightly(*c) for c in TOGETHER)],
)
def test_every_network_equals_predict_at_every_batch(name, mode, kind, tmp_path):
    """Gradients of each kind of layer go through other operations."""
    model = model_of(name, outputs=mode, tangents=KINDS[kind])
    assert_exported(model, 1.3 * rows_of(name, max(BATCHES), seed=1)[0], tmp_path / "model.onnx")


@pytest.mark.parametrize(
    "name", [n if n in DAILY else nightly(n) for n in NAMES if n.split("-")[1] in TANGENTS]
)
def test_modes_tangents_and_likelihoods_equal_predict_and_the_network_runs_once(name, fitted_zoo, tmp_path):
    """Any two of mode, kind of tangents and likelihood meet; a witness costs seconds, see test_files.py."""
    member = fitted_zoo[name]
    model = member.fit(witness=None) if "witness" in name else member.model
    graph = traced(model, member.fresh[0][:1])
    assert_exported(model, 1.3 * member.fresh[0], tmp_path / "model.onnx", graph)
    assert not any("trustgp" in str(node.target) for node in graph.graph.nodes)
    assert len(graph.graph.find_nodes(op="call_function", target=torch.ops.aten.tanh.default)) == 1


@pytest.mark.parametrize("kind", ["sketch", nightly("pruned")])
def test_a_compressed_model_equals_predict(kind, tmp_path):
    inputs, targets = rows_of("relu", 60, seed=2)
    whole = model_of("relu", tangents=KINDS[kind])
    model = trustgp.compress(whole, validation=(inputs, targets), progress=False, rank=8)
    assert_exported(model, 1.3 * inputs, tmp_path / "model.onnx", traced(model, inputs[:1]))
