"""Networks of every kind that people bring, each with a few rows of input: small, seeded, in eval mode."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo_blocks import BLOCKS


def seeded(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


class Head(nn.Module):
    """A body, pooled over everything but rows and channels, and two outputs."""

    def __init__(self, *body: nn.Module, channels: int, outputs: int = 2) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)
        self.last = nn.Linear(channels, outputs)

    def forward(self, x):
        return self.last(torch.tanh(self.body(x)).flatten(2).mean(dim=2))


class LastStep(nn.Module):
    """A recurrent layer and an output from its last step."""

    def __init__(self, layer: nn.Module, width: int, *, batch_first: bool = True) -> None:
        super().__init__()
        self.layer, self.last, self.batch_first = layer, nn.Linear(width, 2), batch_first

    def forward(self, x):
        outputs, _ = self.layer(x if self.batch_first else x.transpose(0, 1))
        return self.last(outputs[:, -1] if self.batch_first else outputs[-1])


class Packed(nn.Module):
    """An LSTM on a packed sequence: lengths beside the values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return self.last(self.layer(packed)[1][0][-1])


class Cells(nn.Module):
    """Recurrent cells, called in a loop of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru, self.rnn = nn.LSTMCell(3, 4), nn.GRUCell(4, 3), nn.RNNCell(3, 3)
        self.last = nn.Linear(3, 2)

    def forward(self, x):
        h, c = x.new_zeros(len(x), 4), x.new_zeros(len(x), 4)
        g, r = x.new_zeros(len(x), 3), x.new_zeros(len(x), 3)
        for step in x.unbind(dim=1):
            h, c = self.lstm(step, (h, c))
            g = self.gru(h, g)
            r = self.rnn(g, r)
        return self.last(r)


class Attention(nn.Module):
    """nn.MultiheadAttention with keys of another length, and masks."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, **options)
        self.last = nn.Linear(4, 2)

    def forward(self, x, y):
        first = self.attention.batch_first
        x, y = (x, y) if first else (x.transpose(0, 1), y.transpose(0, 1))
        found, weights = self.attention(x, y, y)
        return self.last(found.mean(dim=1 if first else 0)) * weights.square().sum(dim=(1, 2))[:, None]


