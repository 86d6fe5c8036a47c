"""More networks that people bring: blocks of well-known models, and what lies in wait in a forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)


class Pooled(nn.Module):
    """A body on images or series, the mean over positions, and two outputs."""

    def __init__(self, *body: nn.Module, channels: int = 4) -> None:
        super().__init__()
        self.body, self.last = nn.Sequential(*body), nn.Linear(channels, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.body(x)).flatten(2).mean(dim=2))


class ConvNext(nn.Module):
    """Depthwise convolution, channels last, a gain for each channel, a way round."""

    def __init__(self) -> None:
        super().__init__()
        self.deep, self.norm = nn.Conv2d(2, 2, 3, padding=1, groups=2), nn.LayerNorm(2)
        self.wide, self.narrow = nn.Linear(2, 6), nn.Linear(6, 2)
        self.gamma = nn.Parameter(torch.rand(2))

    def forward(self, x):
        inner = self.norm(self.deep(x).permute(0, 2, 3, 1))
        inner = self.gamma * self.narrow(F.gelu(self.wide(inner)))
        return (x + inner.permute(0, 3, 1, 2)).mean(dim=(2, 3))


class SqueezeExcite(nn.Module):
    """Channels weighted by what all positions say."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.squeeze = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 2, 1)
        self.excite, self.last = nn.Conv2d(2, 4, 1), nn.Linear(4, 2)

    def forward(self, x):
        x = F.silu(self.conv(x))
        x = x * torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean(dim=(2, 3), keepdim=True)))))
        return self.last(x.mean(dim=(2, 3)))


class Checkpointed(nn.Module):
    """Activations that are thrown away and made again in the backward pass."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(3, 4), nn.Conv1d(1, 2, 3), nn.Linear(4, 2)
        self.reentrant = reentrant

    def forward(self, x):
        return self.last(checkpoint(self._inner, x, use_reentrant=self.reentrant))

    def _inner(self, x):
        return torch.tanh(self.two(torch.tanh(self.one(x))[:, None])).flatten(1)


class Einsum(nn.Module):
    """Weights with heads, contracted by einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Parameter(0.4 * torch.randn(2, 3, 4))
        self.outward = nn.Parameter(0.4 * torch.randn(2, 4, 2))

    def forward(self, x):
        heads = torch.tanh(torch.einsum("ni,hid->nhd", x, self.inward))
        return torch.einsum("nhd,hdc->nc", heads, self.outward)


class Functional(nn.Module):
    """Parameters in the open, layers from torch.nn.functional, one scale for all."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4))
        self.v, self.scale = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.scale * F.linear(torch.tanh(F.linear(x, self.w, self.b)), self.v)


class Fourier(nn.Module):
    """Complex numbers inside: a filter in the frequencies, held as two real numbers each."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.last = nn.Linear(3, 6), nn.Linear(6, 2)
        self.filter = nn.Parameter(torch.randn(4, 2))

    def forward(self, x):
        spectrum = torch.fft.rfft(self.inward(x)) * torch.view_as_complex(self.filter)
        return self.last(torch.tanh(torch.fft.irfft(spectrum, n=6)))


class Loops(nn.Module):
    """How often a layer is called depends on the row's values."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.again, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        rows = []
        for row in torch.tanh(self.inward(x)):
            for _ in range(1 + int(row.sum().item() > 0)):
                row = torch.tanh(self.again(row))
            rows.append(row)
        return self.last(torch.stack(rows))


class Masked(nn.Module):
    """nn.MultiheadAttention that looks back only, and not at padding; the mask is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)
        self.register_buffer("ahead", torch.triu(torch.ones(4, 4, dtype=torch.bool), 1))

    def forward(self, x, padded):
        options = {"attn_mask": self.ahead, "key_padding_mask": padded, "need_weights": False}
        return self.last(self.attention(x, x, x, **options)[0].mean(dim=1))


class FastEncoder(nn.Module):
    """nn.TransformerEncoder as it comes: without gradients it takes torch's fast path, on nested tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2)
        self.last = nn.Linear(4, 2)

    def forward(self, x, padded):
        return self.last(self.encoder(x, src_key_padding_mask=padded)[:, 0])


class EncoderDecoder(nn.Module):
    """nn.Transformer, both halves."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.last = nn.Transformer(4, 2, 1, 1, 8, batch_first=True), nn.Linear(4, 2)

    def forward(self, source, target):
        return self.last(self.both(source, target)[:, -1])


class Bags(nn.Module):
    """nn.EmbeddingBag of every mode, with weights where it takes them."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.words, self.last = nn.EmbeddingBag(7, 3, **options), nn.Linear(3, 2)

    def forward(self, words, weights=None):
        return self.last(torch.tanh(self.words(words, per_sample_weights=weights)))


class Experts(nn.Module):
    """The rows go to the best of three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.last = nn.Linear(3, 3), nn.Linear(4, 2)
        self.experts = nn.ModuleList(nn.Linear(3, 4) for _ in range(3))

    def forward(self, x):
        share, chosen = self.gate(x).softmax(dim=-1).max(dim=-1)
        found = x.new_zeros(len(x), 4)
        for index, expert in enumerate(self.experts):
            rows = (chosen == index).nonzero()[:, 0]
            found = found.index_add(0, rows, share[rows, None] * expert(x[rows]))
        return self.last(torch.tanh(found))


