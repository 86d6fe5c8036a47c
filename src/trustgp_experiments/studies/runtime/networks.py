"""The larger networks of the runtime study: one of ResNet-18's shape, and a small DETR."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ...training.inference import own_randomness

MISSING = "it needs transformers, which is not installed: pip install 'trustgp[hf]'"


class ResidualBlock(nn.Module):
    """Two convolutions and a way round them."""

    def __init__(self, inward: int, outward: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inward, outward, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outward),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Conv2d(outward, outward, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outward),
        )
        self.short = nn.Sequential()
        if stride > 1 or inward != outward:
            self.short.append(nn.Conv2d(inward, outward, 1, stride, bias=False))
            self.short.append(nn.BatchNorm2d(outward))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x))


class ResNet18(nn.Module):
    """Four stages of two blocks each (He et al., 2016), with the stem for small images and dropout inside.

    Args:
        outputs: C.
        width: Channels of the first stage; 64 makes 11 million parameters.
        dropout: Share of channels' pixels that each block drops.
    """

    def __init__(self, outputs: int, *, width: int = 64, dropout: float = 0.1) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(
                    ResidualBlock(i, o, 1 if k == 0 else 2, dropout), ResidualBlock(o, o, 1, dropout)
                )
                for k, (i, o) in enumerate(pairwise(widths))
            )
        )
        self.last = nn.Linear(widths[-1], outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [n, C] of images [n, 3, height, width]."""
        return self.last(self.stages(self.stem(images)).mean(dim=(2, 3)))


def resnet18(outputs: int, *, width: int = 64, dropout: float = 0.1, seed: int = 0) -> nn.Module:
    """`ResNet18` with seeded weights."""
    with own_randomness(seed, torch.device("cpu")):
        return ResNet18(outputs, width=width, dropout=dropout)


class FlatDetr(nn.Module):
    """A DETR of transformers from images to one row of numbers each: each query's class scores and box."""

    def __init__(self, detr: Any) -> None:
        super().__init__()
        self.detr = detr

    def forward(self, images: Tensor) -> Tensor:
        """[n, queries * (classes + 1 + 4)] of images [n, 3, height, width]."""
        found = self.detr(pixel_values=images)
        return torch.cat([found.logits, found.pred_boxes], dim=-1).flatten(1)


def small_detr(
    *,
    classes: int,
    queries: int = 16,
    width: int = 64,
    hidden: int = 256,
    layers: int = 3,
    heads: int = 8,
    dropout: float = 0.1,
    seed: int = 0,
) -> nn.Module:
    """A small DETR (Carion et al., 2020) from a configuration, random weights: nothing is downloaded.

    Args:
        classes: Beside "nothing".
        queries: Objects that an image may have at most.
        width: Channels of the first stage of the backbone, which is of ResNet-18's shape.
        hidden: Width of the transformer.
        layers, heads: Of its encoder, and of its decoder.
        dropout: In its layers.
        seed: Of the weights.
    """
    try:
        from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig
    except ImportError as error:
        raise ImportError(MISSING) from error
    sizes, depths = [width, 2 * width, 4 * width, 8 * width], [2, 2, 2, 2]
    names: dict[str, Any] = {"layer_type": "basic", "out_features": ["stage4"]}
    options: dict[str, Any] = {
        "use_timm_backbone": False,
        "use_pretrained_backbone": False,
        "backbone": None,
        "backbone_config": ResNetConfig(embedding_size=width, hidden_sizes=sizes, depths=depths, **names),
        "num_queries": queries,
        "num_labels": classes,
        "d_model": hidden,
        "dropout": dropout,
    }
    for part in ("encoder", "decoder"):
        options |= {f"{part}_layers": layers, f"{part}_attention_heads": heads, f"{part}_ffn_dim": 4 * hidden}
    with own_randomness(seed, torch.device("cpu")):
        return FlatDetr(DetrForObjectDetection(DetrConfig(**options)))


def named(network: nn.Module, *starts: str) -> list[str]:
    """Names of the parameters that begin with one of these."""
    found = [name for name, _ in network.named_parameters() if name.startswith(starts)]
    if not found:
        raise ValueError(f"no parameter of the {type(network).__name__} begins with {', '.join(starts)}.")
    return found


def dropping(network: nn.Module) -> nn.Module:
    """A copy that drops units, by layers or by functions; batch normalisation stays in eval mode."""
    noisy = copy.deepcopy(network).train()
    for module in noisy.modules():
        if isinstance(module, _NormBase):
            module.eval()
    return noisy
