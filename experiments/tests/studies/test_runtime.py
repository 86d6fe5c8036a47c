"""The runtime study, small: how it takes times, what it claims, that a failure does not spoil the rest."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from trustgp_experiments.core.cases import IN_DOMAIN
from trustgp_experiments.core.result import Setting, read_result
from trustgp_experiments.studies import run_study
from trustgp_experiments.studies.runtime import study as runtime
from trustgp_experiments.studies.runtime.calls import (
    COMPILED,
    EAGER,
    GRAPH,
    ONNX,
    RECORDED,
    Calls,
    Workload,
    measure,
    recorded,
)
from trustgp_experiments.studies.runtime.fixtures import (
    DEFAULT,
    ENSEMBLE,
    KFAC,
    LAST,
    PLAIN,
    SERIAL,
    FittedCase,
    ours,
    quality,
)
from trustgp_experiments.studies.runtime.networks import ResNet18, dropping, kinds, named
from trustgp_experiments.studies.runtime.rows import (
    NEW,
    NEW_TEXTURES,
    OBJECTS,
    TEXTURES,
    CaseSize,
    rectangles,
    small_images,
)
from trustgp_experiments.studies.runtime.tables import (
    LOSS,
    REQUIREMENTS,
    fastest,
    merged_times,
    on_peers,
    quality_table,
    requirement_findings,
    requirement_table,
    shares_lost,
    time_table,
)
from trustgp_experiments.studies.runtime.timing import (
    ENOUGH,
    Interleaved,
    Times,
    reason_of,
    threads,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Clock:
    """Moves only when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def takes(self, seconds, log=None, name=""):
        def call():
            self.now += seconds
            if log is not None:
                log.append(name)

        return call


def test_every_round_makes_every_call_and_begins_with_another():
    clock, log = Clock(), []
    calls = {name: clock.takes(1.0, log, name) for name in "abc"}
    found = Interleaved(rounds=4, warm_up=1, patience=100.0, clock=clock).run(calls)
    assert "".join(log[3:]) == "abc" + "bca" + "cab" + "abc"
    assert all(list(times.seconds) == [0, 1, 2, 3] for times in found.values())


def test_medians_tails_and_ratios_are_those_of_the_clock():
    clock = Clock()
    found = Interleaved(rounds=ENOUGH, warm_up=1, patience=1e6, clock=clock).run(
        {"one": clock.takes(0.5), "three": clock.takes(1.5)}
    )
    assert found["three"].median == pytest.approx(1.5)
    assert found["three"].p99 == pytest.approx(1.5)
    assert found["three"].over(found["one"]) == pytest.approx(3.0)


def test_a_ratio_looks_at_common_rounds_only():
    slow, quick = Times({0: 8.0, 2: 3.0}), Times({0: 2.0, 1: 100.0, 2: 1.0})
    assert slow.over(quick) == 3.5
    assert slow.over(Times({5: 1.0})) is None
    assert Times().median is None


def test_a_slow_call_takes_part_in_fewer_rounds_evenly_spread():
    clock = Clock()
    timing = Interleaved(rounds=100, warm_up=2, patience=10.0, least=5, clock=clock)
    found = timing.run({"quick": clock.takes(0.01), "slow": clock.takes(1.0), "slowest": clock.takes(50.0)})
    assert len(found["quick"].seconds) == 100
    assert list(found["slow"].seconds) == list(range(0, 100, 10))
    assert list(found["slowest"].seconds) == [0, 20, 40, 60, 80]
    assert found["slow"].p99 is None


def test_a_call_longer_than_all_may_take_is_warmed_up_once_only():
    clock, log = Clock(), []
    Interleaved(rounds=1, warm_up=3, patience=1.0, least=1, clock=clock).run({"a": clock.takes(2.0, log)})
    assert len(log) == 2


def test_a_call_that_raises_says_why_and_the_others_go_on():
    made = []

    def breaks():
        made.append(1)
        if len(made) > 3:
            raise RuntimeError("out of\nluck")

    def never():
        raise ValueError

    found = Interleaved(rounds=5, warm_up=2).run({"breaks": breaks, "never": never, "good": lambda: None})
    assert found["breaks"].reason == "out of luck"
    assert (len(found["breaks"].seconds), len(found["good"].seconds)) == (0, 5)
    assert found["never"].reason == "ValueError"
    assert not found["good"].reason


