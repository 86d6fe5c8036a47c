"""What the benchmark of scale counts and claims, and that the one of large networks runs."""

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from trustgp.detection.picture_pass import PicturePass
from trustgp_experiments.core.stage_timer import Ledger

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def scripts(monkeypatch):
    """Some of the benchmarks as modules."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import detector_stream
    import floor
    import large
    import scale

    yield Namespace(detector_stream=detector_stream, floor=floor, large=large, scale=scale)
    for name in ("detector_stream", "floor", "large", "networks", "resnet", "scale"):
        sys.modules.pop(name, None)


def test_the_floor_counts_products_of_feature_rows_and_factors_by_hand(scripts, case, fit_case):
    model = fit_case(num_experts=3, outputs="separate", witness=None, budget="none")
    peaks = scripts.floor.Peaks(float64=1e9, float32=2e9, bandwidth=1e6)
    n, parameters = len(case.inputs), sum(p.numel() for p in case.network.parameters())
    found = scripts.floor.floor(model, n, parameters, peaks)
    network, gate, products, factors, moved = 2 * parameters * n, 0, 0, 0, 0
    for mixture in model.mixtures:
        row = mixture.tangents(case.inputs[:1]).tensors().values()
        width = sum(tensor.numel() for tensor in row)
        network += 2 * 2 * 2 * parameters * n  # forward and one backward pass, twice
        gate += 2 * n * len(mixture.gate.projection.features) * width
        moved += 2 * 2 * n * sum(tensor.numel() * tensor.element_size() for tensor in row)
        assert all(len(expert.rows) > 0 for expert in mixture.experts)
        for expert in mixture.experts:
            held, own = len(expert.rows), n / len(mixture.experts)
            products += held * held * width if held >= own else 2 * own * held * width
            factors += held**3 if held >= own else held**3 / 3 + 2 * own * held**2
    expected = {"network": network, "gate": gate, "products": products, "factors": factors}
    assert found["operations"] == pytest.approx(expected, rel=1e-12)
    assert found["bytes_seconds"] == pytest.approx(moved / 1e6)
    assert found["operations_seconds"] == pytest.approx((gate + products + factors) / 1e9 + network / 2e9)
    assert found["seconds"] == max(found["operations_seconds"], found["bytes_seconds"])


def test_peaks_are_measured_and_the_threads_are_left_as_they_were(scripts, monkeypatch):
    monkeypatch.setitem(scripts.floor.SIDE, "cpu", 64)
    monkeypatch.setitem(scripts.floor.COPIED, "cpu", 2**16)
    before = torch.get_num_threads()
    peaks = scripts.floor.measure_peaks(torch.device("cpu"), 2)
    assert min(peaks.float64, peaks.float32, peaks.bandwidth) > 0
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("outputs", "seconds", "reserved", "met"),
    [
        ("shared", 19.0, 11e9, {"memory": True, "time": True}),
        ("shared", 21.0, 13e9, {"memory": False, "time": False}),
        ("separate", 119.0, 11e9, {"memory": True, "time": True}),
        ("pseudo", 999.0, 11e9, {"memory": True}),
    ],
)
def test_the_promise_is_judged_by_time_and_by_what_torch_keeps_on_the_gpu(
    scripts, outputs, seconds, reserved, met
):
    options = Namespace(device="cuda", rows=2_000_000, experts=512, outputs=outputs, profile=False)
    held = {"cpu": 10**9, "cuda": 10**6, "cuda reserved": 10**9}
    peaks = {"all": {"cpu": 10**9, "cuda": 10**9, "cuda reserved": int(reserved) - 10**9}}
    ledger = Ledger({"all": seconds}, peaks, held)
    assert scripts.scale.promised(options, ledger)["promise"]["met"] == met
    options.rows = 10_000
    assert scripts.scale.promised(options, ledger) == {"promise": None}


def test_the_benchmark_of_large_networks_runs_every_part(scripts, monkeypatch, capsys):
    pytest.importorskip("transformers", reason='not installed: pip install "trustgp[hf]"')
    parts = ["networks", "cpu", "resnet18", "images", "million"]
    monkeypatch.setattr(sys, "argv", ["large.py", "--small", "--network", "vit", "--part", *parts])
    before = torch.get_num_threads()
    with torch.random.fork_rng():
        scripts.large.main()
    assert torch.get_num_threads() == before
    *lines, last = capsys.readouterr().out.splitlines()
    result = json.loads(last)
    assert result["errors"] == {}
    figures = result["figures"]
    resnets = {f"resnet18 {name}" for name in ("classes", "shared outputs")}
    assert figures.keys() == {"vit", "cpu vit", "cpu convnet", *resnets, "images", "million"}
    assert sum(map(len, figures.values())) == len(lines)
    assert all(found["fit s"] > 0 for part, found in figures.items() if part != "million")
    assert {"predict 64 over forward", "predict 1 over forward"} <= figures["cpu vit"].keys()
    assert "million: shared s" in "\n".join(lines)


@pytest.mark.filterwarnings("ignore:.*training pictures are kept", "ignore:.*have no training row")
def test_the_benchmark_of_a_detectors_stream_runs(scripts, monkeypatch, capsys):
    pytest.importorskip("transformers", reason='not installed: pip install "trustgp[hf]"')
    monkeypatch.setattr(sys, "argv", ["detector_stream.py", "--small", "--pictures", "70"])
    monkeypatch.setattr(PicturePass, "take", PicturePass.take)  # it is counted, and put back
    with torch.random.fork_rng():
        scripts.detector_stream.main()
    *_, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert found["pictures"] == 70
    assert found["size"] == [128, 128]
    assert 0 < found["peak_gib_after_quarters"][-1] <= found["peak_gib"]


def test_a_part_of_the_benchmark_that_fails_is_told_and_the_others_go_on(scripts, capsys):
    def fails():
        raise MemoryError("too small")

    figures = scripts.large.Figures()
    figures.attempt("one", fails)
    figures.attempt("two", lambda: figures.say("two", fit_over_forward=3.0))
    assert figures.errors == {"one": "MemoryError: too small"}
    assert figures.found == {"two": {"fit over forward": 3.0}}
    assert "one: failed: MemoryError: too small" in capsys.readouterr().out
