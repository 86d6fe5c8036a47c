"""The runtime study: its clock and networks, and a small run in which one network fails."""

from dataclasses import replace

import pytest
import torch

from trustgp_experiments.core.result import Setting
from trustgp_experiments.studies.runtime import calls, fixtures
from trustgp_experiments.studies.runtime import study as runtime
from trustgp_experiments.studies.runtime.calls import COMPILED, EAGER, GRAPH, ONNX, RECORDED, Calls, Workload
from trustgp_experiments.studies.runtime.fixtures import ENSEMBLE, KFAC, LAST, PLAIN, SERIAL, FittedCase, ours
from trustgp_experiments.studies.runtime.networks import ResNet18, dropping, kinds
from trustgp_experiments.studies.runtime.rows import NEW_TEXTURES, OBJECTS, TEXTURES, CaseSize, rectangles
from trustgp_experiments.studies.runtime.timing import ENOUGH, Interleaved, Times, reason_of

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Clock:
    """Advances only when a call does it."""

    def __init__(self):
        self.now, self.log = 0.0, []

    def __call__(self):
        return self.now

    def takes(self, seconds, name=""):
        def call():
            self.now += seconds
            self.log.append(name)

        return call


def test_every_round_makes_every_call_and_begins_with_another():
    clock = Clock()
    calls = {name: clock.takes(1.0, name) for name in "abc"}
    times = Interleaved(rounds=4, warm_up=1, patience=100.0, clock=clock).run(calls)
    assert "".join(clock.log[3:]) == "abc" + "bca" + "cab" + "abc"
    assert all(list(one.seconds) == [0, 1, 2, 3] for one in times.values())


def test_medians_tails_and_ratios_are_those_of_the_clock_in_common_rounds():
    clock = Clock()
    calls = {"one": clock.takes(0.5), "three": clock.takes(1.5)}
    times = Interleaved(rounds=ENOUGH, warm_up=1, patience=1e6, clock=clock).run(calls)
    assert times["three"].median == pytest.approx(1.5)
    assert times["three"].over(times["one"]) == pytest.approx(3.0)
    slow, quick = Times({0: 8.0, 2: 3.0}), Times({0: 2.0, 1: 100.0, 2: 1.0})
    assert slow.over(quick) == 3.5
    assert slow.over(Times({5: 1.0})) is None
    assert Times().median is None
    assert Times(dict(enumerate(map(float, range(1, 201))))).summary()["p99"] == 198  # one of the values


def test_a_slow_call_takes_part_in_fewer_rounds_evenly_spread():
    clock = Clock()
    timing = Interleaved(rounds=100, warm_up=3, patience=10.0, least=5, clock=clock)
    calls = {"quick": clock.takes(0.01), "slow": clock.takes(1.0), "slowest": clock.takes(50.0, "slowest")}
    times = timing.run(calls)
    assert len(times["quick"].seconds) == 100
    assert list(times["slow"].seconds) == list(range(0, 100, 10))
    assert list(times["slowest"].seconds) == [0, 20, 40, 60, 80]
    assert clock.log.count("slowest") == 6  # warmed up once only
    assert times["slow"].summary()["p99"] is None


def test_a_call_that_raises_has_a_short_reason_and_the_others_are_measured():
    made = []

    def breaks():
        made.append(1)
        if len(made) > 3:
            raise RuntimeError("out of\nluck")

    def never():
        raise ValueError

    times = Interleaved(rounds=5, warm_up=2).run({"breaks": breaks, "never": never, "good": lambda: None})
    assert times["breaks"].reason == "out of luck"
    assert (len(times["breaks"].seconds), len(times["good"].seconds)) == (0, 5)
    assert times["never"].reason == "ValueError"
    assert not times["good"].reason
    assert len(reason_of(ValueError("word " * 100))) == 160