class Hyper(nn.Module):
    """A layer that gives the weights of another, for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.weights, self.last = nn.Linear(3, 8), nn.Linear(4, 2)

    def forward(self, x):
        weights = self.weights(x).view(-1, 4, 2)
        return self.last(torch.tanh(torch.bmm(weights, x[:, :2, None])[..., 0]))


class Warped(nn.Module):
    """A spatial transformer: a layer says where another looks."""

    def __init__(self) -> None:
        super().__init__()
        self.where, self.what, self.last = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 3, 3), nn.Linear(3, 2)

    def forward(self, x):
        grid = torch.tanh(self.where(x)).permute(0, 2, 3, 1)
        return self.last(self.what(F.grid_sample(x, grid, align_corners=False)).mean(dim=(2, 3)))


class Stopped(nn.Module):
    """A gradient that is stopped: what lies before it has none."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after, self.last = nn.Linear(3, 4), nn.Conv1d(1, 2, 2), nn.Linear(6, 2)

    def forward(self, x):
        return self.last(self.after(torch.tanh(self.before(x)).detach()[:, None]).flatten(1))


class StandardisedConv(nn.Conv2d):
    """Weights standardised in every call, as in BiT."""

    def forward(self, x):
        centred = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        return F.conv2d(x, centred / centred.square().mean(dim=(1, 2, 3), keepdim=True).sqrt(), self.bias)


class Rotary(nn.Module):
    """Attention with rotated keys, by complex numbers, looking back only."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed, self.last = nn.Linear(4, 12, bias=False), nn.Linear(4, 2)

    def forward(self, x):
        query, key, value = self.mixed(x).chunk(3, dim=-1)
        steps = torch.arange(x.shape[1], dtype=x.dtype, device=x.device)
        angles = torch.outer(steps, torch.tensor([1.0, 0.1], dtype=x.dtype, device=x.device))
        turn = torch.polar(torch.ones_like(angles), angles)

        def turned(y):
            return torch.view_as_real(torch.view_as_complex(y.unflatten(-1, (2, 2))) * turn).flatten(-2)

        found = F.scaled_dot_product_attention(turned(query), turned(key), value, is_causal=True)
        return self.last(found[:, -1])


class Counting(nn.Module):
    """Counts its calls in a buffer, keeps its last activation, and has a hook that doubles."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last, self.kept = nn.Conv1d(2, 3, 3), nn.Linear(3, 2), []
        self.register_buffer("calls", torch.zeros(()))
        self.conv.register_forward_hook(lambda module, given, found: 2 * found)

    def forward(self, x):
        self.calls += 1
        self.kept = [torch.tanh(self.conv(x))]
        return self.last(self.kept[0].mean(dim=2))


images, series, vectors, tokens = drawn(5, 2, 6, 6), drawn(5, 2, 9), drawn(5, 3), drawn(5, 4, 4)
words = torch.randint(0, 7, (5, 4), generator=torch.Generator().manual_seed(2))
padded = torch.arange(4)[None] >= torch.tensor([4, 2, 3, 1, 4])[:, None]
ways = nn.utils.parametrizations

BLOCKS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "convnext": (ConvNext, images),
    "squeeze and excite": (SqueezeExcite, images),
    "checkpointed": (lambda: Checkpointed(reentrant=False), vectors),
    "checkpointed, reentrant": (lambda: Checkpointed(reentrant=True), vectors),
    "einsum": (Einsum, vectors),
    "functional": (Functional, vectors),
    "fourier": (Fourier, vectors),
    "loops that depend on values": (Loops, vectors),
    "attention, masked": (Masked, (tokens, padded)),
    "transformer encoder, fast path": (FastEncoder, (tokens, padded)),
    "encoder and decoder": (EncoderDecoder, (tokens, drawn(5, 3, 4))),
    "embedding bag, padding": (lambda: Bags(mode="mean", padding_idx=0), words),
    "embedding bag, largest": (lambda: Bags(mode="max"), words),
    "embedding bag, weighted": (lambda: Bags(mode="sum"), (words, drawn(5, 4))),
    "mixture of experts": (Experts, vectors),
    "hypernetwork": (Hyper, vectors),
    "spatial transformer": (Warped, images),
    "stopped gradient": (Stopped, vectors),
    "standardised weights": (lambda: Pooled(StandardisedConv(2, 4, 3)), images),
    "rotary attention": (Rotary, tokens),
    "spectral norm": (lambda: Pooled(ways.spectral_norm(nn.Conv1d(2, 4, 3))), series),
    "orthogonal": (lambda: nn.Sequential(ways.orthogonal(nn.Linear(3, 3)), nn.Linear(3, 2)), vectors),
    "batch norm, synchronised": (lambda: Pooled(nn.Conv2d(2, 4, 3), nn.SyncBatchNorm(4)), images),
    "gated": (lambda: Pooled(nn.Conv1d(2, 8, 3), nn.GLU(1)), series),
    "pixel shuffle": (lambda: Pooled(nn.Conv2d(2, 4, 3), nn.PixelShuffle(2), channels=1), images),
    "upsampled": (lambda: Pooled(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(2, 4, 3)), images),
    "buffers and hooks": (Counting, series),
}