class Encoder(nn.Module):
    """nn.TransformerEncoder with learned positions, and padding where the mask says so."""

    def __init__(self, *, batch_first: bool = True, layers: int = 2) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=batch_first, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.positions = nn.Embedding(9, 8)
        self.inward, self.last, self.batch_first = nn.Linear(3, 8), nn.Linear(8, 2), batch_first

    def forward(self, x, padded=None):
        x = self.inward(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        x = x if self.batch_first else x.transpose(0, 1)
        x = self.encoder(x, src_key_padding_mask=padded)
        return self.last(x[:, 0] if self.batch_first else x[0])


class Patches(nn.Module):
    """A small vision transformer: a class token and positions that belong to no layer, its own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Conv2d(1, 8, 2, stride=2)
        self.token = nn.Parameter(0.3 * torch.ones(1, 1, 8))
        self.positions = nn.Parameter(torch.linspace(-1, 1, 40).reshape(1, 5, 8))
        self.norm, self.mixed, self.out, self.last = (
            nn.LayerNorm(8),
            nn.Linear(8, 24),
            nn.Linear(8, 8),
            nn.Linear(8, 2),
        )

    def forward(self, x):
        x = self.inward(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        q, k, v = self.mixed(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.last(x[:, 0])


class Words(nn.Module):
    """Embeddings with a padding word, summed, beside a vector."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 3, padding_idx=0, **options)
        self.last = nn.Linear(5, 2)

    def forward(self, words, vector):
        return self.last(torch.tanh(torch.cat([self.words(words).sum(dim=1), vector], dim=1)))


class Bag(nn.Module):
    """An embedding bag."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.EmbeddingBag(7, 3), nn.Linear(3, 2)

    def forward(self, words):
        return self.last(torch.tanh(self.words(words)))


class Twice(nn.Module):
    """One layer called twice, once on a vector and once on two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        once = torch.tanh(self.layer(x))
        return self.last(torch.tanh(self.layer(torch.stack([once, x], dim=1))).sum(dim=1))


class Tied(nn.Module):
    """Two layers that share one weight, and a decoder that uses it transposed."""

    def __init__(self, *, transposed: bool) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
        self.two.weight = self.one.weight
        self.transposed = transposed

    def forward(self, x):
        x = torch.tanh(self.two(torch.tanh(self.one(x))))
        return x @ self.one.weight.T if self.transposed else x


class OverTime(nn.Module):
    """A convolution on every frame of a clip, frames and rows in one dimension, in either order."""

    def __init__(self, *, frames_first: bool) -> None:
        super().__init__()
        self.conv, self.last, self.frames_first = nn.Conv2d(1, 2, 2), nn.Linear(2, 2), frames_first

    def forward(self, x):  # [n, t, 1, h, w]
        n, t = x.shape[:2]
        x = x.transpose(0, 1) if self.frames_first else x
        x = torch.tanh(self.conv(x.reshape(n * t, *x.shape[2:]))).mean(dim=(2, 3))
        x = self.last(x)
        return x.reshape(t, n, 2).sum(dim=0) if self.frames_first else x.reshape(n, t, 2).sum(dim=1)


class Gpt(nn.Module):
    """Weights [in, out], multiplied from the right, as in GPT-2's code."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(seeded(3, 4)), nn.Parameter(seeded(4))
        self.other = nn.Parameter(seeded(4, 2))

    def forward(self, x):
        x = torch.addmm(self.bias, x.view(-1, 3), self.weight).view(*x.shape[:2], 4)
        return (torch.tanh(x) @ self.other).mean(dim=1)


class Gate(nn.Module):
    """Parameters in the open: a gain, a temperature, one that nothing depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gain = nn.Linear(3, 2), nn.Parameter(torch.tensor([0.5, 2.0]))
        self.heat, self.idle = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.layer(x).mul(self.gain).div_(self.heat).tanh_()


class Routed(nn.Module):
    """Each row goes through one of two layers, by the sign of its first number."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        hidden = x.new_zeros(len(x), 4)
        side = x[:, 0] > 0
        hidden[side] = self.left(x[side])
        hidden[~side] = self.right(x[~side])
        return self.last(torch.tanh(hidden))


class Residual(nn.Module):
    """A residual block with batch norms and activations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.norm2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.short, self.last = nn.Conv2d(2, 4, 1), nn.Linear(4, 2)

    def forward(self, x):
        y = F.relu_(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += self.short(x)
        return self.last(F.max_pool2d(F.relu(y, inplace=True), 2).mean(dim=(2, 3)))


@dataclasses.dataclass
class Answer:
    """What some libraries return."""

    logits: Tensor
    hidden: Tensor | None = None


class Wrapped(nn.Module):
    """Returns its outputs in a tuple, a dict or an object, as `kind` says."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.conv, self.last, self.kind = nn.Conv1d(1, 3, 2), nn.Linear(6, 2), kind

    def forward(self, x):
        hidden = torch.tanh(self.conv(x)).flatten(1)
        logits = self.last(hidden)
        kinds = {
            "tuple": (hidden, logits),
            "dict": {"hidden": hidden, "logits": logits},
            "object": Answer(logits, hidden),
        }
        return kinds[self.kind]


def spread(network: nn.Module) -> nn.Module:
    """Running statistics and gains that are not those of a fresh network."""
    generator = torch.Generator().manual_seed(1)
    for module in network.modules():
        for name, value in {**module._buffers, **module._parameters}.items():
            if value is not None and value.is_floating_point() and value.ndim == 1:
                low = 0.5 if name in ("running_var", "weight") else -0.5
                value.data.copy_(low + torch.rand(value.shape, generator=generator))
    return network


images, sequence, volume = seeded(5, 2, 6, 6), seeded(5, 4, 3), seeded(5, 2, 4, 5, 4)
series, vectors, clips = seeded(5, 2, 9), seeded(5, 3), seeded(5, 3, 1, 3, 3)
tokens = torch.randint(0, 7, (5, 4), generator=torch.Generator().manual_seed(2))
lengths = torch.tensor([4, 2, 3, 1, 4])
padding = torch.arange(4)[None] >= lengths[:, None]

NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "conv1d, stride and dilation": (
        lambda: Head(nn.Conv1d(2, 4, 3, stride=2, dilation=2, padding=3), channels=4),
        series,
    ),
    "conv1d, circular": (
        lambda: Head(nn.Conv1d(2, 4, 3, padding=1, padding_mode="circular"), channels=4),
        series,
    ),
    "conv2d, groups": (lambda: Head(nn.Conv2d(2, 6, (3, 2), groups=2, stride=(2, 1)), channels=6), images),
    "conv2d, depthwise and same": (
        lambda: Head(nn.Conv2d(2, 4, (4, 3), groups=2, padding="same", dilation=(1, 2)), channels=4),
        images,
    ),
    "conv2d, without bias": (
        lambda: Head(nn.Conv2d(2, 4, 3, padding="valid", bias=False), channels=4),
        images,
    ),
    "conv3d": (
        lambda: Head(nn.Conv3d(2, 4, (2, 3, 2), stride=(1, 2, 1), padding=(0, 1, 1)), channels=4),
        volume,
    ),
    "conv3d, groups and dilation": (
        lambda: Head(nn.Conv3d(2, 4, 2, groups=2, dilation=(2, 1, 2)), channels=4),
        volume,
    ),
    "transposed conv1d": (
        lambda: Head(nn.ConvTranspose1d(2, 4, 3, stride=2, padding=1, output_padding=1), channels=4),
        series,
    ),
    "transposed conv2d, groups": (
        lambda: Head(nn.ConvTranspose2d(2, 4, (3, 2), stride=(2, 3), groups=2, dilation=(2, 1)), channels=4),
        images,
    ),
    "transposed conv3d": (
        lambda: Head(nn.ConvTranspose3d(2, 3, 2, output_padding=1, dilation=2), channels=3),
        volume,
    ),
    "lstm": (lambda: LastStep(nn.LSTM(3, 4, 2, batch_first=True), 4), sequence),
    "lstm, sequence first, both ways": (
        lambda: LastStep(nn.LSTM(3, 4, 2, bidirectional=True), 8, batch_first=False),
        sequence,
    ),
    "lstm, projected, without bias": (
        lambda: LastStep(nn.LSTM(3, 4, proj_size=2, bias=False, batch_first=True), 2),
        sequence,
    ),
    "lstm, projected, both ways": (
        lambda: LastStep(nn.LSTM(3, 4, 2, proj_size=2, bidirectional=True, batch_first=True), 4),
        sequence,
    ),
    "lstm, packed": (Packed, (sequence, lengths)),
    "gru": (lambda: LastStep(nn.GRU(3, 4, 2, batch_first=True), 4), sequence),
    "gru, both ways": (lambda: LastStep(nn.GRU(3, 4, bidirectional=True, batch_first=True), 8), sequence),
    "rnn": (lambda: LastStep(nn.RNN(3, 4, batch_first=True), 4), sequence),
    "rnn, relu": (lambda: LastStep(nn.RNN(3, 4, nonlinearity="relu", batch_first=True), 4), sequence),
    "recurrent cells": (Cells, sequence),
    "attention": (lambda: Attention(batch_first=True), (seeded(5, 3, 4), seeded(5, 6, 4))),
    "attention, sequence first, biases": (
        lambda: Attention(add_bias_kv=True, add_zero_attn=True),
        (seeded(5, 3, 4), seeded(5, 6, 4)),
    ),
    "attention, other keys": (
        lambda: Attention(batch_first=True, kdim=3, vdim=3),
        (seeded(5, 3, 4), seeded(5, 6, 3)),
    ),
    "transformer encoder": (Encoder, sequence),
    "transformer encoder, sequence first": (lambda: Encoder(batch_first=False), sequence),
    "transformer encoder, padded": (Encoder, {"x": sequence, "padded": padding}),
    "vision transformer": (Patches, seeded(5, 1, 4, 4)),
    "layer norm on tokens": (
        lambda: Head(nn.Linear(3, 4), nn.LayerNorm((4, 4)), nn.GELU(), channels=4),
        sequence,
    ),
    "rms norm": (lambda: Head(nn.Linear(3, 4), nn.RMSNorm(4), channels=4), sequence),
    "group norm": (lambda: Head(nn.Conv2d(2, 6, 3), nn.GroupNorm(3, 6), nn.SiLU(True), channels=6), images),
    "instance norm": (
        lambda: Head(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), channels=4),
        images,
    ),
    "batch norm 1d on series": (lambda: Head(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), channels=4), series),
    "batch norm 3d": (lambda: Head(nn.Conv3d(2, 4, 2), nn.BatchNorm3d(4), channels=4), volume),
    "residual block": (Residual, images),
    "prelu": (lambda: Head(nn.Conv2d(2, 4, 3), nn.PReLU(4), nn.PReLU(), channels=4), images),
    "prelu on vectors": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.PReLU(4), nn.Linear(4, 3), nn.PReLU(), nn.Linear(3, 2)),
        vectors,
    ),
    "in place": (
        lambda: nn.Sequential(nn.ReLU(True), nn.Linear(3, 4), nn.ELU(inplace=True), nn.Linear(4, 2)),
        vectors,
    ),
    "embedding": (Words, (tokens, seeded(5, 2))),
    "embedding by frequency": (lambda: Words(scale_grad_by_freq=True), (tokens[:, :1], seeded(5, 2))),
    "embedding bag": (Bag, tokens),
    "called twice": (Twice, vectors),
    "tied": (lambda: Tied(transposed=False), vectors),
    "tied, transposed": (lambda: Tied(transposed=True), vectors),
    "frames as rows": (lambda: OverTime(frames_first=False), clips),
    "frames first": (lambda: OverTime(frames_first=True), clips),
    "weights from the right": (Gpt, sequence),
    "open parameters": (Gate, vectors),
    "routed rows": (Routed, vectors),
    "weight norm": (
        lambda: Head(nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 4, 3)), channels=4),
        series,
    ),
    "bilinear": (lambda: nn.Sequential(nn.Unflatten(1, (1, 3)), Squeezed()), vectors),
    "one number": (lambda: nn.Sequential(nn.Conv1d(2, 1, 9), nn.Flatten(0)), series),
    **BLOCKS,
}


class Squeezed(nn.Module):
    """A bilinear layer of the input with itself."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.Bilinear(3, 3, 2)

    def forward(self, x):
        return self.pair(x[:, 0], x[:, 0])


def make(name: str) -> tuple[nn.Module, Any]:
    """A network in float64, and its rows."""
    build, inputs = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build()
    return spread(network).double().eval(), inputs


def portions(number: int) -> list[tuple[str, ...]]:
    """The names of all networks in so many portions of about the same size."""
    return [tuple(NETWORKS)[start::number] for start in range(number)]