def test_a_dropping_copy_drops_but_keeps_its_batch_statistics():
    network = ResNet18(3, width=2).eval()
    noisy, images = dropping(network), torch.randn(4, 3, 8, 8)
    before = {name: value.clone() for name, value in noisy.named_buffers()}
    assert not torch.equal(noisy(images), noisy(images))
    assert all(torch.equal(value, before[name]) for name, value in noisy.named_buffers())
    assert torch.equal(network(images), network(images))


def test_a_small_detr_is_built_without_a_download_and_drops_by_functions():
    pytest.importorskip("transformers", reason='transformers is not installed: pip install "trustgp[hf]"')
    kind = kinds(quick=True, device="cpu")["DETR"]
    network, images = kind.network(0).eval(), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        outputs = network(images)
        assert outputs.shape == (2, 5 * (len(TEXTURES) + 1 + 4))
        assert torch.equal(outputs, network(images))
        noisy = dropping(network)
        assert not torch.equal(noisy(images), noisy(images))
    top, heads = (set(kind.budgets(network)[name]["tangents"].parameters) for name in ("large", "small"))
    assert heads < top
    assert any("decoder.layers.1." in name for name in top)
    assert not any("decoder.layers.0." in name or "encoder" in name.split("layers")[0] for name in top)


def test_rectangles_are_ordered_from_left_to_right_and_painted_where_their_boxes_are():
    images, targets = rectangles(CaseSize(40, 20, 10), 1, side=64, queries=6).train
    targets = targets.unflatten(1, (6, len(TEXTURES) + 1 + 4))
    scores, boxes = targets[..., : len(TEXTURES) + 1], targets[..., len(TEXTURES) + 1 :]
    assert torch.equal(scores.sum(dim=2), torch.ones(40, 6))
    absent = scores[..., -1] == 1
    assert bool(absent[:, OBJECTS:].all())
    assert not bool(absent[:, 0].any())
    assert bool((boxes[absent] == 0).all())
    assert not set(TEXTURES) & set(NEW_TEXTURES)
    single = 0
    for picture in range(40):
        present = boxes[picture, ~absent[picture]]
        assert bool((present[:, 0].diff() >= 0).all())
        bright = (images[picture].abs().amax(dim=0) > 0.6).nonzero()
        if len(present) == 1 and len(bright):  # a dark one shows nothing
            x, y, width, height = (64 * present[0]).tolist()
            top, left = bright.amin(dim=0).tolist()
            assert top >= y - height / 2 - 1
            assert left >= x - width / 2 - 1
            single += 1
    assert single


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A tiny ResNet with everything fitted to it."""
    pytest.importorskip("laplace")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRUSTGP_DATA", raising=False)
        kind = kinds(quick=True, device="cpu")["ResNet-18"]
        kind = replace(kind, members=False, size=CaseSize(64, 48, 24))
        made = FittedCase(kind, seed=0, device="cpu", folder=tmp_path_factory.mktemp("case") / "parts")
        _ = made.rows
    return made


def test_a_method_that_cannot_be_fitted_has_a_reason_and_the_others_are_scored_and_timed(case):
    """Would catch a failure of one peer that ends the study."""
    found = fixtures.quality(case)
    assert found[KFAC]["nll"] is None  # batch normalisation
    assert found[KFAC]["reason"]
    assert found[ENSEMBLE]["nll"] is None  # not trained
    for name in (PLAIN, SERIAL, ours(fixtures.DEFAULT), *map(ours, ("large", "medium", "small"))):
        assert found[name]["nll"] > 0
        assert 0.0 <= found[name]["auroc"] <= 1.0
        assert not found[name]["reason"]
    # "large" has no posterior of all rows, which has the square of a sketch's length
    assert found[ours("small")]["bytes"] < found[ours("medium")]["bytes"]
    assert found[ENSEMBLE]["bytes"] == 5 * found[PLAIN]["bytes"]
    entries = calls.measure(case, Workload(2, 1, [EAGER]), Interleaved(rounds=2, warm_up=1))
    methods = {entry["method"]: entry for entry in entries}
    assert {PLAIN, SERIAL, ENSEMBLE, LAST, KFAC, ours("small")} <= set(methods)
    assert methods[KFAC]["reason"]
    assert methods[KFAC]["median"] is None
    assert methods[PLAIN]["over_network"] == 1.0
    assert methods[SERIAL]["passes_over_this"] == 1.0
    assert all(entry["batch"] == 2 and entry["threads"] == 1 for entry in entries)


def test_a_traced_network_gives_what_the_network_gives(case, monkeypatch):
    monkeypatch.setattr(FittedCase, "budgets", {})  # the small run traces our models
    calls = Calls(case, Workload(1, 1, [GRAPH]))
    with torch.no_grad():
        expected = case.network(calls.inputs)
    torch.testing.assert_close(calls.made[PLAIN, GRAPH](), expected)
    mean, variance = calls.made[SERIAL, GRAPH]()
    torch.testing.assert_close(mean, expected)
    assert float(variance.max()) < 1e-8


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_recorded_call_gives_what_the_call_gives_for_new_inputs():
    network, inputs = torch.nn.Linear(3, 2).cuda(), torch.rand(5, 3, device="cuda")
    place = inputs.clone()
    with torch.no_grad():
        play = calls.recorded(lambda: network(place).relu(), inputs, place)
        inputs += 1.0
        (result,) = play()
        torch.testing.assert_close(result, network(inputs).relu())


def test_on_a_gpu_our_models_are_timed_where_the_network_is_recorded_too(case, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr("trustgp_experiments.studies.runtime.calls.recorded", lambda call, *rest: call)
    made = Calls(case, Workload(1, 1, [EAGER, RECORDED])).made
    eager, replayed = ({name for name, where in made if where == runtime} for runtime in (EAGER, RECORDED))
    assert {PLAIN, SERIAL, ENSEMBLE} <= eager & replayed
    assert ours("small") in replayed - eager
    assert LAST in eager - replayed


@pytest.mark.parametrize(("device", "counts"), [("cpu", [1, 8]), ("cuda", [1])])
def test_compiled_calls_and_onnxruntime_have_their_workloads(tmp_path, monkeypatch, device, counts):
    monkeypatch.setattr(runtime, "usable_cores", lambda: 8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    setting, chosen = Setting(tmp_path, device=device), kinds(quick=False, device=device)
    loads = runtime.workloads(setting, chosen["MLP"])
    *rest, last = loads
    assert (last.batch, last.threads, list(last.runtimes)) == (1, 1, [COMPILED])
    single = [load for load in rest if RECORDED in load.runtimes]
    assert [list(load.runtimes) for load in single] == [[RECORDED]] * (2 if device == "cuda" else 0)
    rest = [load for load in rest if load not in single]
    assert [(load.batch, load.threads) for load in rest] == [(batch, n) for batch in (1, 64) for n in counts]
    assert all((ONNX in load.runtimes) == (device == "cpu") for load in rest)
    assert len({load.name for load in loads}) == len(loads)
    large = runtime.workloads(setting, chosen["DETR"])
    assert any(COMPILED in load.runtimes for load in large) == (device == "cpu")  # minutes on a GPU


def test_a_small_run_times_every_runtime_and_names_the_network_that_failed(small_run):
    result = small_run("runtime")[1]
    assert result.numbers["skipped"] == {"ConvNet": "it needs a package"}
    assert "ConvNet skipped: it needs a package." in result.findings
    (seed,) = result.numbers["networks"]["MLP"]
    first = {(e["method"], e["runtime"]): e for e in seed["entries"] if e["batch"] == 1}
    for name in (EAGER, GRAPH, ONNX):
        assert first[PLAIN, name]["median"] > 0
        assert first[ours("large"), name]["over_network"] > 0, first[ours("large"), name]
