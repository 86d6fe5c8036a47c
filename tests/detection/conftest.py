"""Small detectors of two kinds with random weights, and a few scenes in which they find something."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from trustgp.detection import Detection, DetectionModel, Things, fit_detector
from trustgp_experiments.datasets.scenes import Scenes, scenes

pytest.importorskip("transformers", reason="detectors come from transformers: pip install trustgp[detection]")

LOOSE = Detection(threshold=0.01, overlap=0.01, most=3)  # of weights that have learnt nothing


def plain_detr(labels: int = 2):
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"])
    config = DetrConfig(backbone_config=backbone, num_queries=8, num_labels=labels, **_small())
    return seeded(lambda: DetrForObjectDetection(config))


def conditional_detr(labels: int = 2):
    from transformers import ConditionalDetrConfig, ConditionalDetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"])
    config = ConditionalDetrConfig(
        backbone_config=backbone, num_queries=8, num_labels=labels, auxiliary_loss=True, **_small()
    )
    return seeded(lambda: ConditionalDetrForObjectDetection(config))


def _small() -> dict:
    sides = ("encoder", "decoder")
    sizes = {
        f"{side}_{name}": size for side in sides for name, size in (("ffn_dim", 32), ("attention_heads", 2))
    }
    return {**sizes, "d_model": 32, "encoder_layers": 1, "decoder_layers": 2}


def seeded(build):
    """What is built, with weights that are always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build()
        for value in network.parameters():  # norms too, so that each of them counts
            value.data += 0.1 * torch.randn_like(value)
    return network.eval()


DETECTORS = {"plain": plain_detr, "conditional": conditional_detr}


@cache
def _drawn(n: int, style: str) -> Scenes:
    return scenes(n, style, side=48)


def pictures(n: int, style: str = "carry") -> tuple[torch.Tensor, list[Things]]:
    found = _drawn(n, style)
    things = [Things(boxes, labels) for boxes, labels in zip(found.boxes, found.labels, strict=True)]
    return found.images.float() / 128 - 1, things


@pytest.fixture(scope="session", params=sorted(DETECTORS))
def fitted(request) -> tuple[torch.nn.Module, DetectionModel]:
    network = DETECTORS[request.param]()
    options = {"validation": pictures(24, "carry"), "progress": False}
    return network, fit_detector(network, pictures(30), LOOSE, **options)
