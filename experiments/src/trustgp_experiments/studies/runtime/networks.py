"""The networks of the runtime study, their training, and the options of trustgp for each."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from trustgp.tangents import Sketch

from ...core.cases import Case
from ...core.registry import require_extras
from ...peers import cnn, mlp
from ...training.train import own_randomness
from .rows import TEXTURES, CaseSize, arm, rectangles, small_images

DROPOUT = 0.1
SIDE, QUERIES = 160, 16  # of the DETR's pictures, and its queries
ONE_PASS = {"outputs": "pseudo", "witness": None}  # options of `trustgp.fit` for one backward pass
Budgets = dict[str, dict[str, Any]]


def _convolution(inward: int, outward: int, size: int = 3, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(inward, outward, size, stride, size // 2, bias=False), nn.BatchNorm2d(outward)]


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inward: int, outward: int, stride: int, dropout: float) -> None:
        super().__init__()
        first = [*_convolution(inward, outward, stride=stride), nn.ReLU(), nn.Dropout(dropout)]
        self.body = nn.Sequential(*first, *_convolution(outward, outward))
        same = stride == 1 and inward == outward
        self.short = nn.Sequential(*([] if same else _convolution(inward, outward, 1, stride)))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x))


class ResNet18(nn.Module):
    """ResNet-18 (He et al. 2016) with a stem for small images and dropout; width 64 has 11 M parameters."""

    def __init__(self, outputs: int, *, width: int = 64, dropout: float = 0.1, seed: int = 0) -> None:
        super().__init__()
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        with own_randomness(seed, torch.device("cpu")):
            self.stem = nn.Sequential(*_convolution(3, width), nn.ReLU())
            self.stages = nn.Sequential()
            for stage, (i, o) in enumerate(pairwise(widths)):
                first = ResidualBlock(i, o, 2 if stage else 1, dropout)
                self.stages.append(nn.Sequential(first, ResidualBlock(o, o, 1, dropout)))
            self.last = nn.Linear(widths[-1], outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [n, C] of images [n, 3, height, width]."""
        return self.last(self.stages(self.stem(images)).mean(dim=(2, 3)))


class FlatDetr(nn.Module):
    """A small DETR (Carion et al., 2020) that maps an image to one row with the queries' classes and boxes.

    It is made by transformers from a configuration, with random weights: nothing is downloaded. The backbone
    has ResNet-18's shape, its first stage `width` wide; classes are the `TEXTURES` and "nothing".
    """

    def __init__(
        self, queries: int, *, width: int = 64, hidden: int = 256, layers: int = 3, heads: int = 8, seed: int
    ) -> None:
        require_extras("The DETR", ["hf"])
        from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

        super().__init__()
        shape: dict[str, Any] = {"embedding_size": width, "hidden_sizes": [width * 2**k for k in range(4)]}
        shape |= {"depths": [2] * 4, "layer_type": "basic", "out_features": ["stage4"]}
        options: dict[str, Any] = {"backbone": None, "backbone_config": ResNetConfig(**shape)}
        options |= {"use_timm_backbone": False, "use_pretrained_backbone": False, "dropout": 0.1}
        options |= {"num_queries": queries, "num_labels": len(TEXTURES), "d_model": hidden}
        sized = {"layers": layers, "attention_heads": heads, "ffn_dim": 4 * hidden}
        options |= {f"{part}_{k}": v for part in ("encoder", "decoder") for k, v in sized.items()}
        with own_randomness(seed, torch.device("cpu")):
            self.detr: Any = DetrForObjectDetection(DetrConfig(**options))

    def forward(self, images: Tensor) -> Tensor:
        """Logits and boxes [n, queries * (len(TEXTURES) + 1 + 4)] of images [n, 3, height, width]."""
        output = self.detr(pixel_values=images)
        return torch.cat([output.logits, output.pred_boxes], dim=-1).flatten(1)


def named(network: nn.Module, *starts: str) -> list[str]:
    """Names of the parameters that begin with one of `starts`."""
    return [name for name, _ in network.named_parameters() if name.startswith(starts)]


def dropping(network: nn.Module) -> nn.Module:
    """Copy of a network with active dropout, in layers or functions; batch norm stays in eval mode."""
    noisy = copy.deepcopy(network).train()
    for module in noisy.modules():
        if isinstance(module, _NormBase):
            module.eval()
    return noisy


@dataclass(frozen=True)
class Kind:
    """A network of the study, before it is trained."""

    name: str
    shape: str  # in words
    rows: Callable[[CaseSize, int], Case]  # from a size and a seed; one test set has new rows
    network: Callable[[int], nn.Module]  # with fresh weights, from a seed
    size: CaseSize
    longer: CaseSize  # on a GPU
    budgets: Callable[[nn.Module], Budgets]  # given a network: options of `trustgp.fit`, the largest first
    tiny: dict[str, Any]  # changed fields of a quick run
    classes: bool = False  # whether its targets are classes; else it is a regression
    members: bool = False  # whether an ensemble of it is trained, not only timed


