"""Promise 20: the same weights in a network that does something else are refused; a moved one is not."""

import copy

import pytest
import torch
import torch.nn.functional as F
from many import each
from reliability.helpers import contents, different_fields, prediction_fields, quiet_fit, rows, train
from torch import nn
from zoo import Net

import trustgp
from trustgp.data.rows import Rows
from trustgp.data.tensor_file import read, write
from trustgp.export.errors import ExportError
from trustgp.export.verify import export_source
from trustgp.tangents import probes as probing
from trustgp.tangents.network import prepare
from trustgp.tangents.probes import Probes

NEW = rows(3, inputs=6, dtype=torch.float32, seed=4)


class Body(nn.Module):
    """An attention layer, with whatever a state dict does not hold."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.inward, self.last = nn.Linear(3, 8), nn.Linear(8, 2)
            self.layer = nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True)
        self.gain, self.straight = 1.0, False
        self.register_buffer("shift", torch.full((8,), 0.1), persistent=False)

    def forward(self, x):
        hidden = self.layer(self.inward(x.unflatten(1, (2, 3)))).mean(dim=1) + self.shift
        hidden = hidden.detach() if self.straight else hidden
        return self.last(self.gain * torch.tanh(hidden))


def _set(path, **values):
    """A change of attributes of a part of the network."""

    def change(network):
        for name, value in values.items():
            setattr(network.get_submodule(path), name, value)

    return change


GRADIENT_ONLY = _set("", straight=True)
SILENT = (
    _set("layer", norm_first=True),
    _set("layer.self_attn", num_heads=4, head_dim=2),
    _set("layer", activation=F.gelu, activation_relu_or_gelu=2),
    GRADIENT_ONLY,
)
CHANGES = (
    *SILENT,
    _set("", gain=1.01),
    lambda network: network.shift[3].add_(0.05),
    lambda network: network.layer.register_forward_hook(lambda module, args, output: 1.02 * output),
)


def changed(network, change):
    other = copy.deepcopy(network)
    change(other)
    return other.eval()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """The network, its rows, a saved model and the folder of its checkpoint."""
    folder = tmp_path_factory.mktemp("fitted")
    x, y = rows(40, inputs=6, dtype=torch.float32)
    network = train(Body(), x, y, steps=20).eval()
    quiet_fit(network, (x, y), num_experts=2, checkpoint=folder / "checkpoint").save(folder / "model")
    return network, (x, y), folder


@each("change", CHANGES)
def test_another_behaviour_is_refused_by_load_resume_update_and_export(fitted, change):
    network, data, folder = fitted
    other, checkpoint = changed(network, change), folder / "checkpoint"
    assert all(map(torch.equal, other.state_dict().values(), network.state_dict().values()))
    reason = "the gradient for" if change is GRADIENT_ONLY else "its outputs are off by"
    with pytest.raises(trustgp.ArtifactError, match=f"network; the weights are the same, but.*{reason}"):
        trustgp.load(folder / "model", other)
    before = contents(checkpoint)
    with pytest.raises(trustgp.ArtifactError, match=f"another fit; different: .*{reason}"):
        quiet_fit(other, data, num_experts=2, checkpoint=checkpoint)
    assert contents(checkpoint) == before
    model = trustgp.load(folder / "model", network)
    state = model.state
    change(model.network)
    with pytest.raises(ValueError, match="no longer the one it was fitted to"):
        model.update(NEW, progress=False)
    assert model.state is state
    with pytest.raises(ExportError, match="no longer the one it was fitted to"):
        export_source(model).check(lambda inputs: pytest.fail("it is not run"), data[0][:3], what="graph")


def test_what_is_the_same_is_accepted_everywhere(fitted):
    network, data, folder = fitted
    model = trustgp.load(folder / "model", copy.deepcopy(network))
    assert quiet_fit(copy.deepcopy(network), data, num_experts=2, checkpoint=folder / "checkpoint")
    assert model.update(NEW, progress=False)
    model.save(folder / "updated")
    again = trustgp.load(folder / "updated", network)
    one, other = (prediction_fields(m.predict(data[0])) for m in (model, again))
    assert not different_fields(one, other)


def test_another_function_for_the_output_is_refused(fitted, tmp_path):
    network, data, _ = fitted
    model = quiet_fit(network, data, num_experts=1, select=lambda result: result)
    model.save(tmp_path / "m")
    trustgp.load(tmp_path / "m", network, select=lambda result: result + 0)
    with pytest.raises(trustgp.ArtifactError, match="its outputs are off by"):
        trustgp.load(tmp_path / "m", network, select=lambda result: result.flip(1))


def test_layers_that_are_only_printed_otherwise_are_accepted_with_a_warning(fitted):
    network, _, folder = fitted
    other = copy.deepcopy(network)
    other.last.extra_repr = lambda: "as another release of torch prints it"
    with pytest.warns(UserWarning, match="not printed as they were"):
        trustgp.load(folder / "model", other)


def test_a_file_without_probes_loads_as_before(fitted, tmp_path):
    network, _, folder = fitted
    text, table = read(folder / "model", kind="trustgp-model")
    del text["probes"], text["weights"]
    old = {name: table[name] for name in table if not name.startswith("probes.")}
    write(tmp_path / "old", kind="trustgp-model", text=text, tensors=old)
    trustgp.load(tmp_path / "old", network).save(tmp_path / "again")
    trustgp.load(tmp_path / "again", network)
    with pytest.raises(trustgp.ArtifactError, match="fitted to another network"):
        trustgp.load(tmp_path / "old", copy.deepcopy(network).double())


PRECISIONS = {torch.float64: 1e-5, torch.float16: 0.02, torch.bfloat16: 0.1}


@each("dtype", PRECISIONS)
def test_a_model_is_loaded_with_its_network_in_another_precision_and_with_no_other(fitted, tmp_path, dtype):
    network, (x, _), folder = fitted
    here = trustgp.load(folder / "model", network).predict(x)
    moved = copy.deepcopy(network).to(dtype)
    model = trustgp.load(folder / "model", moved)
    there = model.predict(x.to(dtype))
    assert there.mean.dtype == dtype
    torch.testing.assert_close(there.std.double(), here.std.double(), rtol=PRECISIONS[dtype], atol=0.0)
    model.save(tmp_path / "moved")
    again = trustgp.load(tmp_path / "moved", moved).predict(x.to(dtype))
    assert not different_fields(prediction_fields(there), prediction_fields(again))
    trustgp.load(tmp_path / "moved", network)  # and back
    for change in SILENT:
        with pytest.raises(trustgp.ArtifactError, match="the weights are the same, but"):
            trustgp.load(folder / "model", changed(network, change).to(dtype))
    other = copy.deepcopy(network)
    other.last.bias.data[0] += 0.01
    with pytest.raises(trustgp.ArtifactError, match="names or weights differ"):
        trustgp.load(folder / "model", other.to(dtype))


def single(net, x):
    """Works in float32 only: a tensor that is neither parameter nor buffer."""
    return torch.tanh(net.layer(x)) @ torch.eye(2) * net.power


def test_a_network_that_cannot_run_in_float64_is_compared_in_its_own_precision():
    network, (x, y) = Net(single, layer=nn.Linear(6, 2), power=1.0).eval(), rows(9, 6, dtype=torch.float32)
    first = Probes.of(prepare(network, "all", None), Rows(x, y))
    assert not first.exact
    assert first.difference(prepare(network, "all", None)) == ""
    network.power = 1.1
    assert "outputs are off by" in first.difference(prepare(network, "all", None))


def test_of_long_rows_the_beginning_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(probing, "MAX_NUMBERS", 4)
    network, (x, y) = nn.Linear(6, 2), rows(9, inputs=6, dtype=torch.float32)
    first = Probes.of(prepare(network, "all", None), Rows(x, y))
    assert first.tensors()["probes.input.0"].shape == (3, 4)
    assert torch.equal(first.inputs, torch.cat([x[[0, 4, 8], :4], x[[0, 4, 8], :2]], dim=1))
    quiet_fit(network.eval(), (x, y)).save(tmp_path / "m")
    trustgp.load(tmp_path / "m", copy.deepcopy(network))