def test_the_tail_is_one_of_the_values():
    assert Times(dict(enumerate(map(float, range(1, 201))))).p99 == 198


def test_a_reason_is_one_short_line():
    assert len(reason_of(ValueError("word " * 100))) == 160
    assert reason_of(KeyError()) == "KeyError"


def test_threads_are_given_back():
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_nothing_is_measured_in_no_rounds():
    with pytest.raises(ValueError, match="rounds=0"):
        Interleaved(rounds=0)


def test_the_full_network_has_the_shape_of_a_resnet_18():
    with torch.device("meta"):
        network = ResNet18(10)
    assert sum(p.numel() for p in network.parameters()) == 11_173_962
    assert len([m for m in network.modules() if isinstance(m, nn.Conv2d)]) == 20


def test_a_dropping_copy_drops_but_keeps_its_batch_statistics():
    network = ResNet18(3, width=2).eval()
    noisy, images = dropping(network), torch.randn(4, 3, 8, 8)
    before = {name: value.clone() for name, value in noisy.named_buffers()}
    assert not torch.equal(noisy(images), noisy(images))
    assert all(torch.equal(value, before[name]) for name, value in noisy.named_buffers())
    assert torch.equal(network(images), network(images))


def test_names_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="begins with nothing"):
        named(nn.Linear(1, 1), "nothing")


def test_rectangles_are_told_from_left_to_right_and_absent_ones_are_nothing():
    rows = rectangles(CaseSize(40, 20, 10), 0, side=32, queries=6)
    answers = rows.train[1].unflatten(1, (6, len(TEXTURES) + 1 + 4))
    scores, boxes = answers[..., : len(TEXTURES) + 1], answers[..., len(TEXTURES) + 1 :]
    assert torch.equal(scores.sum(dim=2), torch.ones(40, 6))
    absent = scores[..., -1] == 1
    assert bool(absent[:, OBJECTS:].all())
    assert not bool(absent[:, 0].any())
    assert bool((boxes[absent] == 0).all())
    for picture in range(40):
        left = boxes[picture, ~absent[picture], 0]
        assert bool((left.diff() >= 0).all())
    assert not set(TEXTURES) & set(NEW_TEXTURES)


def test_a_rectangle_is_painted_where_its_box_says():
    images, answers = rectangles(CaseSize(30, 10, 5), 1, side=64, queries=4).train
    boxes = answers.unflatten(1, (4, -1))[:, :, len(TEXTURES) + 1 :]
    alone = (boxes[:, 1:, 2] == 0).all(dim=1).nonzero().flatten().tolist()
    assert alone
    for picture in alone:
        x, y, width, height = (64 * boxes[picture, 0]).tolist()
        bright = (images[picture].abs().amax(dim=0) > 0.6).nonzero()
        if len(bright):  # a dark one shows nothing
            top, left = bright.amin(dim=0).tolist()
            assert top >= y - height / 2 - 1
            assert left >= x - width / 2 - 1


def test_without_the_data_there_are_patterns(monkeypatch):
    monkeypatch.delenv("TRUSTGP_DATA", raising=False)
    rows = small_images(CaseSize(50, 20, 10), 0, colour=True)
    assert rows.train[0].shape == (50, 3, 32, 32)
    assert rows.made
    assert len(rows.tests[NEW][0]) == len(rows.tests[IN_DOMAIN][0]) == len(rows.validation[0]) == 10


def said(nll, auroc=0.9):
    return {"nll": nll, "auroc": auroc, "bytes": 10, "reason": ""}


def timed(method, over, passes, runtime=EAGER, **more):
    entry = {"method": method, "runtime": runtime, "batch": 1, "threads": 1, "calls": 200, "reason": ""}
    entry |= {"median": 1e-3 * over, "p99": None, "peak": None, "file_bytes": None}
    return {**entry, "over_network": over, "passes_over_this": passes, "over_ensemble": None, **more}


