"""The file that `export_onnx` writes: what is in it, what is refused, and that nothing else is left."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from exported import BATCHES, assert_equal, model_of, network_of, rows_of
from torch import nn

import trustgp
from trustgp.experts.posteriors import PriorPosterior
from trustgp.export import ExportError, Graph, open_onnx, traced
from trustgp.export.verify import differences

onnx = pytest.importorskip("onnx", reason='onnx is not installed: pip install "trustgp[export]"')


@pytest.fixture(scope="module")
def model() -> trustgp.UncertaintyModel:
    """With a witness, held-out rows and a threshold."""
    model = model_of("gelu", witness=trustgp.Witness(rows=20), validation=rows_of("gelu", 40, seed=3))
    model.threshold(false_alarm=0.1)
    return model


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "model.onnx"
    names = {"input_names": ["a", "b", "c"], "input_units": ["rad"] * 3, "output_units": ["Nm", "Nm"]}
    return trustgp.export_onnx(model, path, rows_of("gelu", 5)[0], calibration_date="2026-02-03", **names)


def test_witness_held_out_rows_and_threshold_are_in_the_file(model, file):
    runner = open_onnx(file)
    assert model.witness is not None
    inputs = 1.5 * rows_of("gelu", 17, seed=4)[0]
    for batch in BATCHES:
        expected, found = model.predict(inputs[:batch]), runner(inputs[:batch])
        assert_equal(expected, found)
        np.testing.assert_array_equal(found["is_novel"], expected.is_novel.numpy())


def test_the_file_tells_where_it_comes_from(model, file):
    told = open_onnx(file).metadata
    assert told["version"] == trustgp.__version__
    assert told["network"] == model.origin.network
    assert told["outputs"] == "pseudo"
    assert told["num_experts"] == str(model.num_experts)
    assert float(told["threshold"]) == float(model.novelty_threshold.threshold)
    assert told["calibration_date"] == "2026-02-03"
    assert json.loads(told["input_names"]) == ["a", "b", "c"]
    assert json.loads(told["output_units"]) == ["Nm", "Nm"]
    assert "output_names" not in told


def test_the_file_stands_by_itself_and_holds_standard_operators_only(file):
    made = onnx.load(file, load_external_data=False)
    assert {opset.domain for opset in made.opset_import} == {""}
    assert sorted(path.name for path in file.parent.iterdir()) == [file.name]
    assert [value.name for value in made.graph.output] == list(open_onnx(file).output_names)
    assert made.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "n"


def test_the_model_predicts_as_before(model, file):
    inputs = rows_of("gelu", 6, seed=8)[0]
    before = model_of("gelu", witness=trustgp.Witness(rows=20), validation=rows_of("gelu", 40, seed=3))
    assert torch.equal(model.predict(inputs).variance, before.predict(inputs).variance)
    assert not any(module._forward_hooks for module in model.network.modules())


def test_an_eager_graph_of_either_form_equals_predict(model):
    inputs = rows_of("gelu", 9, seed=5)[0]
    for plain in (True, False):
        assert_equal(model.predict(inputs), Graph(model, inputs, plain=plain)(inputs))


@pytest.mark.parametrize(("outputs", "logits"), [(None, 1), (None, 3), ("pseudo", 3), ("separate", 3)])
def test_probabilities_of_classifiers_equal_those_of_predict(outputs, logits, tmp_path):
    network = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, logits)).eval()
    inputs = rows_of("tanh", 60)[0]
    labels = (inputs.sum(dim=1) > 0).long() + (inputs[:, 0] > 1).long() * (logits > 1)
    options = {} if outputs is None else {"outputs": outputs}
    likelihood = trustgp.Classification()
    model = trustgp.fit(
        network, (inputs, labels), likelihood=likelihood, num_experts=2, progress=False, **options
    )
    runner = open_onnx(trustgp.export_onnx(model, tmp_path / "model.onnx", inputs[:4]))
    rows = torch.cat([1.5 * rows_of("tanh", 6, seed=1)[0], torch.full((1, 3), torch.nan)])
    expected, found = model.predict(rows), runner(rows)
    np.testing.assert_allclose(found["probabilities"], expected.probabilities.numpy(), atol=1e-5)
    np.testing.assert_allclose(found["variance"], expected.variance.numpy(), rtol=1e-4)
    np.testing.assert_allclose(found["score"], expected.score.numpy(), rtol=1e-4)
    np.testing.assert_array_equal(found["expert"], expected.expert.numpy())


class Named(nn.Module):
    """Takes two tensors by name."""

    def __init__(self) -> None:
        super().__init__()
        self.joints, self.load = nn.Linear(3, 6), nn.Linear(1, 6)
        self.last = nn.Linear(6, 1)

    def forward(self, joints, load):
        return self.last(torch.tanh(self.joints(joints) + self.load(load))).squeeze(1)


@pytest.mark.parametrize("named", [True, False])
def test_dicts_and_tuples_go_in_and_one_number_a_row_comes_out(named, tmp_path):
    first, targets = rows_of("tanh", 40)
    second = first[:, :1].square()
    inputs = {"load": second, "joints": first} if named else (first, second)
    model = trustgp.fit(Named().eval(), (inputs, targets[:, 0]), num_experts=2, progress=False)
    runner = open_onnx(trustgp.export_onnx(model, tmp_path / "model.onnx", inputs))
    assert runner.input_names == (("joints", "load") if named else ("input.0", "input.1"))
    assert_equal(model.predict(inputs), runner(inputs))
    with pytest.raises(ValueError, match="structure"):
        runner(first)


@pytest.mark.parametrize("tangents", [None, trustgp.JacobianRows(keep_per_expert=20), trustgp.Sketch(32)])
def test_an_expert_that_failed_answers_with_the_prior(tangents, tmp_path):
    model = model_of("relu", num_experts=3, tangents=tangents)
    mixture, inputs = model.mixtures[0], rows_of("relu", 40)[0]
    lost = int(model.predict(inputs).expert[0])
    posterior = PriorPosterior(torch.zeros(0, 2, dtype=torch.float64))
    experts = [replace(e, posterior=posterior) if i == lost else e for i, e in enumerate(mixture.experts)]
    model.state = replace(model.state, mixtures=(replace(mixture, experts=tuple(experts)),))
    expected = model.predict(inputs)
    assert float(expected.novelty[0]) == 1.0
    runner = open_onnx(trustgp.export_onnx(model, tmp_path / "model.onnx", inputs[:4]))
    assert_equal(expected, runner(inputs))
    assert_equal(expected, Graph(model, inputs)(inputs))


class Odd(nn.Module):
    """An operation that the file has no place for."""

    def forward(self, x):
        return torch.special.i0(x) + torch.lgamma(x.abs() + 1)


class Choosy(nn.Module):
    """Code that asks for a number."""

    def forward(self, x):
        return x if float(x.detach().abs().sum()) >= 0 else -x


REFUSED = [
    (Odd(), r"^layer '1.1' \(Odd\) uses aten.i0.default, which has no translation to ONNX;"),
    (nn.Softshrink(), r"^layer '1.1' \(Softshrink\) uses aten.softshrink_backward.default"),
    (Choosy(), r"^layer '1.1' \(Choosy\) cannot be traced"),
]


@pytest.mark.parametrize(("odd", "said"), REFUSED)
def test_what_cannot_be_translated_is_refused_by_layer_and_class(odd, said, tmp_path):
    network = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh(), odd), nn.Linear(4, 2)).eval()
    rows, tangents = rows_of("relu", 30), trustgp.JacobianRows()
    model = trustgp.fit(network, rows, num_experts=1, tangents=tangents, progress=False)
    with pytest.raises(ExportError, match=said):
        trustgp.export_onnx(model, tmp_path / "model.onnx", rows[0][:3])
    assert list(tmp_path.iterdir()) == []
    assert not any(module._forward_hooks for module in model.network.modules())


def test_no_rows_are_refused_in_a_sentence(model, file, tmp_path):
    none = torch.zeros(0, 3)
    for ask in (
        lambda: trustgp.export_onnx(model, tmp_path / "model.onnx", none),
        lambda: trustgp.compile(model, tmp_path / "model.pt2", none),
        lambda: traced(model, none),
        lambda: differences(model, open_onnx(file), none),
        lambda: open_onnx(file)(none),
    ):
        with pytest.raises(ValueError, match="inputs hold no rows; pass at least one"):
            ask()


def test_a_graph_that_differs_from_predict_is_not_kept(model, tmp_path, monkeypatch):
    from trustgp.export.module import experts

    (tmp_path / "model.onnx").write_text("the old file")
    inputs = rows_of("gelu", 5)[0]
    right = experts.vectors_of
    monkeypatch.setattr(experts, "vectors_of", lambda rows: right(rows) + 1)  # the witness looks elsewhere
    with pytest.raises(ExportError, match="differs from predict"):
        trustgp.export_onnx(model, tmp_path / "model.onnx", inputs)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert (tmp_path / "model.onnx").read_text() == "the old file"


@pytest.mark.parametrize(
    "name", ["mean", "variance", "corrected", "corrected_variance", "novelty", "expert", "valid"]
)
def test_the_comparison_sees_a_thousandth_in_any_answer(model, name):
    inputs = rows_of("gelu", 5)[0]
    graph = Graph(model, inputs)

    def wrong(rows):
        found = graph(rows)
        value = found[name]
        found[name] = (
            value * 1.001
            if value.is_floating_point()
            else (~value if value.dtype == torch.bool else value + 1)
        )
        return found

    assert differences(model, graph, inputs) == {}
    assert name in differences(model, wrong, inputs)


def test_wrong_options_are_named(model, file, tmp_path):
    inputs = rows_of("gelu", 2)[0]
    with pytest.raises(ValueError, match="input_units holds 2 texts; a list of 3"):
        trustgp.export_onnx(model, tmp_path / "m.onnx", inputs, input_units=["rad", "rad"])
    with pytest.raises(ValueError, match="opset=7"):
        trustgp.export_onnx(model, tmp_path / "m.onnx", inputs, opset=7)
    with pytest.raises(TypeError, match="'input' is float64"):
        open_onnx(file)(inputs.double())


def test_what_is_larger_than_a_file_may_be_is_refused(model, tmp_path, monkeypatch):
    monkeypatch.setattr("trustgp.export.onnx.translate.MAX_FILE_BYTES", 1000)
    with pytest.raises(ExportError, match="at most 2 GiB"):
        trustgp.export_onnx(model, tmp_path / "m.onnx", rows_of("gelu", 2)[0])


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_without_the_extra_every_entry_names_it(package, model, file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # hidden: an import of it fails
    said = rf'^{package} is not installed; pip install "trustgp\[export\]"'
    with pytest.raises(ImportError, match=said):
        trustgp.export_onnx(model, tmp_path / "m.onnx", rows_of("gelu", 2)[0])
    with pytest.raises(ImportError, match=said):
        open_onnx(file)
    assert list(tmp_path.iterdir()) == []


def test_importing_trustgp_does_not_import_onnx():
    script = "import sys, trustgp\nassert not {'onnx', 'onnxruntime', 'onnxscript'} & sys.modules.keys()\n"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused_by_the_layers_name(dtype, tmp_path):
    inputs, targets = (x.to(dtype) for x in rows_of("relu", 40))
    model = trustgp.fit(network_of("relu").to(dtype), (inputs, targets), num_experts=2, progress=False)
    with pytest.raises(trustgp.ExportError, match=r"layer '0' \(Linear\) is in half precision"):
        trustgp.export_onnx(model, tmp_path / "model.onnx", inputs[:3])
    assert not list(tmp_path.iterdir())


def test_float64_networks_are_exported_too(tmp_path):
    inputs, targets = (x.double() for x in rows_of("tanh", 40))
    model = trustgp.fit(network_of("tanh").double(), (inputs, targets), num_experts=2, progress=False)
    runner = open_onnx(trustgp.export_onnx(model, tmp_path / "model.onnx", inputs[:3]))
    np.testing.assert_allclose(runner(inputs)["variance"], model.predict(inputs).variance, rtol=1e-8)
