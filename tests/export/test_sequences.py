"""Recurrent layers, attention and rarer activations: onnxruntime equals `predict`, without a warning."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from exported import BATCHES, assert_equal
from torch import Tensor, nn

import trustgp
from trustgp.export import ExportError

STEPS, SIZE, HIDDEN = 3, 2, 4
KINDS = {"last": trustgp.Sketch(512, parameters="last"), "all": trustgp.JacobianRows()}


class Recurrent(nn.Module):
    """The last state of a recurrent layer."""

    def __init__(self, kind: type[nn.Module], **options) -> None:
        super().__init__()
        self.memory = kind(SIZE, HIDDEN, batch_first=True, **options)
        self.last = nn.Linear(HIDDEN * (1 + bool(options)), 2)

    def forward(self, x):
        return self.last(self.memory(x)[0][:, -1])


class Packed(Recurrent):
    """The same of a packed sequence."""

    def forward(self, x):
        lengths = torch.full((len(x),), STEPS)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.last(self.memory(packed)[1][0])


class Attentive(nn.Module):
    """The mean of the outputs of attention."""

    def __init__(self, layer: nn.Module, attend: Callable) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(SIZE, HIDDEN), layer, nn.Linear(HIDDEN, 2)
        self.attend = attend

    def forward(self, x):
        return self.last(self.attend(self.layer, self.first(x), x).mean(dim=1))


def activated(layer: nn.Module) -> nn.Module:
    first = nn.Linear(STEPS * SIZE, 6)
    return nn.Sequential(nn.Flatten(), first, layer, nn.Linear(6, 6), layer, nn.Linear(6, 2))


def masked(layer: nn.Module, h: Tensor, x: Tensor) -> Tensor:
    """Each step attends to earlier ones, some of which are masked, but not the first."""
    later = torch.ones(STEPS, STEPS, dtype=torch.bool).triu(1)
    masked = (x[:, :, 0] > 0.5) & (torch.arange(STEPS) > 0)
    return layer(h, h, h, attn_mask=later, key_padding_mask=masked, need_weights=False)[0]


def causal(_: nn.Module, h: Tensor, x: Tensor) -> Tensor:
    heads = h.unflatten(-1, (2, -1)).transpose(1, 2)
    attended = F.scaled_dot_product_attention(heads, heads, heads.tanh(), is_causal=True)
    return attended.transpose(1, 2).flatten(2)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "GRU": lambda: Recurrent(nn.GRU, bidirectional=True),
    "LSTM": lambda: Recurrent(nn.LSTM),
    "attention": lambda: Attentive(
        nn.MultiheadAttention(HIDDEN, 2, batch_first=True), lambda layer, h, x: layer(h, h, h)[0]
    ),
    "masked attention": lambda: Attentive(nn.MultiheadAttention(HIDDEN, 2, batch_first=True), masked),
    "encoder": lambda: Attentive(
        nn.TransformerEncoderLayer(HIDDEN, 2, 8, batch_first=True), lambda layer, h, x: layer(h)
    ),
    "scaled dot product": lambda: Attentive(nn.Identity(), causal),
    "softplus": lambda: activated(nn.Softplus(beta=2)),
    "mish": lambda: activated(nn.Mish()),
}


def model_of(network: Callable[[], nn.Module], tangents: object) -> tuple[trustgp.UncertaintyModel, Tensor]:
    """A model with two experts, and other rows."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inputs, module = torch.randn(60, STEPS, SIZE), network().eval()
    targets = torch.stack([inputs[:, 0].sum(dim=1).sin(), inputs[:, 0, 0] * inputs[:, -1, 1]], dim=1)
    rows, options = (inputs[:40], targets[:40]), {"num_experts": 2, "witness": None, "progress": False}
    return trustgp.fit(module, rows, tangents=tangents, **options), 1.3 * inputs[40:]


NIGHTLY = ("GRU", "attention", "encoder", "mish", "scaled dot product")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(pytest.param(n, "all", marks=[pytest.mark.nightly] * (n in NIGHTLY)) for n in NETWORKS),
        pytest.param("masked attention", "last", marks=pytest.mark.nightly),
    ],
)
def test_onnxruntime_equals_predict_without_a_warning(name, kind, tmp_path, capfd):
    runtime = pytest.importorskip("onnxruntime")
    model, inputs = model_of(NETWORKS[name], KINDS[kind])
    path = trustgp.export_onnx(model, tmp_path / "model.onnx", inputs[:4])
    capfd.readouterr()
    session = runtime.InferenceSession(str(path))  # as others open it: warnings are shown
    names = [output.name for output in session.get_outputs()]
    for batch in BATCHES:
        outputs = session.run(None, {"input": inputs[:batch].numpy()})
        assert_equal(model.predict(inputs[:batch]), dict(zip(names, outputs, strict=True)))
    assert capfd.readouterr() == ("", "")


def test_packed_sequences_are_refused_by_the_layers_name(tmp_path):
    pytest.importorskip("onnxruntime")
    model, inputs = model_of(lambda: Packed(nn.GRU), KINDS["last"])
    with pytest.raises(ExportError, match=r"layer 'memory' \(GRU\) cannot be"):
        trustgp.export_onnx(model, tmp_path / "model.onnx", inputs[:2])
    assert list(tmp_path.iterdir()) == []