QUALITY = {
    PLAIN: said(1.0),
    ours(DEFAULT): said(-2.0, 0.95),
    ours("large"): said(-1.99, 0.94),
    ours("medium"): said(-1.95, 0.94),
    ours("small"): said(-1.0, 0.6),
}


def test_what_a_budget_loses_is_a_share_of_the_unbounded_model():
    assert shares_lost(QUALITY, ours("large")) == pytest.approx({"nll": 0.005, "auroc": 0.01 / 0.95})
    medium, small = (shares_lost(QUALITY, ours(name)) for name in ("medium", "small"))
    assert medium["auroc"] <= LOSS < medium["nll"]
    assert min(small.values()) > LOSS
    assert shares_lost({**QUALITY, ours("large"): said(-2.1)}, ours("large"))["nll"] < 0


def test_the_fastest_budget_that_loses_little_is_judged():
    entries = [
        timed(ours("large"), 2.0, 10.0),
        timed(ours("medium"), 1.5, 13.0),
        timed(ours("small"), 1.1, 18.0),
    ]
    (found,) = fastest(entries, QUALITY)  # of torch eager; there is none of another runtime
    assert found == {**entries[1], **shares_lost(QUALITY, ours("medium"))}  # little is lost of its AUROC
    assert REQUIREMENTS["DETR"].is_met(entries[1])
    assert not REQUIREMENTS["DETR"].is_met(entries[0])
    (row,) = requirement_table({"DETR": entries}, {"DETR": QUALITY}).rows
    assert row[3] == ours("medium")
    assert row[-1] == "yes"
    (words,) = requirement_findings({"DETR": entries}, {"DETR": QUALITY})
    assert "kept in torch eager" in words
    assert "1.50 times the network" in words


def test_a_promise_that_is_not_kept_is_said_so():
    entries = [timed(ours("large"), 2.6, 7.9)]
    (words,) = requirement_findings({"ResNet-18": entries}, {"ResNet-18": QUALITY})
    assert "not kept" in words
    (words,) = requirement_findings({"ResNet-18": [timed(ours("small"), 1.0, 20.0)]}, {"ResNet-18": QUALITY})
    assert "no budget loses as little" in words


def test_the_default_is_compared_with_five_networks_in_the_same_runtime():
    entries = [
        timed(ours(DEFAULT), 9.0, 2.0, runtime, over_ensemble=ratio)
        for runtime, ratio in ((EAGER, 0.5), (ONNX, 1.5))
    ]
    (words,) = requirement_findings({"MLP": entries}, {"MLP": QUALITY})
    assert "dearer in 1 of 2 (MLP in onnxruntime 1.50, MLP in torch eager 0.50)" in words


def test_peers_with_a_lower_likelihood_than_the_default_are_named():
    assert on_peers({"MLP": QUALITY}) == []
    ahead = {ENSEMBLE: said(-2.25), PLAIN: said(-2.5), LAST: said(None)}
    assert on_peers({"MLP": {**QUALITY, **ahead}, "DETR": QUALITY}) == [
        "Lower NLL than the default has, on MLP, -2.000: network -2.500, ensemble of 5 -2.250."
    ]


def test_seeds_are_averaged_and_a_number_that_one_lacks_is_a_gap():
    one, two = timed("a", 2.0, 10.0), timed("a", 4.0, None, reason="why")
    (found,) = merged_times([[one], [two]])
    assert found["over_network"] == 3.0
    assert found["passes_over_this"] is None
    assert found["reason"] == "why"


def test_tables_take_what_is_missing_as_gaps():
    entries = [timed(PLAIN, 1.0, 20.0)]
    entries.append({**timed(LAST, 1.0, None, ONNX), "median": None, "calls": 0, "reason": "no"})
    table = time_table("MLP", entries, absolute=False)
    assert table.rows[1][2] is None
    assert table.rows[1][-1] == "no"
    assert "the ratios count" in table.note
    lines = quality_table({"MLP": QUALITY}, {"MLP": entries}).rows
    assert [line[1] for line in lines] == list(QUALITY)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A tiny ResNet with everything fitted to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRUSTGP_DATA", raising=False)
        kind = kinds(quick=True, device="cpu")["ResNet-18"]
        kind = replace(kind, members=False, size=CaseSize(64, 48, 24))
        made = FittedCase(kind, seed=0, device="cpu", folder=tmp_path_factory.mktemp("case") / "parts")
        _ = made.rows
    return made


