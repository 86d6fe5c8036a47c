"""A small Conditional DETR on an EfficientNet: 128-pixel pictures, two classes, trained from scratch."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from .train import own_randomness

CHANNELS = 112  # of the backbone's last stage
SIZES = {"ffn_dim": 512, "attention_heads": 4}  # of encoder and decoder
WEIGHTS = Path(__file__).parents[1] / "weights"
TRAINED = {  # classes, queries, and options of the training
    "scenes": (2, 30, "--on scenes"),
    "scenes-1": (2, 30, "--on scenes --seed 1"),
    "scenes-2": (2, 30, "--on scenes --seed 2"),
    "cells": (3, 60, "--on cells --batch 32"),
}


class EfficientBackbone(nn.Module):
    """EfficientNet's stem and blocks down to an eighth of the picture, where DETR expects its ResNet.

    Its batch normalisation is learnt: DETR freezes that of a backbone, which only suits a trained one.
    """

    def __init__(self) -> None:
        from transformers import EfficientNetConfig, EfficientNetModel

        stages: dict[str, Any] = {"kernel_sizes": [3, 3, 5, 3, 5], "strides": [1, 2, 2, 1, 1]}
        stages |= {"in_channels": [32, 16, 24, 40, 80], "out_channels": [16, 24, 40, 80, CHANNELS]}
        stages |= {"num_block_repeats": [1, 2, 2, 2, 2], "expand_ratios": [1, 4, 4, 4, 4]}
        scale: dict[str, Any] = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "drop_connect_rate": 0.0}
        scale |= {"batch_norm_momentum": 0.1, "batch_norm_eps": 1e-5}
        super().__init__()
        # hidden_dim is of the top, which is not used
        whole = EfficientNetModel(EfficientNetConfig(**stages, **scale, depthwise_padding=[], hidden_dim=64))
        self.embeddings, self.blocks = whole.embeddings, whole.encoder.blocks
        self.intermediate_channel_sizes = [CHANNELS]

    def forward(self, pixel_values: Tensor, pixel_mask: Tensor) -> list[tuple[Tensor, Tensor]]:
        features = self.embeddings(pixel_values)
        for block in self.blocks:
            features = block(features)
        mask = nn.functional.interpolate(pixel_mask[None].float(), size=features.shape[-2:])[0]
        return [(features, mask.to(torch.bool))]


def detector(num_labels: int = 2, *, queries: int = 30, seed: int = 0) -> Any:
    """A `ConditionalDetrForObjectDetection` with random weights; a query finds at most one object."""
    from transformers import ConditionalDetrConfig, ConditionalDetrForObjectDetection, ResNetConfig

    options: dict[str, Any] = {"out_features": ["stage2"]}
    tiny = ResNetConfig(embedding_size=8, hidden_sizes=[8, CHANNELS], depths=[1, 1], **options)
    options = {"num_labels": num_labels, "num_queries": queries, "d_model": 128, "dropout": 0.1}
    options |= {"encoder_layers": 2, "decoder_layers": 3}
    options |= {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in SIZES.items()}
    # the backbone is replaced below; auxiliary_loss also adds a normalisation after each layer of the decoder
    config = ConditionalDetrConfig(backbone_config=tiny, auxiliary_loss=True, **options)
    with own_randomness(seed, torch.device("cpu")):
        network = ConditionalDetrForObjectDetection(config)
        network.model.register_module("backbone", EfficientBackbone())
        _start(network)
    return network.eval()


def trained(name: str) -> Any:
    """A detector with the weights that `trustgp_experiments.training.detector` found, in float32.

    "scenes" is part of the package; "scenes-1", "scenes-2" and "cells" are of the repository.
    """
    if name not in TRAINED:
        raise ValueError(f"name={name!r} is unknown; choose one of {tuple(TRAINED)}.")
    labels, queries, options = TRAINED[name]
    path = WEIGHTS / f"{name}.safetensors"
    if not path.exists():
        command = f"python -m trustgp_experiments.training.detector {options} --device cuda --out {path.name}"
        raise FileNotFoundError(f"no weights {path.name}; take the repository, or train on a GPU: {command}")
    network = detector(labels, queries=queries)
    try:  # the file is in float16
        state = {k: v.float() if v.is_floating_point() else v for k, v in load(path.read_bytes()).items()}
        network.load_state_dict(state)
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{path.name} is damaged or of another detector: {error}") from error
    return network


def _start(network: nn.Module) -> None:
    """Initialise weights for training: those of the configurations are meant to be loaded over."""
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_parameters()
    for name, value in network.named_parameters():
        if value.ndim == 4:
            nn.init.kaiming_normal_(value, nonlinearity="relu")
        elif name.endswith("query_position_embeddings.weight"):
            nn.init.normal_(value)
        elif value.ndim == 2:
            nn.init.xavier_uniform_(value)
    head = network.get_submodule("bbox_predictor").get_submodule("layers")
    nn.init.zeros_(list(head.parameters())[-2])
    nn.init.constant_(network.get_parameter("class_labels_classifier.bias"), -4.0)  # most find nothing


@torch.no_grad()
def pixels(images: Tensor) -> Tensor:
    """Pictures from 0 to 255 as inputs of the detector, float32, shape [n, 3, height, width]."""
    return (images.float() - 128.0) / 64.0
