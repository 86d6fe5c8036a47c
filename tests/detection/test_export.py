"""Detectors as ONNX files and packages: all queries in the graph, and the detections of `predict` again."""

import dataclasses
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from detection.conftest import GRID, fitted_to, noise, plain_detr, seeded
from detection.detector_zoo import ZOO, GridDetector
from exported import quick_wrapper
from torch import nn

import trustgp
from trustgp.detection import Adapter, Detection
from trustgp.detection.export import DetectorGraph, DetectorSource, differences
from trustgp.export import ExportedDetector, open_compiled, open_onnx, traced
from trustgp.export.detector_file import ANSWERS, DetectorFacts

pytest.importorskip("onnxruntime", reason="files take onnxruntime: pip install trustgp[export]")
pytestmark = pytest.mark.filterwarnings("ignore:.*classes have no training row")
PLAIN = Adapter(seen=("fine", "coarse"), labels=2)
FAMILIES = {"DETR": plain_detr, **{name: ZOO[name] for name in ("YOLOS", "Deformable DETR", "RT-DETR")}}


def assert_same(
    expected: list[trustgp.Detections], exported: list[trustgp.Detections], rounding: float = 1e-4
):
    """Detections of a file are those of `predict`; `rounding` is what the novelty may be off."""
    assert len(expected) == len(exported)
    for one, other in zip(expected, exported, strict=True):
        assert (one.valid, len(one)) == (other.valid, len(other))
        assert torch.equal(one.labels, other.labels)
        torch.testing.assert_close(other.boxes, one.boxes, rtol=0, atol=1e-4 * 64)
        torch.testing.assert_close(other.confidence, one.confidence, rtol=0, atol=1e-4)
        torch.testing.assert_close(other.std, one.std, rtol=10 * rounding, atol=0)
        torch.testing.assert_close(other.probabilities, one.probabilities, rtol=0, atol=10 * rounding)
        torch.testing.assert_close(other.novelty, one.novelty, rtol=0, atol=rounding)
        assert other.picture_novelty == pytest.approx(one.picture_novelty, abs=rounding)
        for name in ("df", "threshold", "picture_threshold"):
            assert getattr(one, name) == getattr(other, name)
        kinds = [{name: value.dtype for name, value in x.numpy().items()} for x in (one, other)]
        assert kinds[0] == kinds[1]


@pytest.fixture(scope="module")
def model() -> trustgp.DetectionModel:
    """Of a small YOLO that finds objects twice; with a threshold."""
    model = fitted_to(seeded(GridDetector), GRID, most=60)
    model.threshold(false_alarm=0.2)
    return model


@pytest.fixture(scope="module")
def path(model, tmp_path_factory) -> Path:
    return trustgp.export_onnx(model, tmp_path_factory.mktemp("file") / "grid.onnx", noise(2, 3))