MLP_BUDGETS = {"large": {"budget": "none"}, "medium": ONE_PASS}
MLP_BUDGETS["small"] = {**ONE_PASS, "tangents": Sketch(128)}


def _cnn_budgets(network: nn.Module) -> Budgets:
    linear = named(network, "")[-4:]  # of the two Linear layers
    return _sketches((1024, "all"), (1024, linear), (256, "last"))


def _resnet_budgets(network: nn.Module) -> Budgets:
    large, medium = (named(network, stage, "last") for stage in ("stages.3", "stages.3.1"))
    return _sketches((2048, large), (1024, medium), (512, "last"))


def _detr_budgets(network: nn.Module) -> Budgets:
    layers = {name.split(".")[4] for name in named(network, "detr.model.decoder.layers")}
    heads = named(network, "detr.class_labels_classifier", "detr.bbox_predictor")
    top = named(network, f"detr.model.decoder.layers.{max(layers, key=int)}") + heads
    return _sketches((1024, top), (512, top), (256, heads), **ONE_PASS)


def _sketches(*sizes: tuple[int, str | list[str]], **more: Any) -> Budgets:
    """Budgets from sizes of sketches and their parameters, the largest first."""
    sketches = (Sketch(size, parameters=parameters) for size, parameters in sizes)
    named = zip(("large", "medium", "small"), sketches, strict=True)
    return {name: {**more, "tangents": sketch} for name, sketch in named}


KINDS = (
    Kind(
        name="MLP",
        shape="21-5x200-7 with ReLU, 166,607 parameters",
        rows=arm,
        network=lambda seed: mlp([21, *[200] * 5, 7], dropout=DROPOUT, seed=seed),
        size=CaseSize(6_000, 6_000, 800, 1_000, 256, 3e-3),
        longer=CaseSize(8_000, 8_000, 1_000, 2_000, 256, 3e-3),
        budgets=lambda _: MLP_BUDGETS,
        tiny={"network": lambda seed: mlp([21, 12, 12, 7], dropout=DROPOUT, seed=seed)},
        members=True,
    ),
    Kind(
        name="ConvNet",
        shape="two 5 x 5 convolutions of stride 2 with 32 and 64 channels, a hidden layer of 128, "
        "ten classes",
        rows=partial(small_images, colour=False),
        network=lambda seed: cnn(dropout=DROPOUT, seed=seed),
        size=CaseSize(4_000, 1_000, 400, 250, 128, 2e-3),
        longer=CaseSize(10_000, 2_000, 500, 600, 128, 2e-3),
        budgets=_cnn_budgets,
        tiny={"network": lambda seed: cnn(channels=(3, 4), hidden=8, dropout=DROPOUT, seed=seed)},
        classes=True,
        members=True,
    ),
    Kind(
        name="ResNet-18",
        shape="ResNet-18's shape with a stem for 3 x 32 x 32 images, 11 million parameters, ten classes",
        rows=partial(small_images, colour=True),
        network=lambda seed: ResNet18(10, dropout=DROPOUT, seed=seed),
        size=CaseSize(1_536, 256, 128, 48, 32, 2e-3),
        longer=CaseSize(10_000, 512, 256, 300, 128, 2e-3),
        budgets=_resnet_budgets,
        tiny={"network": lambda seed: ResNet18(10, width=2, dropout=DROPOUT, seed=seed)},
        classes=True,
    ),
    Kind(
        name="DETR",
        shape=f"a backbone of ResNet-18's shape, three layers of 256 in encoder and decoder, {QUERIES} "
        f"queries, 3 x {SIDE} x {SIDE} pictures, 17 million parameters",
        rows=partial(rectangles, side=SIDE, queries=QUERIES),
        network=lambda seed: FlatDetr(QUERIES, seed=seed),
        size=CaseSize(768, 256, 128, 48, 16, 3e-4),
        longer=CaseSize(2_048, 512, 256, 200, 64, 3e-4),
        budgets=_detr_budgets,
        tiny={
            "rows": partial(rectangles, side=64, queries=5),
            "network": lambda seed: FlatDetr(5, width=4, hidden=16, layers=2, heads=2, seed=seed),
        },
    ),
)


def kinds(*, quick: bool, device: str) -> dict[str, Kind]:
    """Networks by name; `quick` gives tiny ones with the same architecture."""
    if quick:
        tiny = CaseSize(160, 120, 40)
        chosen = [replace(k, size=tiny, shape=f"tiny, in place of {k.shape}", **k.tiny) for k in KINDS]
    else:
        chosen = [replace(k, size=k.longer if device.startswith("cuda") else k.size) for k in KINDS]
    return {kind.name: kind for kind in chosen}
