"""The monitor: verdicts, hysteresis, and a sensor's faults."""

import copy
import json
import pickle
import re
import weakref

import numpy as np
import pytest
import torch
from blobs import blobs
from blobs import fit as fit_blobs
from draws import Draws
from many import each
from zoo import Net

import trustgp
from trustgp.monitor.readings import joint_limit


class Script:
    """A runner whose score and std are the first two numbers of the frame."""

    calls = 0

    def __call__(self, inputs):
        self.calls += 1
        score, std = inputs[:, 0].double(), inputs[:, 1:].double()
        return {"mean": -std, "variance": std.square(), "novelty": score}


def scripted(*threshold, **options):
    return trustgp.Monitor(Script(), *(threshold or (0.5,)), **options)


def statuses(monitor, scores, std=0.0):
    return [monitor(torch.tensor([score, std])).status for score in scores]


@pytest.fixture(scope="module")
def model(fit_case, toy):
    return fit_case(validation=toy(200, seed=9))


@each(
    ("patience", "scores", "expected"),
    [
        (3, [0.1, 0.5, 0.51, 0.1, 0.1, 0.1, 0.1], ["ok", "ok", "novel", "novel", "novel", "ok", "ok"]),
        # a frame between the levels neither starts an alarm nor lets it end
        (2, [0.45, 0.45, 0.6, 0.1, 0.45, 0.1, 0.45, 0.39, 0.39], ["ok", "ok", *["novel"] * 6, "ok"]),
        # an invalid frame is not a quiet one
        (2, [0.9, 0.1, float("nan"), 0.1, 0.1], ["novel", "novel", "invalid input", "novel", "ok"]),
    ],
)
def test_an_alarm_starts_at_once_and_ends_after_enough_quiet_frames(patience, scores, expected):
    monitor = scripted(std=1.0, leave=0.8, patience=patience)
    assert statuses(monitor, scores) == expected


@each("std", [float("inf"), float("nan"), 1e300])
@each("limit", [None, 1.0])
def test_a_deviation_that_is_not_finite_is_invalid_input(std, limit):
    """A variance of 1e600 is infinite."""

    def runner(inputs):
        variance = torch.full((len(inputs), 1), std, dtype=torch.float64).square()
        return {"mean": inputs[:, :1], "variance": variance, "novelty": torch.zeros(len(inputs))}

    assert trustgp.Monitor(runner, 0.5, std=limit)(torch.zeros(2)).status == "invalid input"


def test_novel_comes_before_uncertain_and_both_have_hysteresis():
    monitor = scripted(std=1.0, leave=0.5, patience=2)
    frames = [[0.1, 1.1], [0.1, 0.6], [0.9, 0.1], [0.1, 0.1], [0.1, 0.1]]
    verdicts = [monitor(torch.tensor(frame)).status for frame in frames]
    assert verdicts == ["uncertain", "uncertain", "novel", "novel", "ok"]


def test_each_output_has_its_own_limit_and_without_a_limit_no_frame_is_uncertain():
    monitor = scripted(std=[1.0, 10.0], patience=1)
    frames = [0.1, 0.9, 9.0], [0.1, 0.9, 11.0], [0.1, 1.1, 1.0]
    assert [monitor(frame).status for frame in frames] == ["ok", "uncertain", "uncertain"]
    assert scripted().limit is None
    with pytest.raises(ValueError, match="novelty"):  # a runner without that field
        trustgp.Monitor(lambda inputs: {"mean": inputs, "variance": inputs}, 0.5)([1.0])
    assert statuses(scripted(), [0.1], std=1e9) == ["ok"]
    monitor = scripted(std=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="3 limits, but the model has 2 outputs"):
        monitor([0.1, 1.0, 1.0])


@each(
    "frame",
    [
        np.full(3, np.nan),
        np.array([0.0, np.inf, 0.0]),
        np.array(["a", "b", "c"]),
        np.array([None, 1.0, 2.0], dtype=object),
        torch.zeros(3, dtype=torch.complex64),
        None,
        "broken",
        [[1.0], [1.0, 2.0]],
        np.ma.array([0.0, 1.0, 2.0], mask=[False, True, False]),
        torch.zeros(3, device="meta"),
        torch.zeros(3).to_sparse(),
    ],
)
@each("first", [True, False])
def test_values_that_are_no_numbers_are_invalid_input_and_nothing_is_raised(model, frame, first):
    monitor = trustgp.Monitor(model, 0.9, std=9.0)
    if not first:
        assert monitor(np.zeros(3)).status != "invalid input"
    verdict = monitor(frame)
    assert verdict.status == "invalid input"
    assert verdict.reason
    assert (verdict.mean, verdict.std, verdict.score, verdict.novelty, verdict.expert) == (None,) * 5
    assert monitor(np.zeros(3)).status != "invalid input"


