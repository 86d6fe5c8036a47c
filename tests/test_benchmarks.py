"""What the benchmark of scale counts and claims; the benchmarks themselves are not run here."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from trustgp_experiments.core.stage_timer import Ledger

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def scripts(monkeypatch):
    """benchmarks/scale.py and benchmarks/floor.py as modules."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import floor
    import scale

    yield Namespace(floor=floor, scale=scale)
    for name in ("floor", "scale"):
        sys.modules.pop(name)


def test_the_floor_counts_products_of_feature_rows_and_factors_by_hand(scripts, case, fit_case):
    model = fit_case(num_experts=3, outputs="separate", witness=None)
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
        ("shared", 44.0, 15e9, {"memory": True, "time": True}),
        ("shared", 46.0, 17e9, {"memory": False, "time": False}),
        ("separate", 239.0, 15e9, {"memory": True, "time": True}),
        ("pseudo", 999.0, 15e9, {"memory": True}),
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
