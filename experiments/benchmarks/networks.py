"""Large networks from their configurations, with random weights, and random rows for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from trustgp.data.chunking import chunks

BATCH = 64  # rows of a forward pass, and of a prediction
CLASSES, PITCHES = 10, 360
NAMES = ["vit", "bert", "resnet50", "convnext"]


def hugging_face(name: str, small: bool) -> nn.Module:
    """One of the four large networks, or a tiny one of its kind."""
    import transformers as t

    tiny = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    stage = {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]}
    make: dict[str, Callable[[dict], nn.Module]] = {
        "vit": lambda given: t.ViTForImageClassification(t.ViTConfig(**given)),
        "bert": lambda given: t.BertForSequenceClassification(t.BertConfig(**given)),
        "resnet50": lambda given: t.ResNetForImageClassification(t.ResNetConfig(**given)),
        "convnext": lambda given: t.ConvNextForImageClassification(t.ConvNextConfig(**given)),
    }
    less = {
        "vit": {**tiny, "image_size": 32},
        "bert": {**tiny, "vocab_size": 50},
        "resnet50": {**stage, "embedding_size": 8},
        "convnext": {**stage, "image_size": 32},
    }
    torch.manual_seed(0)
    return make[name]({"num_labels": CLASSES, **(less[name] if small else {})}).eval()


def rows_of(name: str, n: int, small: bool) -> tuple[Tensor, Tensor]:
    """Inputs and labels for one of the four."""
    if name != "bert":
        side = 32 if small else 224
        return random_rows(n, 3, side, side)
    words, length = (50, 8) if small else (30_000, 64)
    tokens = torch.randint(1, words, (n, length), generator=torch.Generator().manual_seed(1))
    return tokens, random_rows(n)[1]


def small_vit(small: bool) -> nn.Module:
    """A ViT of width 192 and 64 tokens, for a CPU."""
    import transformers as t

    side, width, layers = (16, 12, 1) if small else (64, 192, 12)
    shape: dict[str, Any] = {
        "image_size": side,
        "patch_size": 8,
        "num_attention_heads": 3,
        "num_labels": CLASSES,
    }
    sizes: dict[str, Any] = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
    }
    torch.manual_seed(0)
    return t.ViTForImageClassification(t.ViTConfig(**shape, **sizes)).eval()


def pitch_network(small: bool) -> nn.Module:
    """The shape of torchcrepe's full model: 1,024 samples of sound to one of 360 pitches."""
    channels = [8] * 6 if small else [1024, 128, 128, 128, 256, 512]
    layers: list[nn.Module] = []
    torch.manual_seed(0)
    for inward, outward in zip([0, *channels], channels, strict=False):
        first = nn.Conv1d(1, outward, 512, stride=4, padding=254)
        layers += [nn.Conv1d(inward, outward, 64, padding="same") if inward else first]
        layers += [nn.ReLU(), nn.BatchNorm1d(outward), nn.MaxPool1d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * channels[-1], PITCHES)).eval()


def random_rows(n: int, *shape: int, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    """Inputs [n, ...] and labels [n], on the CPU."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, *shape, generator=generator), torch.randint(0, classes, (n,), generator=generator)


class FromBytes(nn.Module):
    """A network that takes pictures as bytes."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pictures: Tensor) -> Tensor:
        return self.network(pictures.float() / 128 - 1).logits


def picture_batches(n: int, side: int) -> Iterator[tuple[Tensor, Tensor]]:
    """n pictures as bytes and their labels, made as they are asked for."""
    generator = torch.Generator().manual_seed(1)
    pool = torch.randint(0, 256, (BATCH, 3, side, side), generator=generator, dtype=torch.uint8)
    for number, index in enumerate(chunks(n, BATCH)):
        yield (
            (pool + number % 256)[: len(index)],
            torch.randint(0, CLASSES, (len(index),), generator=generator),
        )
