"""Promise 31: one-element tensors with strides, .double(), 1-D rows, inference_mode, modules that cannot be
copied, and the like work, or an error says what to do."""

import threading
from functools import partial

import pytest
import torch
from reliability.helpers import mlp, quiet_fit, trained
from torch import nn

import trustgp
from trustgp.data.fingerprint import tensor_fingerprint


@pytest.fixture(scope="module")
def case():
    """A float32 network, its rows, and its model."""
    network, x, y = trained(40, dtype=torch.float32)
    return network, x, y, quiet_fit(network, (x, y), num_experts=1)


def test_a_single_number_with_a_stride_has_a_fingerprint_and_is_saved(tmp_path):
    """It counts as contiguous."""
    strided = torch.arange(8.0, dtype=torch.float64)[3::8]
    assert strided.stride() == (8,)
    plain = strided.clone(memory_format=torch.contiguous_format)
    assert tensor_fingerprint(strided) == tensor_fingerprint(plain)
    network = mlp(2, 3, 1)
    network[2].bias = nn.Parameter(strided)
    _, x, y = trained(30, outputs=1)
    model = quiet_fit(network, (x, y), num_experts=1)
    model.save(tmp_path / "model")
    assert torch.equal(trustgp.load(tmp_path / "model", network).predict(x).mean, network(x))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.zeros(40, 2).double(), "The network is torch.float32: pass inputs.to.torch.float32."),
        (torch.zeros(40), r"n numbers are inputs\[:, None\], a single row is inputs\[None\]"),
        (torch.zeros(40, 3), r"cannot be called on 40 training rows \(\(40, 3\) torch.float32"),
    ],
)
def test_fit_names_what_was_given_and_what_is_needed(case, inputs, message):
    network, x, y, model = case
    with pytest.raises(ValueError, match=message):
        quiet_fit(network, (inputs, y))
    with pytest.raises(ValueError, match=message.replace("40", "1").replace("training", "validation")):
        quiet_fit(network, (x, y), validation=(inputs, y), num_experts=1)
    with pytest.raises(ValueError, match=r"new_rows"):
        model.update((inputs, y), progress=False)


def test_rows_in_batches_are_predicted_like_all_at_once(case):
    _, x, _, model = case
    whole, batched = model.predict(x), model.predict(x, batch_size=7)
    assert torch.allclose(batched.variance, whole.variance)
    assert torch.equal(batched.expert, whole.expert)
    assert len(model.predict(iter([x[:3], x[3:8]]))) == 8
    bad = x.clone()
    bad[4] = torch.nan
    assert (~model.predict(bad, batch_size=3).valid).nonzero().tolist() == [[4]]
    for size in (0, 2.5, True, "8"):
        with pytest.raises(ValueError, match=r"batch_size=.*whole number of at least 1"):
            model.predict(x, batch_size=size)


def test_a_fitted_model_keeps_its_precision_and_mode(case):
    _, x, _, model = case
    assert not model.train().network.training
    for change in (model.double, model.half, model.bfloat16, lambda: model.to(torch.float64)):
        with pytest.raises(TypeError, match="keeps its precision"):
            change()
    assert model.predict(x).mean.dtype == torch.float32


def test_a_float64_model_accepts_double():
    network, x, y = trained(60)
    model = quiet_fit(network, (x, y.float()), num_experts=1)
    before = model.predict(x).variance
    assert model.witness.points.dtype == torch.float32
    assert torch.equal(model.double().predict(x).variance, before)
    assert model.witness.points.dtype == torch.float32


HALF = partial(torch.autocast, "cpu", torch.bfloat16)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, HALF])
def test_fit_update_and_predict_do_the_same_under_a_mode_of_torch(case, mode):
    tangents = "layer_factors" if mode is torch.inference_mode else None
    network, x, y, _ = case
    options = {"num_experts": 1, "tangents": tangents, "witness": None}
    plain = quiet_fit(network, (x[:30], y[:30]), **options)
    plain.update((x[30:], y[30:]), progress=False)
    with mode():
        rows = x.clone(), y.clone()  # tensors made under inference_mode can never have gradients
        model = quiet_fit(network, (rows[0][:30], rows[1][:30]), **options)
        model.update((rows[0][30:], rows[1][30:]), progress=False)
        inside = model.predict(rows[0]).variance
    assert torch.equal(inside, plain.predict(x).variance)
    assert torch.equal(model.predict(rows[0]).variance, inside)


class Locked(nn.Sequential):
    """Holds what cannot be copied."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.guard = threading.Lock()


class Uncopied(nn.Sequential):
    """Refuses to be copied."""

    def __deepcopy__(self, memo):
        raise RuntimeError("not this one")


NETWORKS = {
    "lock": (
        lambda network: nn.Sequential(Locked(*network)),
        r"cannot be copied, because of 'guard' \(a lock\) in '0'.*keep such attributes outside",
    ),
    "refuses": (lambda network: Uncopied(*network), "cannot be copied: not this one"),
    "lazy buffer": (
        lambda _: nn.Sequential(nn.Linear(2, 2), nn.LazyBatchNorm1d(affine=False)),
        "parameter '1.running_mean' has no shape yet",
    ),
}


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("kind", NETWORKS)
def test_networks_that_cannot_be_used_are_named(case, kind):
    build, message = NETWORKS[kind]
    for fit in (quiet_fit, lambda *args: trustgp.paper(*args, progress=False)):
        with pytest.raises((TypeError, ValueError), match=message):
            fit(build(case[0].eval()), case[1:3])