def test_a_first_frame_of_a_wrong_shape_raises_and_a_later_one_does_not(model):
    monitor = trustgp.Monitor(model)
    for frame in (torch.zeros(4), torch.zeros(2, 3), torch.full((5,), torch.nan)):
        with pytest.raises(ValueError, match=re.escape(str(tuple(frame.shape)))):
            monitor(frame)
    assert monitor.summary()["frames"] == 0
    monitor(torch.zeros(3))
    late = monitor(torch.zeros(4))
    assert (late.status, late.reason) == ("invalid input", "the shape is (4,), not (3,)")


def pair(net, position, speed):
    return net.layer(torch.cat([position, speed], dim=1)).tanh()


def test_dicts_are_accepted_and_a_missing_key_is_named(toy, generator):
    rows, _ = toy(300, seed=4)
    inputs = {"position": rows[:, :2].float(), "speed": rows[:, 2:].float()}
    network, noise = Net(pair, layer=torch.nn.Linear(3, 1)).eval(), torch.randn(300, 1, generator=generator)
    targets = network(**inputs).detach() + 0.1 * noise
    model = trustgp.fit(network, (inputs, targets), num_experts=2, progress=False)
    monitor = trustgp.Monitor(model, 0.9)
    with pytest.raises(ValueError, match="speed"):
        monitor({"position": [0.0, 0.0]})
    verdict = monitor({"position": np.zeros(2), "speed": 0.5 * np.ones((1,))})
    p = model.predict({"position": torch.zeros(1, 2), "speed": torch.full((1, 1), 0.5)})
    assert torch.equal(verdict.mean, p.mean[0])
    assert monitor({"position": np.zeros(2)}).status == "invalid input"


@each(
    "convert",
    [
        lambda row: row,
        lambda row: row[None],
        lambda row: row.numpy(),
        lambda row: row.numpy()[None],
        lambda row: row.tolist(),
        lambda row: row.numpy().astype(">f8"),
        lambda row: row.numpy().astype(np.longdouble),
    ],
)
def test_every_form_of_a_row_gives_the_prediction_of_the_model(model, case, convert):
    row = case.inputs[3]
    verdict, p = trustgp.Monitor(model, 0.9, std=9.0)(convert(row)), model.predict(row[None])
    assert torch.equal(verdict.mean, p.mean[0])
    assert torch.equal(verdict.std, p.std[0])
    assert (verdict.novelty, verdict.score) == (float(p.novelty[0]), float(p.score[0]))
    assert verdict.expert == (int(p.expert[0]),)


def test_integers_are_numbers_and_one_number_is_a_row(model):
    verdict = trustgp.Monitor(model)(np.array([1, 0, -1]))
    p = model.predict(torch.tensor([[1.0, 0.0, -1.0]], dtype=torch.float64))
    assert torch.equal(verdict.mean, p.mean[0])
    monitor = trustgp.Monitor(lambda x: {"mean": x, "variance": x, "novelty": x[:, 0]}, 0.5)
    for frame in ([0.25], np.array([[0.25]])):
        assert monitor(frame).mean.tolist() == [0.25]


def test_memory_does_not_grow_with_the_frames():
    monitor, sizes, references = scripted(std=1.0), [], []
    frames = [np.array([0.6, 0.5]), np.array([0.1, 2.0]), np.array([np.nan, 0.0])]
    for count in (120, 600):
        for number in range(count):
            verdict = monitor(frames[number % 3])
            parts = (verdict, verdict.mean, verdict.std)
            references += [weakref.ref(part) for part in parts if part is not None]
        del verdict, parts
        sizes.append(len(pickle.dumps(monitor)))
    assert abs(sizes[0] - sizes[1]) < 50  # counters have more digits
    assert not any(reference() is not None for reference in references)


def test_the_model_runs_once_a_frame_and_not_at_all_for_an_invalid_one():
    monitor = scripted()
    statuses(monitor, [0.1, 0.2, float("nan"), 0.3])
    assert monitor(np.array([1e300, 0.0])).status == "invalid input"  # beyond the range of float32
    assert monitor.model.calls == 3