@pytest.fixture(scope="module")
def opened(path) -> ExportedDetector:
    return open_onnx(path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", FAMILIES)
def test_a_file_of_each_family_gives_the_detections_of_predict(name, tmp_path):
    """The grid's file is tried in every run; only attention, token queries and top-k queries differ here."""
    model = fitted_to(seeded(FAMILIES[name]), Adapter(), most=5)
    exported = open_onnx(trustgp.export_onnx(model, tmp_path / "detector.onnx", noise(2, 3)))
    images = noise(3, 5)
    images[1] = torch.nan
    # with random weights the features of RT-DETR hardly differ between pictures: `predict` of one picture
    # alone and among others differs as much
    rounding = 3e-2 if name == "RT-DETR" else 1e-4
    assert_same(model.predict(images), exported(images), rounding)
    assert_same(model.predict(images[2]), exported(images[2:]), rounding)


def test_the_page_lists_the_tested_detectors():
    page = (Path(__file__).parents[2] / "docs" / "detection.md").read_text()
    (sentence,) = re.findall(r"([^.]+)are tested as ONNX files", page)
    assert all(name in sentence for name in [*FAMILIES, "Conditional DETR"])


def test_the_graph_answers_for_every_query(model, opened):
    images = noise(3, 5)
    exported = opened.run(images.numpy())
    assert tuple(exported) == ANSWERS
    shapes = {"boxes": (3, 80, 4), "std": (3, 80, 4), "probabilities": (3, 80, 3)}
    shapes |= dict.fromkeys(("labels", "confidence", "novelty"), (3, 80))
    shapes |= dict.fromkeys(("picture_novelty", "valid"), (3,))
    assert {name: value.shape for name, value in exported.items()} == shapes
    graph = traced(model, images)(images)
    for name, value in exported.items():
        np.testing.assert_allclose(value, graph[name].detach().numpy(), rtol=1e-4, atol=1e-5)


def test_selected_detections_are_those_of_predict(model, opened):
    images = noise(4, 7)
    assert_same(model.predict(images), opened(images))
    assert_same(model.predict(images), opened.predict(list(images.numpy())))
    assert_same(model.predict(images[0]), opened(images[0]))
    assert opened([]) == []
    for shape in ((1, 3, 32, 32), (64, 64)):
        with pytest.raises(ValueError, match=rf"are \({', '.join(map(str, shape))}\); the file takes"):
            opened(torch.zeros(shape))
    for most, adapter in ((50, GRID), (2, PLAIN)):
        settings = Detection(0.3, most=most, adapter=adapter)
        other = type(model)(dataclasses.replace(model.state, settings=settings))
        again = ExportedDetector(opened.run, "the file")
        changes = {"most": most, "suppression": adapter.suppression}
        again.facts = dataclasses.replace(opened.facts, confidence_threshold=0.3, **changes)
        assert_same(other.predict(images), again(images))


def test_a_picture_that_is_not_finite_is_not_valid_and_the_others_are(opened):
    images = noise(3, 5)
    whole = opened.run(images)
    images[1, 0, 3, 3] = torch.inf
    exported = opened.run(images)
    assert exported["valid"].tolist() == [True, False, True]
    assert (exported["confidence"][1] == 0).all()
    assert (exported["novelty"][1] == 1).all()
    assert np.isinf(exported["std"][1]).all()
    assert exported["picture_novelty"][1] == 1
    assert (exported["boxes"][1] == 0).all()
    for name in ANSWERS:
        np.testing.assert_array_equal(exported[name][[0, 2]], whole[name][[0, 2]])
    assert opened(images)[1].summary["std"] == float("inf")


def test_the_metadata_select_detections(model, opened):
    facts, metadata = opened.facts, opened.metadata
    assert facts.novelty_threshold == float(model.novelty_threshold.threshold) == float(metadata["threshold"])
    assert metadata["false_alarm"] == "0.2"
    assert (metadata["likelihood"], metadata["detector"]) == ("Detection", "GridDetector")
    assert float(opened.novelty_threshold.threshold) == pytest.approx(facts.novelty_threshold)
    assert "3 x 64 x 64 to Detections" in repr(opened)


def test_a_monitor_runs_on_a_file_as_on_the_model(model, opened):
    frames = [*noise(3, 5), torch.full((3, 64, 64), torch.nan), 100 * noise(1, 6)[0]]
    monitors = [trustgp.Monitor(one, std=5.0) for one in (model, model.watch(), opened, opened.watch())]
    assert {one.threshold for one in monitors} == {0.5}
    verdicts = [[one(frame) for frame in frames] for one in monitors]
    assert len({tuple(verdict.status for verdict in lot) for lot in verdicts}) == 1
    assert verdicts[0][3].status == "invalid input"
    assert verdicts[2][0].novelty == pytest.approx(verdicts[0][0].novelty, rel=1e-4)


def test_inconsistent_metadata_and_damaged_files_are_refused(opened, path, tmp_path):
    wrong = {"most": "0", "picture": "[3]", "df": "none", "classes": "7", "suppression": '"a"'}
    for name, value in wrong.items():
        with pytest.raises(trustgp.ArtifactError, match=r"file\.onnx: its metadata"):
            DetectorFacts.read({**opened.metadata, name: value}, "file.onnx")
    whole = path.read_bytes()
    (tmp_path / "bad.onnx").write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    with pytest.raises(trustgp.ArtifactError, match="damaged"):
        open_onnx(tmp_path / "bad.onnx")


def test_a_file_that_disagrees_is_not_kept(model, tmp_path, monkeypatch):
    edges = dataclasses.replace(model.state.edges, level=1.001 * model.state.edges.level)
    wrong = dataclasses.replace(model.state, edges=edges)
    graph = lambda self, inputs, plain: DetectorGraph(wrong, plain=plain)  # noqa: E731
    monkeypatch.setattr(DetectorSource, "graph", graph)
    (tmp_path / "grid.onnx").write_text("before")
    with pytest.raises(trustgp.ExportError, match="'std' of the exported graph differs from predict"):
        trustgp.export_onnx(model, tmp_path / "grid.onnx", noise(2, 3))
    assert (tmp_path / "grid.onnx").read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 1


def test_queries_may_come_in_another_order(model):
    every = dataclasses.replace(model.state, settings=Detection(1e-30, most=99, adapter=PLAIN))
    (one,) = type(model)(every).predict(noise(1, 5))
    exported = {name: getattr(one, name).flip(0) for name in one.ARRAYS}
    exported |= {"valid": torch.tensor(True), "picture_novelty": torch.tensor(one.picture_novelty)}
    assert max(differences(one, exported, model.state, 64).values()) < 1e-3
    exported["novelty"] = exported["novelty"] + 1e-2
    assert differences(one, exported, model.state, 64)["novelty"] > 1


class _Branching(GridDetector):
    def forward(self, pictures):
        return super().forward(pictures if bool(pictures.sum() > 1e9) else 1.0 * pictures)


class _Sorting(GridDetector):
    def forward(self, pictures):
        outputs = super().forward(pictures)
        return {**outputs, "logits": outputs["logits"] + 0.0 * outputs["logits"].sort(dim=1).values}


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        pytest.param(_Branching, "_Branching itself cannot be traced", marks=pytest.mark.nightly),
        (_Sorting, r"_Sorting itself uses aten\.sort\.default, which has no translation to ONNX"),
    ],
)
def test_detectors_that_cannot_be_exported_are_refused(kind, match, tmp_path):
    model = fitted_to(seeded(kind), GRID)
    with pytest.raises(trustgp.ExportError, match=match):
        trustgp.export_onnx(model, tmp_path / "no.onnx", noise(2, 3))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"input_names": ["a"]}, "input_names= is not for detectors"),
        ({"example_inputs": None}, "pass example_inputs=, a few pictures"),
        ({"example_inputs": []}, "example_inputs= must hold at least one"),
        ({"example_inputs": torch.zeros(1, 3, 32, 32)}, "the model was fitted on"),
    ],
)
def test_bad_options_are_refused_before_the_work(model, options, match, tmp_path):
    options = {"example_inputs": noise(1), **options}
    with pytest.raises(ValueError, match=match):
        trustgp.export_onnx(model, tmp_path / "no.onnx", **options)


