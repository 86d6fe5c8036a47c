"""CUDA graphs of passes, replayed; operations that cannot be captured are detected before."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from zoo import Net, make

import trustgp
from trustgp.state import recording
from trustgp.tangents.replay import CALLS_BEFORE, Replay, _Watch
from trustgp.tangents.sketch import Sketch

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def whole_predictions(monkeypatch):
    monkeypatch.setattr(recording, "ENABLED", True)


SYNCHRONISING = {
    "a number": lambda x: x * float(x.sum()),
    "a choice": lambda x: x if x.sum() > 0 else -x,
    "a mask": lambda x: x[x > 0],
    "indices": lambda x: x.nonzero(),
    "another device": lambda x: x.to("meta"),
}


def test_operations_that_read_values_back_are_detected_and_ordinary_ones_are_not():
    for operation in SYNCHRONISING.values():
        with _Watch() as watch:
            operation(torch.randn(4, 3))
        assert watch.operations
    network, inputs = make("conv2d, groups")
    with _Watch() as watch:
        network(inputs.clone().requires_grad_(True)).square().sum().backward()
        inputs[torch.tensor([1, 0])]
    assert watch.operations == []


def test_recordings_are_not_copied():
    replay = Replay(len)
    replay._calls["a"] += 1
    for again in (copy.deepcopy(replay), pickle.loads(pickle.dumps(replay))):
        assert not again._calls
        assert not again._recordings


def synchronising(net, inputs: torch.Tensor) -> torch.Tensor:
    """Reads a value back in its forward pass."""
    pooled = net.inner(inputs).tanh().mean(dim=2)
    return pooled if float(pooled.detach().abs().max()) < 1e6 else pooled / 2


def bound(network: nn.Module, inputs: torch.Tensor) -> trustgp.UncertaintyModel:
    torch.manual_seed(0)
    targets = network(inputs).detach() + 0.1 * torch.randn(len(inputs), 5)
    options = {"tangents": Sketch(64), "num_experts": 2, "witness": None, "progress": False}
    return trustgp.fit(network.cuda(), (inputs, targets), **options)


@cuda
@pytest.mark.parametrize("rows", [1, 7])
def test_a_replayed_prediction_is_the_same(rows):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv1d(2, 5, 3), nn.Tanh(), nn.AdaptiveAvgPool1d(1), nn.Flatten()).eval()
    model = bound(network, torch.randn(60, 2, 9))
    assert not model.mixtures[0].tangents._replay._recordings  # those of the fit are released
    given = torch.randn(8, rows, 2, 9, device="cuda")
    first = [model.predict(one) for one in given]
    replay = model.state.recordings._replay
    assert any(key[0] == rows and recording for key, recording in replay._recordings.items())
    again = [model.predict(one) for one in given]
    with ThreadPoolExecutor(4) as pool:
        beside = list(pool.map(model.predict, given))
    replay._recordings.clear()
    replay._calls.clear()
    for one, other, third, x in zip(first, again, beside, given, strict=True):
        eager = model.predict(x) if not replay._recordings else None
        assert torch.equal(one.mean, network(x))
        for result in (other, third, *([eager] if eager else [])):
            assert torch.equal(result.mean, one.mean)
            torch.testing.assert_close(result.variance, one.variance, rtol=1e-4, atol=0)


@cuda
def test_a_network_that_reads_values_back_is_never_recorded():
    inputs = torch.randn(60, 2, 9)
    model = bound(Net(synchronising, inner=nn.Conv1d(2, 5, 3)).eval(), inputs)
    for _ in range(CALLS_BEFORE + 3):
        model.predict(inputs[:4])
    for replay in (model.state.recordings._replay, model.mixtures[0].tangents._replay):
        assert not any(replay._recordings.values())
    torch.randn(3, device="cuda")  # the random generator still works


@cuda
def test_few_rows_are_padded_where_outputs_need_not_be_exact():
    inputs = torch.randn(60, 2, 9)
    model = bound(nn.Sequential(nn.Conv1d(2, 5, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten()).eval(), inputs)
    tangents, inputs = model.mixtures[0].tangents, inputs.cuda()
    tangents._replay._min_launches = 0  # recorded on a busy GPU, too
    for _ in range(CALLS_BEFORE + 2):
        whole = tangents(inputs[:16]).rows
    assert len(tangents._replay._recordings) == 1
    torch.testing.assert_close(tangents(inputs[:11]).rows, whole[:11])
    assert len(tangents._replay._recordings) == 1


@cuda
def test_memory_does_not_grow_over_calls_of_mixed_sizes(caplog):
    caplog.set_level("INFO", logger="trustgp")  # shows why something is not recorded
    inputs = torch.randn(300, 2, 9, device="cuda")
    network = nn.Sequential(nn.Conv1d(2, 5, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten()).eval()
    model = bound(network, inputs.cpu())
    taken = []
    for n in torch.randint(1, 300, (1500,), generator=torch.Generator().manual_seed(0)).tolist():
        p = model.predict(inputs[:n])
        assert torch.equal(p.mean, model.network(inputs[:n]))
        taken.append(torch.cuda.memory_allocated())
    assert max(taken[500:]) <= 1.1 * max(taken[:500])
    recordings = model.state.recordings._replay._recordings
    assert 0 < sum(one is not None for one in recordings.values()) <= 10  # powers of two
