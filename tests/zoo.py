"""Networks of every kind that people bring, each with a few rows of input: small, seeded, in eval mode."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from draws import normal
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def seeded(*shape: int) -> Tensor:
    return normal(shape, seed=5)


class Net(nn.Module):
    """Layers and parameters by name, and a function of the module and its inputs."""

    def __init__(self, function: Callable, **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args, **named):
        return self.function(self, *args, **named)


class Head(nn.Module):
    """A body, pooled over everything but rows and channels, and two outputs."""

    def __init__(self, *body: nn.Module, channels: int) -> None:
        super().__init__()
        self.body, self.last = nn.Sequential(*body), nn.Linear(channels, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.body(x)).flatten(2).mean(dim=2))


class LastStep(nn.Module):
    """A recurrent layer and an output from its last step."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.last = layer, nn.Linear(width, 2)

    def forward(self, x):
        first = self.layer.batch_first
        outputs, _ = self.layer(x if first else x.transpose(0, 1))
        return self.last(outputs[:, -1] if first else outputs[-1])


class Encoder(nn.Module):
    """nn.TransformerEncoder with learned positions."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, activation="gelu")  # the sequence first
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.positions, self.inward, self.last = nn.Embedding(9, 8), nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        x = self.inward(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        return self.last(self.encoder(x.transpose(0, 1))[0])


class Wrapped(nn.Module):
    """Returns its outputs in a tuple, a dict or an object."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.conv, self.last, self.kind = nn.Conv1d(1, 3, 2), nn.Linear(6, 2), kind

    def forward(self, x):
        hidden = torch.tanh(self.conv(x)).flatten(1)
        named = {"hidden": hidden, "logits": self.last(hidden)}
        return {"tuple": tuple(named.values()), "dict": named, "object": SimpleNamespace(**named)}[self.kind]


def packed(net, x, lengths):
    """An LSTM on a packed sequence."""
    rows = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    return net.last(net.layer(rows)[1][0][-1])


def cells(net, x):
    """Recurrent cells in a loop of the user's own."""
    h, c, g, r = (x.new_zeros(len(x), size) for size in (4, 4, 3, 3))
    for step in x.unbind(dim=1):
        h, c = net.lstm(step, (h, c))
        g = net.gru(h, g)
        r = net.rnn(g, r)
    return net.last(r)


def attention(net, x, y):
    """nn.MultiheadAttention with keys of another length."""
    mixed, weights = net.attention(x, y, y)
    return net.last(mixed.mean(dim=1)) * weights.square().sum(dim=(1, 2))[:, None]