def test_a_method_that_cannot_be_fitted_is_a_reason_and_the_others_are_judged(case):
    found = quality(case)
    assert found[KFAC]["nll"] is None  # batch normalisation
    assert found[KFAC]["reason"]
    assert found[ENSEMBLE]["nll"] is None  # not trained
    for name in (PLAIN, SERIAL, ours(DEFAULT), *map(ours, ("large", "medium", "small"))):
        assert found[name]["nll"] > 0
        assert 0.0 <= found[name]["auroc"] <= 1.0
        assert not found[name]["reason"]
    sizes = [found[ours(name)]["bytes"] for name in ("large", "medium", "small")]
    assert sizes == sorted(sizes, reverse=True)
    assert found[ENSEMBLE]["bytes"] == 5 * found[PLAIN]["bytes"]


def test_what_was_made_is_read_again(case):
    again = FittedCase(case.kind, seed=0, device="cpu", folder=case.folder)
    assert len(again._known[0][0]) == case.kind.size.fitted == 48
    inputs = case.inputs(3)
    one, two = (one.method(ours("small")).predict(inputs) for one in (case, again))
    assert torch.equal(one.mean, two.mean)
    assert torch.equal(one.score, two.score)


def test_a_cell_of_the_study_has_an_entry_for_everything_that_was_asked(case):
    entries = measure(case, Workload(2, 1, [EAGER]), Interleaved(rounds=2, warm_up=1))
    methods = {entry["method"]: entry for entry in entries}
    assert {PLAIN, SERIAL, ENSEMBLE, LAST, KFAC, ours("small")} <= set(methods)
    assert methods[KFAC]["reason"]
    assert methods[KFAC]["median"] is None
    assert methods[PLAIN]["over_network"] == 1.0
    assert methods[SERIAL]["passes_over_this"] == 1.0
    assert all(entry["batch"] == 2 and entry["threads"] == 1 for entry in entries)


def test_a_traced_network_gives_what_the_network_gives(case, monkeypatch):
    monkeypatch.setattr(FittedCase, "budgets", {})  # tracing our models is for the quick run
    calls = Calls(case, Workload(1, 1, [GRAPH]))
    with torch.no_grad():
        expected = case.network(calls.inputs)
    torch.testing.assert_close(calls.made[PLAIN, GRAPH](), expected)
    mean, variance = calls.made[SERIAL, GRAPH]()
    torch.testing.assert_close(mean, expected)
    assert float(variance.max()) < 1e-8


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_recorded_call_gives_what_the_call_gives_for_the_inputs_of_today():
    network, inputs = torch.nn.Linear(3, 2).cuda(), torch.rand(5, 3, device="cuda")
    place = inputs.clone()
    with torch.no_grad():
        play = recorded(lambda: network(place).relu(), inputs, place)
        inputs += 1.0
        (found,) = play()
        torch.testing.assert_close(found, network(inputs).relu())


