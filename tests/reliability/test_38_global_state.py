"""Promise 38: a model does not depend on torch's global state, and hardly on its seed."""

from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch
from blobs import blobs
from reliability.helpers import different_fields, mlp, prediction_fields, quiet_fit, rows, train, trained

import trustgp
from trustgp.export import export_onnx, open_onnx

DEVICES: list[str] = []  # on which the network below would have made tensors


class MakesTensors(torch.nn.Sequential):
    """Notes torch's default device as it is within a pass."""

    def forward(self, input):
        DEVICES.append(torch.empty(0).device.type)
        return super().forward(input)


def forget_device() -> None:
    """As if no default device had been set: after None torch 2.6 fails where it is asked for the default."""
    torch.set_default_device(None)
    vars(torch._GLOBAL_DEVICE_CONTEXT).pop("device_context", None)


@contextmanager
def global_state(dtype: torch.dtype, device: str, *, deterministic: bool, seed: int):
    """torch's defaults and random numbers as a user may have set them."""
    with ExitStack() as undo, torch.random.fork_rng(devices=[]):
        undo.callback(torch.set_default_dtype, torch.get_default_dtype())
        undo.callback(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled())
        undo.callback(forget_device)
        torch.manual_seed(seed)
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(deterministic)
        torch.set_default_device(device)
        yield


def make_case(name):
    """A network, training rows, validation rows, new rows and options."""
    if name == "regression":
        network, x, y = trained(180, 3, 16, dtype=torch.float32)
        small = trustgp.Witness(rows=20, neighbours=1)  # an export takes long over a large one
        every, options = (x, y), {"tangents": trustgp.Sketch(24), "witness": small}
    else:
        network, every, options = blobs().network, blobs().train, {"likelihood": "classification"}
    parts = (tuple(one[part] for one in every) for part in (slice(100), slice(100, 150), slice(150, 180)))
    return network, *parts, {**options, "num_experts": 3}


def life(case, folder):
    """What a model computes and writes, from its fit to an update."""
    network, first, validation, new, options = case
    model = quiet_fit(network, first, validation=validation, **options)
    inputs = new[0][:20]
    results = prediction_fields(model.predict(inputs))
    results["log_prob"] = model.predict(new[0]).log_prob(new[1])
    model.threshold(false_alarm=0.1)
    results["evaluate"] = torch.tensor(trustgp.evaluate(model, new).nll, dtype=torch.float64, device="cpu")
    model.save(folder / "m.trustgp")
    content = np.frombuffer((folder / "m.trustgp").read_bytes(), dtype=np.uint8)
    results["file"] = torch.from_numpy(content.copy())
    results["loaded"] = trustgp.load(folder / "m.trustgp", network).predict(inputs).std
    export_onnx(model, folder / "m.onnx", inputs)
    results["onnx"] = torch.from_numpy(open_onnx(folder / "m.onnx")(inputs)["variance"])
    verdict = trustgp.Monitor(model)(inputs[0])
    assert verdict.std is not None
    results["monitor"] = verdict.std
    results["compressed"] = trustgp.compress(model, rank=4, witness=False).predict(inputs).std
    model.update(new, progress=False)
    return results | {f"updated {k}": v for k, v in prediction_fields(model.predict(inputs)).items()}


SHORT = pytest.param("classification", torch.bfloat16, marks=pytest.mark.nightly)


@pytest.mark.parametrize(("name", "dtype"), [("regression", torch.float64), SHORT])
def test_defaults_of_torch_change_nothing_from_fit_to_export(name, dtype, tmp_path):
    """Whole fits and exports: a default enters wherever a tensor is made without a dtype or a device."""
    case = make_case(name)
    usual = life(case, tmp_path)
    with global_state(dtype, "meta", deterministic=True, seed=99):
        results = life(case, tmp_path)
        assert torch.get_default_device().type == "meta"
        assert torch.get_default_dtype() == dtype
    assert different_fields(usual, results) == []


def test_the_network_still_makes_tensors_on_the_users_default_device():
    """In threads, too."""
    network, x, y = trained(40)
    with global_state(torch.float32, "meta", deterministic=False, seed=0):
        model = quiet_fit(MakesTensors(network).eval(), (x, y), num_experts=2, executor=trustgp.Threads(2))
        model.predict(x[:3])
    assert set(DEVICES) == {"meta"}
    DEVICES.clear()
    model.predict(x[:3])
    assert set(DEVICES) == {"cpu"}


def test_error_bars_move_by_less_than_a_quarter_with_the_seed(record_property):
    """Three fits: the seed draws the sketch, the signs of the outputs and the gate."""
    x, y = rows(500, 4, 3, dtype=torch.float32)
    network = train(mlp(4, 24, 3, dtype=torch.float32), x[:300], y[:300], 200)
    fits = (quiet_fit(network, (x[:300], y[:300]), seed=seed) for seed in range(3))
    std = torch.stack([model.predict(x[300:]).std for model in fits])
    change = std.amax(dim=0) / std.amin(dim=0) - 1.0
    record_property("largest change", float(change.max()))
    assert float(change.median()) < 0.25