def patches(net, x):
    """A small vision transformer with a class token, positions outside of layers, and its own attention."""
    x = net.inward(x).flatten(2).transpose(1, 2)
    x = torch.cat([net.token.expand(len(x), -1, -1), x], dim=1) + net.positions
    q, k, v = net.mixed(net.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    x = x + net.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
    return net.last(x[:, 0])


def beside(net, words, vector):
    """Embeddings with a padding word, summed, beside a vector."""
    return net.last(torch.tanh(torch.cat([net.words(words).sum(dim=1), vector], dim=1)))


def bags(net, words, weights=None):
    return net.last(torch.tanh(net.words(words, per_sample_weights=weights)))


def twice(net, x):
    """One layer called on a vector, and on two of them."""
    once = torch.tanh(net.layer(x))
    return net.last(torch.tanh(net.layer(torch.stack([once, x], dim=1))).sum(dim=1))


def tied(transposed: bool) -> nn.Module:
    """Two layers that share one weight; a decoder may use it transposed."""

    def forward(net, x):
        x = torch.tanh(net.two(torch.tanh(net.one(x))))
        return x @ net.one.weight.T if transposed else x

    net = Net(forward, one=nn.Linear(3, 3), two=nn.Linear(3, 3))
    net.two.weight = net.one.weight
    return net


def over_time(frames_first: bool) -> nn.Module:
    """A convolution on every frame of a clip, frames and rows in one dimension, in either order."""

    def forward(net, x):  # [n, t, 1, h, w]
        n, t = x.shape[:2]
        x = x.transpose(0, 1) if frames_first else x
        x = net.last(torch.tanh(net.conv(x.reshape(n * t, *x.shape[2:]))).mean(dim=(2, 3)))
        return x.reshape(t, n, 2).sum(dim=0) if frames_first else x.reshape(n, t, 2).sum(dim=1)

    return Net(forward, conv=nn.Conv2d(1, 2, 2), last=nn.Linear(2, 2))


def gpt(net, x):
    """Weights [in, out], multiplied from the right, as in GPT-2's code."""
    x = torch.addmm(net.bias, x.view(-1, 3), net.weight).view(*x.shape[:2], 4)
    return (torch.tanh(x) @ net.other).mean(dim=1)


def routed(net, x):
    """Each row goes through one of two layers, by the sign of its first number."""
    hidden, side = x.new_zeros(len(x), 4), x[:, 0] > 0
    hidden[side], hidden[~side] = net.left(x[side]), net.right(x[~side])
    return net.last(torch.tanh(hidden))


def residual(net, x):
    """A residual block with batch norms and activations in place."""
    y = net.norm2(net.conv2(F.relu_(net.norm1(net.conv1(x)))))
    y += net.short(x)
    return net.last(F.max_pool2d(F.relu(y, inplace=True), 2).mean(dim=(2, 3)))


def checkpointed(reentrant: bool) -> nn.Module:
    """Activations that are computed again in the backward pass."""

    def forward(net, x):
        def inner(x):
            return torch.tanh(net.two(torch.tanh(net.one(x))[:, None])).flatten(1)

        return net.last(checkpoint(inner, x, use_reentrant=reentrant))

    return Net(forward, one=nn.Linear(3, 4), two=nn.Conv1d(1, 2, 3), last=nn.Linear(4, 2))


def einsum(net, x):
    heads = torch.tanh(torch.einsum("ni,hid->nhd", x, net.inward))
    return torch.einsum("nhd,hdc->nc", heads, net.outward)


def fourier(net, x):
    """A filter in the frequencies, stored as two real numbers each."""
    spectrum = torch.fft.rfft(net.inward(x)) * torch.view_as_complex(net.filter)
    return net.last(torch.tanh(torch.fft.irfft(spectrum, n=6)))


def loops(net, x):
    """How often a layer is called depends on the row's values."""
    rows = []
    for row in torch.tanh(net.inward(x)):
        for _ in range(1 + int(row.sum().item() > 0)):
            row = torch.tanh(net.again(row))
        rows.append(row)
    return net.last(torch.stack(rows))


def counting() -> nn.Module:
    """Counts its calls in a buffer, keeps its last activation, and has a hook that doubles."""

    def forward(net, x):
        net.calls += 1
        net.kept = [torch.tanh(net.conv(x))]
        return net.last(net.kept[0].mean(dim=2))

    net = Net(forward, conv=nn.Conv1d(2, 3, 3), last=nn.Linear(3, 2), kept=[])
    net.register_buffer("calls", torch.zeros(()))
    net.conv.register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    return net


def drawn(*shape: int) -> nn.Parameter:
    return nn.Parameter(0.4 * torch.randn(shape))


images, sequence, volume = seeded(5, 2, 6, 6), seeded(5, 4, 3), seeded(5, 2, 4, 5, 4)
series, vectors, clips = seeded(5, 2, 9), seeded(5, 3), seeded(5, 3, 1, 3, 3)
numbers = torch.randint(0, 7, (5, 4), generator=torch.Generator().manual_seed(2))
queries, keys, tokens = seeded(5, 3, 4), seeded(5, 6, 4), seeded(5, 4, 4)
lengths = torch.tensor([4, 2, 3, 1, 4])
padding = torch.arange(4)[None] >= lengths[:, None]
L, C1, C2, C3, A = nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.MultiheadAttention

NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    # the first six are in every run, the others in the nightly one
    "conv2d, groups": (lambda: Head(C2(2, 6, (3, 2), groups=2, stride=(2, 1)), channels=6), images),
    "transposed conv2d, groups": (
        lambda: Head(nn.ConvTranspose2d(2, 4, (3, 2), stride=(2, 3), groups=2, dilation=(2, 1)), channels=4),
        images,
    ),
    "lstm, sequence first, both ways": (lambda: LastStep(nn.LSTM(3, 4, 2, bidirectional=True), 8), sequence),
    "vision transformer": (
        lambda: Net(
            patches,
            inward=C2(1, 8, 2, stride=2),
            token=nn.Parameter(0.3 * torch.ones(1, 1, 8)),
            positions=nn.Parameter(torch.linspace(-1, 1, 40).reshape(1, 5, 8)),
            norm=nn.LayerNorm(8),
            mixed=L(8, 24),
            out=L(8, 8),
            last=L(8, 2),
        ),
        seeded(5, 1, 4, 4),
    ),
    "embedding": (
        lambda: Net(beside, words=nn.Embedding(7, 3, padding_idx=0), last=L(5, 2)),
        (numbers, seeded(5, 2)),
    ),
    "routed rows": (lambda: Net(routed, left=L(3, 4), right=L(3, 4), last=L(4, 2)), vectors),
    "conv1d, circular": (lambda: Head(C1(2, 4, 3, padding=1, padding_mode="circular"), channels=4), series),
    "conv2d, depthwise and same": (
        lambda: Head(C2(2, 4, (4, 3), groups=2, padding="same", dilation=(1, 2)), channels=4),
        images,
    ),
    "conv3d": (
        lambda: Head(C3(2, 4, (2, 3, 2), stride=(1, 2, 1), padding=(0, 1, 1), bias=False), channels=4),
        volume,
    ),
    "transposed conv1d": (
        lambda: Head(nn.ConvTranspose1d(2, 4, 3, stride=2, padding=1, output_padding=1), channels=4),
        series,
    ),
    "lstm": (lambda: LastStep(nn.LSTM(3, 4, 2, batch_first=True), 4), sequence),
    "lstm, projected, without bias": (
        lambda: LastStep(nn.LSTM(3, 4, 2, proj_size=2, bias=False, bidirectional=True, batch_first=True), 4),
        sequence,
    ),
    "lstm, packed": (
        lambda: Net(packed, layer=nn.LSTM(3, 4, batch_first=True), last=L(4, 2)),
        (sequence, lengths),
    ),
    "gru": (lambda: LastStep(nn.GRU(3, 4, 2, batch_first=True), 4), sequence),
    "rnn": (lambda: LastStep(nn.RNN(3, 4, batch_first=True), 4), sequence),
    "rnn, relu": (lambda: LastStep(nn.RNN(3, 4, nonlinearity="relu", batch_first=True), 4), sequence),
    "recurrent cells": (
        lambda: Net(cells, lstm=nn.LSTMCell(3, 4), gru=nn.GRUCell(4, 3), rnn=nn.RNNCell(3, 3), last=L(3, 2)),
        sequence,
    ),
    "attention": (lambda: Net(attention, attention=A(4, 2, batch_first=True), last=L(4, 2)), (queries, keys)),
    "attention, other keys": (
        lambda: Net(attention, attention=A(4, 2, batch_first=True, kdim=3, vdim=3), last=L(4, 2)),
        (queries, seeded(5, 6, 3)),
    ),
    "transformer encoder": (Encoder, sequence),
    "transformer encoder, fast path": (  # without gradients torch uses nested tensors
        lambda: Net(
            lambda net, x, padded: net.last(net.encoder(x, src_key_padding_mask=padded)[:, 0]),
            encoder=nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2),
            last=L(4, 2),
        ),
        {"x": tokens, "padded": padding},
    ),
    "layer norm on tokens": (lambda: Head(L(3, 4), nn.LayerNorm((4, 4)), nn.GELU(), channels=4), sequence),
    "rms norm": (lambda: Head(L(3, 4), nn.RMSNorm(4), channels=4), sequence),
    "group norm": (lambda: Head(C2(2, 6, 3), nn.GroupNorm(3, 6), nn.SiLU(True), channels=6), images),
    "instance norm": (lambda: Head(C2(2, 4, 3), nn.InstanceNorm2d(4, affine=True), channels=4), images),
    "residual block": (
        lambda: Net(
            residual,
            conv1=C2(2, 4, 3, padding=1, bias=False),
            norm1=nn.BatchNorm2d(4),
            conv2=C2(4, 4, 3, padding=1, bias=False),
            norm2=nn.BatchNorm2d(4),
            short=C2(2, 4, 1),
            last=L(4, 2),
        ),
        images,
    ),
    "prelu": (lambda: Head(C2(2, 4, 3), nn.PReLU(4), nn.PReLU(), channels=4), images),
    "embedding bag, weighted": (
        lambda: Net(bags, words=nn.EmbeddingBag(7, 3, mode="sum"), last=L(3, 2)),
        (numbers, seeded(5, 4)),
    ),
    "called twice": (lambda: Net(twice, layer=L(3, 3), last=L(3, 2)), vectors),
    "tied": (lambda: tied(transposed=False), vectors),
    "tied, transposed": (lambda: tied(transposed=True), vectors),
    "frames as rows": (lambda: over_time(frames_first=False), clips),
    "frames first": (lambda: over_time(frames_first=True), clips),
    "weights from the right": (
        lambda: Net(gpt, weight=drawn(3, 4), bias=drawn(4), other=drawn(4, 2)),
        sequence,
    ),
    "open parameters": (  # a gain, a temperature, and one that nothing depends on
        lambda: Net(
            lambda net, x: net.layer(x).mul(net.gain).div_(net.heat).tanh_(),
            layer=L(3, 2),
            gain=nn.Parameter(torch.tensor([0.5, 2.0])),
            heat=nn.Parameter(torch.tensor(1.5)),
            idle=nn.Parameter(torch.ones(3)),
        ),
        vectors,
    ),
    "einsum": (lambda: Net(einsum, inward=drawn(2, 3, 4), outward=drawn(2, 4, 2)), vectors),
    "fourier": (lambda: Net(fourier, inward=L(3, 6), last=L(6, 2), filter=drawn(4, 2)), vectors),
    "weight norm": (lambda: Head(nn.utils.parametrizations.weight_norm(C1(2, 4, 3)), channels=4), series),
    "bilinear": (lambda: Net(lambda net, x: net.pair(x, x), pair=nn.Bilinear(3, 3, 2)), vectors),
    "one number": (lambda: nn.Sequential(C1(2, 1, 9), nn.Flatten(0)), series),
    "checkpointed": (lambda: checkpointed(reentrant=False), vectors),
    "checkpointed, reentrant": (lambda: checkpointed(reentrant=True), vectors),
    "loops that depend on values": (lambda: Net(loops, inward=L(3, 4), again=L(4, 4), last=L(4, 2)), vectors),
    "stopped gradient": (
        lambda: Net(
            lambda net, x: net.last(net.after(torch.tanh(net.before(x)).detach()[:, None]).flatten(1)),
            before=L(3, 4),
            after=C1(1, 2, 2),
            last=L(6, 2),
        ),
        vectors,
    ),
    "buffers and hooks": (counting, series),
}
DAILY, NIGHTLY = tuple(NETWORKS)[:6], tuple(NETWORKS)[6:]


def make(name: str) -> tuple[nn.Module, Any]:
    """A network in float64, with statistics and gains unlike those of a fresh one, and its rows."""
    build, inputs = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build()
    generator = torch.Generator().manual_seed(1)
    for module in network.modules():
        for key, value in {**module._buffers, **module._parameters}.items():
            if value is not None and value.is_floating_point() and value.ndim == 1:
                low = 0.5 if key in ("running_var", "weight") else -0.5
                value.data.copy_(low + torch.rand(value.shape, generator=generator))
    return network.double().eval(), inputs


def portions(number: int) -> list[Any]:
    """All names for `parametrize`: the six of every run, and the others in nightly portions."""
    lots = [NIGHTLY[start :: number - 1] for start in range(number - 1)]
    return [
        pytest.param(DAILY, id="daily"),
        *(pytest.param(n, id=n[0], marks=pytest.mark.nightly) for n in lots),
    ]
