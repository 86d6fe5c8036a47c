"""The files of `export_onnx`: their content, what is refused, and that no other file is left."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from exported import BATCHES, assert_equal, model_of, network_of, rows_of
from many import each
from torch import nn

import trustgp
from trustgp.experts.posteriors import PriorPosterior
from trustgp.export import ExportError, Graph, open_onnx, traced
from trustgp.export.module import graph as graph_module
from trustgp.export.verify import ExportSource

onnx = pytest.importorskip("onnx", reason='onnx is not installed: pip install "trustgp[export]"')
OPTIONS = {"witness": trustgp.Witness(rows=20, neighbours=1), "validation": rows_of("gelu", 40, seed=3)}


@pytest.fixture(scope="module")
def model() -> trustgp.UncertaintyModel:
    """With a witness, held-out rows and a threshold."""
    model = model_of("gelu", **OPTIONS)
    model.threshold(false_alarm=0.1)
    return model


@pytest.fixture(scope="module")
def plain() -> trustgp.UncertaintyModel:
    """Without a witness, whose export takes seconds."""
    return model_of("relu")


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "model.onnx"
    names = {"input_names": ["a", "b", "c"], "input_units": ["rad"] * 3, "output_units": ["Nm", "Nm"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "onnxscript", None)  # an import of it fails
        return trustgp.export_onnx(model, path, rows_of("gelu", 5)[0], calibration_date="2026-02-03", **names)


def test_witness_held_out_rows_and_threshold_are_in_the_file(model, file):
    runner, inputs = open_onnx(file), 1.5 * rows_of("gelu", 17, seed=4)[0]
    assert model.witness is not None
    for batch in BATCHES:
        expected, outputs = model.predict(inputs[:batch]), runner(inputs[:batch])
        assert_equal(expected, outputs)
        np.testing.assert_array_equal(outputs["is_novel"], expected.is_novel.numpy())
    for form in (True, False):
        assert_equal(model.predict(inputs[:9]), Graph(model, inputs, plain=form)(inputs[:9]))


def test_the_file_has_its_metadata_is_self_contained_and_has_standard_operators_only(model, file):
    metadata = open_onnx(file).metadata
    assert metadata["version"] == trustgp.__version__
    assert metadata["network"] == model.origin.network
    assert metadata["outputs"] == "pseudo"
    assert metadata["num_experts"] == str(model.num_experts)
    assert float(metadata["threshold"]) == float(model.novelty_threshold.threshold)
    assert metadata["calibration_date"] == "2026-02-03"
    assert json.loads(metadata["input_names"]) == ["a", "b", "c"]
    assert json.loads(metadata["output_units"]) == ["Nm", "Nm"]
    assert "output_names" not in metadata
    content = onnx.load(file, load_external_data=False)
    assert {opset.domain for opset in content.opset_import} == {""}
    assert sorted(path.name for path in file.parent.iterdir()) == [file.name]
    assert [value.name for value in content.graph.output] == list(open_onnx(file).output_names)
    assert content.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "n"


def test_an_export_does_not_change_the_model(model, file):
    inputs = rows_of("gelu", 6, seed=8)[0]
    before = model_of("gelu", **OPTIONS)
    assert torch.equal(model.predict(inputs).variance, before.predict(inputs).variance)
    assert not any(module._forward_hooks for module in model.network.modules())


def test_probabilities_of_one_logit_equal_those_of_predict(tmp_path):
    torch.manual_seed(0)  # here the score of a row that was held out was steeper than rounding allows
    network = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).eval()
    inputs = rows_of("tanh", 60)[0]
    rows, options = (inputs, (inputs.sum(dim=1) > 0).long()), {"num_experts": 2, "progress": False}
    model = trustgp.fit(network, rows, likelihood=trustgp.Classification(), **options)
    runner = open_onnx(trustgp.export_onnx(model, tmp_path / "model.onnx", inputs[:4]))
    rows = torch.cat([1.5 * rows_of("tanh", 6, seed=1)[0], torch.full((1, 3), torch.nan)])
    expected, outputs = model.predict(rows), runner(rows)
    np.testing.assert_allclose(outputs["probabilities"], expected.probabilities.numpy(), atol=1e-5)
    for name in ("variance", "score", "expert"):
        np.testing.assert_allclose(outputs[name], getattr(expected, name).numpy(), rtol=1e-4)


class Named(nn.Module):
    """Takes two tensors by name."""

    def __init__(self) -> None:
        super().__init__()
        self.joints, self.load = nn.Linear(3, 6), nn.Linear(1, 6)
        self.last = nn.Linear(6, 1)

    def forward(self, joints, load):
        return self.last(torch.tanh(self.joints(joints) + self.load(load))).squeeze(1)


@pytest.mark.parametrize("named", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_inputs_may_be_dicts_or_tuples_and_outputs_one_number_a_row(named, tmp_path):
    first, targets = rows_of("tanh", 40)
    second = first[:, :1].square()
    inputs = {"load": second, "joints": first} if named else (first, second)
    rows = inputs, targets[:, 0]
    model = trustgp.fit(Named().eval(), rows, num_experts=2, witness=None, progress=False)
    runner = open_onnx(trustgp.export_onnx(model, tmp_path / "model.onnx", inputs))
    assert runner.input_names == (("joints", "load") if named else ("input.0", "input.1"))
    assert_equal(model.predict(inputs), runner(inputs))
    with pytest.raises(ValueError, match="structure"):
        runner(first)


def test_an_expert_that_failed_predicts_the_prior(tmp_path):
    model = model_of("relu", num_experts=3, tangents=trustgp.JacobianRows(keep_per_expert=20))
    mixture, inputs = model.mixtures[0], rows_of("relu", 40)[0]
    failed = int(model.predict(inputs).expert[0])
    posterior = PriorPosterior(torch.zeros(0, 2, dtype=torch.float64))
    experts = [replace(e, posterior=posterior) if i == failed else e for i, e in enumerate(mixture.experts)]
    model.state = replace(model.state, mixtures=(replace(mixture, experts=tuple(experts)),))
    expected = model.predict(inputs)
    assert float(expected.novelty[0]) == 1.0
    runner = open_onnx(trustgp.export_onnx(model, tmp_path / "model.onnx", inputs[:4]))
    assert_equal(expected, runner(inputs))
    assert_equal(expected, Graph(model, inputs)(inputs))


class Untranslated(nn.Module):
    """An operation that ONNX lacks."""

    def forward(self, x):
        return torch.special.i0(x) + torch.lgamma(x.abs() + 1)


class Branching(nn.Module):
    """Code that depends on a value."""

    def forward(self, x):
        return x if float(x.detach().abs().sum()) >= 0 else -x


@each(
    ("layer", "match"),
    [
        (Untranslated(), r"^layer '1.1' \(Untranslated\) uses aten.i0.default, which has no translation"),
        (nn.Softshrink(), r"^layer '1.1' \(Softshrink\) uses aten.softshrink_backward.default"),
        (Branching(), r"^layer '1.1' \(Branching\) cannot be traced"),
    ],
)
def test_an_untranslated_layer_is_refused_by_name_and_class(layer, match, tmp_path):
    network = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh(), layer), nn.Linear(4, 2)).eval()
    rows, options = rows_of("relu", 30), {"num_experts": 1, "witness": None, "progress": False}
    model = trustgp.fit(network, rows, tangents=trustgp.JacobianRows(), **options)
    with pytest.raises(ExportError, match=match):
        trustgp.export_onnx(model, tmp_path / "model.onnx", rows[0][:3])
    assert list(tmp_path.iterdir()) == []
    assert not any(module._forward_hooks for module in model.network.modules())


def test_wrong_calls_are_refused(plain, file, tmp_path):
    none, inputs, path = torch.zeros(0, 3), rows_of("relu", 2)[0], tmp_path / "model.onnx"
    for call, error, match in [
        (lambda: trustgp.export_onnx(plain, path, none), ValueError, "hold no rows; pass at least one"),
        (lambda: trustgp.compile(plain, tmp_path / "model.pt2", none), ValueError, "hold no rows"),
        (lambda: traced(plain, none), ValueError, "hold no rows"),
        (lambda: open_onnx(file)(none), ValueError, "hold no rows"),
        (lambda: trustgp.export_onnx(plain, path, inputs, input_units=["m"]), ValueError, "a list of 3"),
        (lambda: open_onnx(file)(inputs.double()), TypeError, "'input' is float64"),
    ]:
        with pytest.raises(error, match=match):
            call()
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_differs_from_predict_or_is_too_large_is_not_kept(plain, tmp_path, monkeypatch):
    path, inputs, right = tmp_path / "model.onnx", rows_of("relu", 5)[0], graph_module.answers_of
    path.write_text("before")

    def wrong(prediction, threshold):
        outputs = right(prediction, threshold)
        return {**outputs, "variance": 1.001 * outputs["variance"]}

    monkeypatch.setattr(graph_module, "answers_of", wrong)
    with pytest.raises(ExportError, match="'variance' of the exported graph"):
        trustgp.export_onnx(plain, path, inputs)
    monkeypatch.setattr("trustgp.export.onnx.translate.MAX_FILE_BYTES", 1000)
    with pytest.raises(ExportError, match="at most 2 GiB"):
        trustgp.export_onnx(plain, path, inputs)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_text() == "before"


def test_the_comparison_detects_a_thousandth_in_any_output(model):
    inputs = rows_of("gelu", 5)[0]
    graph, source = Graph(model, inputs), ExportSource(model)
    assert source.differences(graph, inputs) == {}
    for name in ("mean", "variance", "corrected", "corrected_variance", "novelty", "expert", "valid"):

        def wrong(rows, name=name):
            outputs = graph(rows)
            value = outputs[name]
            other = ~value if value.dtype == torch.bool else value + 1
            return {**outputs, name: 1.001 * value if value.is_floating_point() else other}

        assert name in source.differences(wrong, inputs)


@each("package", ["onnx", "onnxruntime"])
def test_without_the_extra_the_error_names_it(package, plain, file, tmp_path):
    match = rf'^{package} is not installed; pip install "trustgp\[export\]"'
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, package, None)  # an import of it fails
        with pytest.raises(ImportError, match=match):
            trustgp.export_onnx(plain, tmp_path / "m.onnx", rows_of("relu", 2)[0])
        with pytest.raises(ImportError, match=match):
            open_onnx(file)
    assert list(tmp_path.iterdir()) == []


@each("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused_by_the_layers_name(dtype, tmp_path):
    inputs, targets = (x.to(dtype) for x in rows_of("relu", 40))
    model = trustgp.fit(network_of("relu").to(dtype), (inputs, targets), num_experts=2, progress=False)
    with pytest.raises(trustgp.ExportError, match=r"layer '0' \(Linear\) is in half precision"):
        trustgp.export_onnx(model, tmp_path / "model.onnx", inputs[:3])
    assert not list(tmp_path.iterdir())