def test_the_threshold_is_the_models_own_else_that_of_its_held_out_rows(model):
    model = copy.copy(model)
    assert trustgp.Monitor(model, false_alarm=0.05).threshold == model.threshold(false_alarm=0.05)
    model.threshold(false_alarm=0.2)
    assert trustgp.Monitor(model, false_alarm=0.05).threshold == float(model.novelty_threshold.threshold)
    assert trustgp.Monitor(model, 0.123).threshold == 0.123


def test_familiar_rows_give_both_limits(fitted, toy):
    rows, _ = toy(300, seed=11)
    monitor = trustgp.Monitor(fitted, rows=rows, false_alarm=0.05)
    p = fitted.predict(rows)
    assert int((p.score > monitor.threshold).sum()) == 300 - 286  # of rank 0.95 * 301, rounded up
    assert int((p.std > monitor.limit).any(dim=1).sum()) == 300 - 286
    assert trustgp.Monitor(fitted).threshold > 0  # from training rows that were left out
    assert trustgp.Monitor(fitted, 0.5).limit is None


def test_the_joint_limit_equals_sorting():
    values = Draws(1).uniform(500, 3) + 0.1
    median = np.sort(values.numpy(), axis=0)[249]
    ratio = np.sort((values.numpy() / median).max(axis=1))[int(np.ceil(501 * 0.9)) - 1]
    np.testing.assert_allclose(joint_limit(values, 0.1).numpy(), median * ratio, rtol=1e-12)
    assert joint_limit(values[:8], 0.1) is None


def test_classes_are_uncertain_where_no_class_is_likely():
    case = blobs()
    model = fit_blobs(case)
    monitor = trustgp.Monitor(model, 1e9, confidence=0.9, leave=1.0, patience=1)
    largest = model.predict(case.test[0][:40]).probabilities.amax(dim=1).tolist()
    verdicts = [monitor(row).status for row in case.test[0][:40]]
    assert verdicts == ["uncertain" if p < 0.9 else "ok" for p in largest]
    assert {"ok", "uncertain"} <= set(verdicts)
    assert trustgp.Monitor(model).limit.shape == (1,)


def test_the_summary_counts_frames_and_episodes():
    monitor = scripted(patience=1)
    statuses(monitor, [0.1, 0.9, 0.9, 0.1, 0.8, float("nan"), 0.2])
    summary = monitor.summary()
    assert summary["frames"] == 7
    assert summary["episodes"] == {"ok": 3, "uncertain": 0, "novel": 2, "invalid input": 1}
    assert summary["shares"]["novel"] == 3 / 7
    assert summary["largest_score"] == pytest.approx(0.9)
    json.dumps(summary, allow_nan=False)
    assert "threshold=0.5" in repr(monitor)
    assert "frames=7" in repr(monitor)


@each(
    ("options", "match"),
    [
        ({"patience": 0}, "patience=0"),
        ({"leave": 0.0}, "leave=0"),
        ({"threshold": float("nan")}, "threshold=nan"),
        ({"threshold": None}, "pass threshold="),
        ({"std": 0.0}, "std=0"),
        ({"std": 1.0, "confidence": 0.5}, "not both"),
        ({"confidence": 1.0}, "confidence"),
        ({"false_alarm": 0.0}, "false_alarm"),
    ],
)
def test_options_out_of_range_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        trustgp.Monitor(Script(), **{"threshold": 0.5, **options})


def test_a_monitor_runs_on_an_onnx_file_as_on_the_model(fit_case, toy, case, tmp_path):
    pytest.importorskip("onnxruntime", reason='needs onnxruntime: pip install "trustgp[export]"')
    model = fit_case(validation=toy(200, seed=9), num_experts=2, witness=None)
    model.threshold(false_alarm=0.05)
    runner = trustgp.export.open_onnx(trustgp.export_onnx(model, tmp_path / "arm.onnx", case.inputs[:5]))
    first, second = (trustgp.Monitor(m, std=1.0) for m in (model, runner))
    assert first.threshold == second.threshold
    frames = [*case.inputs[:20].numpy(), np.full(3, np.nan), 40 * case.inputs[0].numpy()]
    assert [first(frame).status for frame in frames] == [second(frame).status for frame in frames]