def test_on_a_gpu_our_models_are_timed_where_the_network_is_recorded_too(case, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr("trustgp_experiments.studies.runtime.calls.recorded", lambda call, *rest: call)
    calls = Calls(case, Workload(1, 1, [EAGER, RECORDED]))
    told = {
        runtime: {name for name, where in calls.made if where == runtime} for runtime in (EAGER, RECORDED)
    }
    assert {PLAIN, SERIAL, ENSEMBLE} <= told[EAGER] & told[RECORDED]
    assert ours("small") in told[RECORDED] - told[EAGER]
    assert LAST in told[EAGER] - told[RECORDED]


@pytest.mark.parametrize(("device", "counts"), [("cpu", [1, 8]), ("cuda", [1])])
def test_what_is_compiled_stands_by_itself_and_onnxruntime_is_asked_on_a_cpu(
    tmp_path, monkeypatch, device, counts
):
    monkeypatch.setattr(runtime, "usable_cores", lambda: 8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = runtime.workloads(Setting(tmp_path, device=device), kinds(quick=False, device=device)["MLP"])
    *rest, last = found
    assert (last.batch, last.threads, list(last.runtimes)) == (1, 1, [COMPILED])
    alone = [p for p in rest if RECORDED in p.runtimes]
    assert [list(p.runtimes) for p in alone] == [[RECORDED]] * (2 if device == "cuda" else 0)
    rest = [p for p in rest if p not in alone]
    assert [(p.batch, p.threads) for p in rest] == [(batch, count) for batch in (1, 64) for count in counts]
    assert all((ONNX in p.runtimes) == (device == "cpu") and COMPILED not in p.runtimes for p in rest)
    assert len({p.name for p in found}) == len(found)
    large = runtime.workloads(Setting(tmp_path, device=device), kinds(quick=False, device=device)["DETR"])
    assert any(COMPILED in p.runtimes for p in large) == (device == "cpu")  # on a GPU it would take minutes


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Folder and result: two of the networks, of which one cannot be had."""
    for package in ("matplotlib", "laplace", "onnxruntime", "onnx"):
        pytest.importorskip(package)
    out = tmp_path_factory.mktemp("runtime")
    chosen = kinds(quick=True, device="cpu")

    def absent(seed):
        raise ImportError("it needs a package")  # as anything else that a network may fail with

    with pytest.MonkeyPatch.context() as patch:
        fewer = replace(chosen["MLP"], budgets=lambda network: {"large": {"budget": "1 MiB"}}, members=False)
        two = {"MLP": fewer, "ConvNet": replace(chosen["ConvNet"], network=absent)}
        patch.setattr(runtime, "kinds", lambda **asked: two)
        return out, run_study("runtime", out, quick=True, seeds=1)


def test_the_result_holds_every_method_and_says_what_was_skipped(quick):
    out, result = quick
    assert result.numbers["skipped"] == {"ConvNet": "it needs a package"}
    assert "ConvNet skipped: it needs a package." in result.findings
    assert read_result(out / "runtime" / "result.json").title == result.title
    for figure in result.figures:
        assert (out / "runtime" / figure.file).stat().st_size > 5_000
    (seed,) = result.numbers["networks"]["MLP"]
    at_one = {(e["method"], e["runtime"]): e for e in seed["entries"] if e["batch"] == 1}
    for runtime_name in (EAGER, GRAPH, ONNX):
        assert at_one[PLAIN, runtime_name]["median"] > 0
        assert at_one[ours("large"), runtime_name]["over_network"] > 0, at_one[ours("large"), runtime_name]
    assert at_one[ours("large"), ONNX]["file_bytes"] > at_one[PLAIN, ONNX]["file_bytes"]


def test_a_second_run_goes_on_from_what_was_done(quick, monkeypatch):
    out, result = quick
    monkeypatch.setattr(runtime, "measure", None)
    monkeypatch.setattr(runtime, "quality", None)
    chosen = kinds(quick=True, device="cpu")
    monkeypatch.setattr(runtime, "kinds", lambda **asked: {"MLP": chosen["MLP"]})
    again = run_study("runtime", out, quick=True, seeds=1)
    assert again.numbers["networks"] == result.numbers["networks"]


def test_a_small_detr_is_built_without_a_download_and_drops_by_functions():
    pytest.importorskip("transformers", reason='transformers is not installed: pip install "trustgp[hf]"')
    kind = kinds(quick=True, device="cpu")["DETR"]
    network, images = kind.network(0).eval(), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        answer = network(images)
        assert answer.shape == (2, 5 * (len(TEXTURES) + 1 + 4))
        assert torch.equal(answer, network(images))
        noisy = dropping(network)
        assert not torch.equal(noisy(images), noisy(images))
    budgets = kind.budgets(network)
    top = set(budgets["large"]["tangents"].parameters)
    heads = set(budgets["small"]["tangents"].parameters)
    assert heads < top
    assert any("decoder.layers.1." in name for name in top)
    assert not any("decoder.layers.0." in name or "encoder" in name.split("layers")[0] for name in top)