@pytest.mark.skipif(shutil.which("g++") is None, reason="a package takes a C++ compiler: no g++ here")
@pytest.mark.nightly
def test_a_package_gives_the_detections_of_predict(model, tmp_path):
    """Compiles: only this sees a graph that AOTInductor translates wrongly."""
    path = trustgp.compile(model, tmp_path / "grid.pt2", noise(2, 3), options=quick_wrapper())
    exported = open_compiled(path)
    images = noise(3, 5)
    images[1] = torch.nan
    assert_same(model.predict(images), exported(images))
    assert_same(model.predict(images[0]), exported(images[0].numpy()))
    assert trustgp.Monitor(exported, std=5.0)(images[1]).status == "invalid input"
    with pytest.raises(ValueError, match="the file takes"):
        exported(images[:, :, :32])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda model: trustgp.compress(model, rank=8), r"trustgp\.compress is not for a DetectionModel"),
        (lambda model: trustgp.export.Graph(model, noise(1)), r"trustgp\.export\.Graph is not for a"),
    ],
)
def test_functions_that_take_no_detector_say_why(model, call, match):
    with pytest.raises(ValueError, match=match):
        call(model)


def test_functions_of_a_model_refuse_a_bare_network(tmp_path):
    calls = (".onnx", trustgp.export_onnx), (".pt2", trustgp.compile), ("", lambda m, *_: trustgp.compress(m))
    for end, call in calls:
        with pytest.raises(TypeError, match="model is a Linear; pass"):
            call(nn.Linear(2, 2), tmp_path / f"no{end}", torch.zeros(1, 2))
