"""A prediction runs the network once, and says the same."""

import pytest
import torch
from torch import nn

import trustgp


class Counting(nn.Module):
    """Counts its forward passes; may return [n] instead of [n, 1]."""

    def __init__(self, outputs: int, *, flat: bool = False) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Linear(3, 16), nn.ReLU(inplace=True), nn.Linear(16, outputs))
        self.flat, self.rounding = flat, False
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        outputs = self.body(x)
        if self.rounding and torch.is_grad_enabled():  # another way while the layers are watched
            outputs = outputs * (1 + 2**-20)
        return outputs[:, 0] if self.flat else outputs


def fitted(network: nn.Module, tangents) -> trustgp.UncertaintyModel:
    inputs = torch.randn(60, 3, generator=torch.Generator().manual_seed(1))
    targets = inputs.sum(1, keepdim=True).sin().expand(-1, network.body[2].out_features)
    options = {"tangents": tangents, "num_experts": 2, "outputs": "shared"}
    options |= {"witness": None, "progress": False}
    return trustgp.fit(network.eval(), (inputs, targets), validation=(inputs[:20], targets[:20]), **options)


TANGENTS = [trustgp.LayerFactors(), trustgp.Sketch(64), trustgp.JacobianRows()]


def passes(model: trustgp.UncertaintyModel, inputs: torch.Tensor) -> tuple[trustgp.Prediction, int]:
    """The prediction, and how often the network and its twin ran for it."""
    modules = (model.network, model.mixtures[0].tangents.network.float32_module)
    counters = {id(buffer): buffer for module in modules for buffer in module.buffers()}
    before = sum(int(b) for b in counters.values())
    prediction = model.predict(inputs)
    return prediction, sum(int(b) for b in counters.values()) - before


@pytest.mark.parametrize(("tangents", "flat"), [*zip(TANGENTS, (False, True, False), strict=True)], ids=str)
def test_from_the_second_time_on_a_prediction_runs_the_network_once(tangents, flat):
    model = fitted(Counting(1 if flat else 2, flat=flat), tangents)
    inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(2))
    (first, _), (second, runs) = passes(model, inputs), passes(model, inputs)
    assert runs == 1
    for name in ("mean", "variance", "novelty", "expert"):
        torch.testing.assert_close(getattr(second, name), getattr(first, name), rtol=0, atol=0)
    assert torch.equal(second.mean, model.network(inputs))
    assert second.mean.shape == first.mean.shape


@pytest.mark.parametrize("tangents", TANGENTS, ids=lambda t: type(t).__name__)
def test_a_network_that_rounds_otherwise_while_it_is_watched_keeps_its_own_outputs(tangents):
    model = fitted(Counting(2), tangents)
    for part in (model.network, model.mixtures[0].tangents.network.float32_module):
        part.rounding = True
    inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(2))
    for _ in range(3):
        with torch.no_grad():
            assert torch.equal(model.predict(inputs).mean, model.network(inputs))
