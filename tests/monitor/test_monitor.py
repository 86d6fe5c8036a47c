"""The monitor: verdicts, hysteresis, rolling statistics, and what a sensor may do to it."""

import gc
import json
import sys
import weakref
from collections import deque
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import numpy as np
import pytest
import torch
from blobs import blobs
from blobs import fit as fit_blobs
from many import each

import trustgp
from trustgp.monitor.monitor import STATUSES
from trustgp.monitor.readings import joint_limit


class Script:
    """A runner whose score and std are the first two numbers of the frame."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, inputs):
        self.asked += 1
        score, std = inputs[:, 0].double(), inputs[:, 1:].double()
        return {"mean": -std, "variance": std.square(), "novelty": score}


def statuses(monitor, scores, std=0.0):
    return [monitor(torch.tensor([score, std])).status for score in scores]


@pytest.fixture(scope="module")
def model(fit_case, toy):
    return fit_case(validation=toy(200, seed=9))


def test_an_alarm_comes_on_at_once_and_ends_after_enough_quiet_frames():
    monitor = trustgp.Monitor(Script(), 0.5, std=1.0, leave=0.8, patience=3)
    found = statuses(monitor, [0.1, 0.5, 0.51, 0.1, 0.1, 0.1, 0.1])
    assert found == ["ok", "ok", "novel", "novel", "novel", "ok", "ok"]


def test_a_frame_between_the_levels_neither_starts_an_alarm_nor_lets_it_end():
    monitor = trustgp.Monitor(Script(), 0.5, std=1.0, leave=0.8, patience=2)
    assert statuses(monitor, [0.45, 0.45]) == ["ok", "ok"]
    found = statuses(monitor, [0.6, 0.1, 0.45, 0.1, 0.45, 0.39, 0.39])
    assert found == ["novel"] * 6 + ["ok"]


def test_novel_comes_before_uncertain_and_both_have_hysteresis():
    monitor = trustgp.Monitor(Script(), 0.5, std=1.0, leave=0.5, patience=2)
    frames = [[0.1, 1.1], [0.1, 0.6], [0.9, 0.1], [0.1, 0.1], [0.1, 0.1]]
    found = [monitor(torch.tensor(frame)).status for frame in frames]
    assert found == ["uncertain", "uncertain", "novel", "novel", "ok"]


def test_a_verdict_counts_the_quiet_frames_that_end_its_alarm():
    monitor = trustgp.Monitor(Script(), 0.5, std=1.0, leave=0.8, patience=3)
    frames = [[0.1, 0.1], [0.9, 2.0], [0.1, 0.1], [0.45, 0.1], [0.1, 0.1], [0.1, 2.0], [0.1, 0.1], [0.1, 0.1]]
    said = [monitor(torch.tensor(frame)) for frame in frames]
    assert [one.status for one in said] == ["ok", *["novel"] * 5, "uncertain", "uncertain"]
    assert [one.quiet for one in said] == [None, 0, 1, 0, 1, 2, 1, 2]
    assert monitor([0.1, 0.1]).quiet is None
    assert said[2].as_dict()["quiet"] == 1


def test_without_a_limit_no_frame_is_uncertain():
    monitor = trustgp.Monitor(Script(), 0.5)
    assert monitor.limit is None
    assert statuses(monitor, [0.1], std=1e9) == ["ok"]


def test_each_output_has_its_own_limit():
    monitor = trustgp.Monitor(Script(), 0.5, std=[1.0, 10.0], patience=1)
    assert monitor([0.1, 0.9, 9.0]).status == "ok"
    assert monitor([0.1, 0.9, 11.0]).status == "uncertain"
    assert monitor([0.1, 1.1, 1.0]).status == "uncertain"


def test_an_invalid_frame_is_no_quiet_frame():
    monitor = trustgp.Monitor(Script(), 0.5, std=1.0, patience=2)
    found = statuses(monitor, [0.9, 0.1, float("nan"), 0.1, 0.1])
    assert found == ["novel", "novel", "invalid input", "novel", "ok"]


def test_a_number_beyond_the_range_of_the_model_is_invalid():
    monitor = trustgp.Monitor(lambda x: Script()(x.float()), 0.5)
    monitor(torch.zeros(2))
    assert monitor(np.array([1e300, 0.0])).status == "invalid input"
    assert monitor([float("inf"), 0.0]).status == "invalid input"


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
    ],
)
@each("first", [True, False])
def test_values_that_are_no_numbers_are_invalid_input_and_nothing_is_raised(model, frame, first):
    monitor = trustgp.Monitor(model)
    if not first:
        assert monitor(np.zeros(3)).status != "invalid input"
    verdict = monitor(frame)
    assert verdict.status == "invalid input"
    assert verdict.reason
    assert (verdict.mean, verdict.std, verdict.score, verdict.novelty, verdict.expert) == (None,) * 5
    assert monitor(np.zeros(3)).status != "invalid input"


def test_a_first_frame_of_a_wrong_shape_raises_and_a_later_one_does_not(model):
    monitor = trustgp.Monitor(model)
    with pytest.raises(ValueError, match=r"\(4,\)"):
        monitor(torch.zeros(4))
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        monitor(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"\(5,\)"):
        monitor(torch.full((5,), torch.nan))
    assert monitor.summary()["frames"] == 0
    monitor(torch.zeros(3))
    late = monitor(torch.zeros(4))
    assert (late.status, late.reason) == ("invalid input", "the shape is (4,), not (3,)")


class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, position, speed):
        return self.layer(torch.cat([position, speed], dim=1)).tanh()


def test_dicts_are_taken_and_a_missing_key_is_named(toy):
    rows, _ = toy(300, seed=4)
    inputs = {"position": rows[:, :2].float(), "speed": rows[:, 2:].float()}
    network = Pair().eval()
    targets = network(**inputs).detach() + 0.1 * torch.randn(
        300, 1, generator=torch.Generator().manual_seed(0)
    )
    model = trustgp.fit(network, (inputs, targets), num_experts=2, progress=False)
    monitor = trustgp.Monitor(model, 0.9)
    with pytest.raises(ValueError, match="speed"):
        monitor({"position": [0.0, 0.0]})
    whole = {"position": np.zeros(2), "speed": 0.5 * np.ones((1,))}
    verdict = monitor(whole)
    p = model.predict({"position": torch.zeros(1, 2), "speed": torch.full((1, 1), 0.5)})
    assert torch.equal(verdict.mean, p.mean[0])
    assert monitor({"position": np.zeros(2)}).status == "invalid input"


@each(
    "kind",
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
def test_every_way_to_pass_a_row_gives_the_prediction_of_the_model(model, case, kind):
    row = case.inputs[3]
    verdict, p = trustgp.Monitor(model)(kind(row)), model.predict(row[None])
    assert torch.equal(verdict.mean, p.mean[0])
    assert torch.equal(verdict.std, p.std[0])
    assert (verdict.novelty, verdict.score) == (float(p.novelty[0]), float(p.score[0]))
    assert verdict.expert == (int(p.expert[0]),)


def test_integers_are_taken_as_numbers(model):
    verdict = trustgp.Monitor(model)(np.array([1, 0, -1]))
    whole = model.predict(torch.tensor([[1.0, 0.0, -1.0]], dtype=torch.float64))
    assert torch.equal(verdict.mean, whole.mean[0])


def test_a_row_of_one_number_is_a_row():
    seen = []

    def runner(inputs):
        seen.append(tuple(inputs.shape))
        return {"mean": inputs, "variance": inputs, "novelty": inputs[:, 0]}

    monitor = trustgp.Monitor(runner, 0.5)
    monitor([0.25])
    monitor(np.array([[0.25]]))
    assert seen == [(1, 1), (1, 1)]


def recomputed(frames):
    """The statistics of a list of (status, score, std [C]) in plain float64."""
    kept = [(score, std) for status, score, std in frames if status != "invalid input"]
    scores, stds = np.array([k[0] for k in kept]), np.array([k[1] for k in kept])
    shares = {name: sum(f[0] == name for f in frames) / len(frames) for name in STATUSES}
    return shares, scores.mean(), scores.max(), stds.mean(axis=0), stds.max(axis=0)


def test_rolling_statistics_equal_a_plain_recomputation_over_ten_thousand_frames():
    draw = np.random.default_rng(0)
    monitor, last = trustgp.Monitor(Script(), 0.8, window=37, std=5.0, patience=2), deque(maxlen=37)
    for number in range(10_000):
        frame = draw.random(3) * draw.choice([1e-6, 1.0, 1e12], p=[0.1, 0.8, 0.1])
        frame = np.full(3, np.nan) if draw.random() < 0.2 else frame
        verdict = monitor(frame)
        last.append((verdict.status, frame[0], frame[1:]))
        if number < 100 or number % 37 == 0:
            shares, *numbers = recomputed(last)
            rolling = verdict.rolling
            assert rolling.frames == len(last)
            assert rolling.shares == pytest.approx(shares, rel=1e-12)
            found = [rolling.score_mean, rolling.score_max, rolling.std_mean, rolling.std_max]
            for got, wanted in zip(found, numbers, strict=True):
                np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-10)


def test_frames_before_the_first_valid_one_count():
    monitor = trustgp.Monitor(Script(), 0.5, window=4)
    for _ in range(6):
        rolling = monitor("?").rolling
    assert rolling.frames == 4
    assert rolling.shares["invalid input"] == 1.0
    assert rolling.score_mean is None
    rolling = monitor([0.25, 1.0]).rolling
    assert (rolling.shares["invalid input"], rolling.shares["ok"]) == (0.75, 0.25)
    assert rolling.score_mean == 0.25


def held(thing) -> tuple[int, int]:
    """How many objects an object keeps alive, and their bytes; not what all of the program shares.

    Counters are left out: Python shares whole numbers up to 256, and has an object for each above.
    """
    shared = (int, type, ModuleType, FunctionType, MethodType, BuiltinFunctionType)
    found, new = {}, [thing]
    while new:
        one = new.pop()
        if id(one) not in found and not isinstance(one, shared):
            found[id(one)] = one
            new += gc.get_referents(one)
    storages = [one.untyped_storage().nbytes() for one in found.values() if isinstance(one, torch.Tensor)]
    return len(found), sum(map(sys.getsizeof, found.values())) + sum(storages)


def test_memory_does_not_grow_with_the_frames():
    # What tracemalloc sees also grows by what NumPy and Python keep for the next small block, for thousands
    # of frames: so what a monitor holds is counted, which has to be the same to the byte.
    monitor, sizes = trustgp.Monitor(Script(), 0.5, window=50, std=1.0), []
    frames, passed = [np.array([0.6, 0.5]), np.array([0.1, 2.0]), np.array([np.nan, 0.0])], []
    for count in (120, 1200):
        for number in range(count):
            verdict = monitor(frames[number % 3])
            passed += [weakref.ref(thing) for thing in (verdict, verdict.rolling)]
            passed += [] if verdict.mean is None else [weakref.ref(verdict.mean), weakref.ref(verdict.std)]
        del verdict
        sizes.append(held(monitor))
    assert sizes[0] == sizes[1]
    assert not any(thing() is not None for thing in passed)
    monitor.kept = [float(number) for number in range(10)]  # were there a leak, it would be seen
    assert held(monitor) > sizes[1]


def test_the_model_is_asked_once_a_frame_and_not_at_all_for_an_invalid_one():
    script = Script()
    monitor = trustgp.Monitor(script, 0.5)
    statuses(monitor, [0.1, 0.2, float("nan"), 0.3])
    assert script.asked == 3


def test_the_same_frames_give_the_same_verdicts_also_after_a_reset(model, case):
    monitor = trustgp.Monitor(model, window=5)
    frames = [*case.inputs[:6], torch.full((3,), torch.nan), 40 * case.inputs[0], *case.inputs[6:9]]
    first = [monitor(frame).as_dict() for frame in frames]
    monitor.reset()
    assert monitor.summary()["frames"] == 0
    assert [monitor(frame).as_dict() for frame in frames] == first
    assert {verdict["status"] for verdict in first} >= {"ok", "novel", "invalid input"}
    json.dumps(first, allow_nan=False)


def test_the_model_and_the_frames_are_left_as_they_were(model, case):
    frame = case.inputs[0].clone()
    before = model.alarm
    trustgp.Monitor(model)(frame)
    assert torch.equal(frame, case.inputs[0])
    assert model.alarm is before


def test_the_threshold_is_the_models_own_else_that_of_its_held_out_rows(fit_case, toy):
    model = fit_case(validation=toy(200, seed=9))
    assert trustgp.Monitor(model, false_alarm=0.05).threshold == model.threshold(false_alarm=0.05)
    model.threshold(false_alarm=0.2)
    assert trustgp.Monitor(model, false_alarm=0.05).threshold == float(model.alarm.threshold)
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
    doubts = torch.rand(500, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.1
    usual = np.sort(doubts.numpy(), axis=0)[249]
    ratio = np.sort((doubts.numpy() / usual).max(axis=1))[int(np.ceil(501 * 0.9)) - 1]
    np.testing.assert_allclose(joint_limit(doubts, 0.1).numpy(), usual * ratio, rtol=1e-12)
    assert joint_limit(doubts[:8], 0.1) is None


def test_classes_are_uncertain_where_no_class_is_likely():
    case = blobs()
    model = fit_blobs(case)
    monitor = trustgp.Monitor(model, 1e9, confidence=0.9, leave=1.0, patience=1)
    sure = model.predict(case.test[0][:40]).probabilities.amax(dim=1).tolist()
    found = [monitor(row).status for row in case.test[0][:40]]
    assert found == ["uncertain" if p < 0.9 else "ok" for p in sure]
    assert {"ok", "uncertain"} <= set(found)
    assert trustgp.Monitor(model).limit.shape == (1,)


def test_the_summary_counts_frames_and_episodes():
    monitor = trustgp.Monitor(Script(), 0.5, patience=1)
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
        ({"window": 0}, "window=0"),
        ({"patience": 0}, "patience=0"),
        ({"leave": 0.0}, "leave=0"),
        ({"leave": 1.5}, r"leave=1\.5"),
        ({"threshold": float("nan")}, "threshold=nan"),
        ({"threshold": -1.0}, "threshold"),
        ({"threshold": None}, "pass threshold="),
        ({"std": 0.0}, "std=0"),
        ({"std": []}, "std="),
        ({"std": 1.0, "confidence": 0.5}, "not both"),
        ({"confidence": 1.0}, "confidence"),
        ({"false_alarm": 0.0}, "false_alarm"),
    ],
)
def test_options_out_of_range_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        trustgp.Monitor(Script(), **{"threshold": 0.5, **options})


def test_limits_that_do_not_fit_the_outputs_are_refused_at_the_first_frame():
    monitor = trustgp.Monitor(Script(), 0.5, std=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="3 limits, but the model 2 outputs"):
        monitor([0.1, 1.0, 1.0])


def test_a_runner_without_a_field_is_refused_by_name():
    with pytest.raises(ValueError, match="novelty"):
        trustgp.Monitor(lambda inputs: {"mean": inputs, "variance": inputs}, 0.5)([1.0])


def test_a_monitor_runs_on_an_onnx_file_as_on_the_model(fit_case, toy, case, tmp_path):
    pytest.importorskip("onnxruntime", reason='needs onnxruntime: pip install "trustgp[export]"')
    model = fit_case(validation=toy(200, seed=9), num_experts=2, witness=None)
    model.threshold(false_alarm=0.05)
    runner = trustgp.export.open_onnx(trustgp.export_onnx(model, tmp_path / "arm.onnx", case.inputs[:5]))
    first, second = (trustgp.Monitor(m, std=1.0) for m in (model, runner))
    assert first.threshold == second.threshold
    frames = [*case.inputs[:20].numpy(), np.full(3, np.nan), 40 * case.inputs[0].numpy()]
    assert [first(frame).status for frame in frames] == [second(frame).status for frame in frames]
