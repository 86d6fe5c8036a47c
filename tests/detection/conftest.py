"""Two small detectors with random weights, pictures of noise in which they find something, and their fits."""

from functools import cache

import pytest
import torch
from detection.detector_zoo import SIZES, GridDetector, resnet
from torch import Tensor, nn

from trustgp.detection import Adapter, BoxTargets, DetectionModel, fit
from trustgp.detection.adapter import Detector, probabilities
from trustgp_experiments.datasets.scenes import Scenes, scenes

pytest.importorskip("transformers", reason="detectors come from transformers: pip install trustgp[detection]")

LOOSE = {"threshold": 0.01, "overlap": 0.01, "most": 3}  # random weights detect little
GRID = Adapter(seen=("fine", "coarse"), labels=2, suppression=0.8)
SIDE = 64


def seeded(build) -> nn.Module:
    """What is built, with weights that are always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build()
        for value in network.parameters():  # norms too, so that each of them counts
            value.data += 0.1 * torch.randn_like(value)
    return network.eval()


def plain_detr(labels: int = 2) -> nn.Module:
    from transformers import DetrConfig, DetrForObjectDetection

    # With random weights its queries agree to a hundredth of a pixel, and any of them may match a target. Of
    # four queries three are detections, so two targets match one whatever weights this torch draws.
    sizes = {**SIZES, "num_labels": labels, "d_model": 32, "num_queries": 4}
    return seeded(lambda: DetrForObjectDetection(DetrConfig(backbone_config=resnet("stage2"), **sizes)))


def conditional_detr(labels: int = 2) -> nn.Module:
    from transformers import ConditionalDetrConfig, ConditionalDetrForObjectDetection

    sizes = {**SIZES, "num_labels": labels, "d_model": 32, "auxiliary_loss": True}
    config = ConditionalDetrConfig(backbone_config=resnet("stage2"), **sizes)
    return seeded(lambda: ConditionalDetrForObjectDetection(config))


def grid() -> nn.Module:
    return seeded(GridDetector)


DETECTORS = {"grid": grid, "plain": plain_detr}
ADAPTERS = {"grid": GRID}


@cache
def _drawn(n: int, style: str) -> Scenes:
    return scenes(n, style, side=48)


def pictures(n: int, style: str = "carry") -> tuple[Tensor, list[BoxTargets]]:
    """Rendered ones, of 48 pixels."""
    drawn = _drawn(n, style)
    return drawn.images.float() / 128 - 1, list(map(BoxTargets, drawn.boxes, drawn.labels))


def noise(n: int, seed: int = 0, side: int = SIDE) -> Tensor:
    return torch.randn(n, 3, side, side, generator=torch.Generator().manual_seed(seed))


def noise_scenes(network: nn.Module, n: int, seed: int, adapter: Adapter = GRID, side: int = SIDE):
    """Pictures of noise, whose targets are the detector's three most confident boxes, a little off."""
    images = noise(n, seed, side)
    outputs = Detector(network, adapter)(images)
    classes = 2 if adapter.labels else network.config.num_labels
    best, labels = probabilities(outputs.logits, classes).max(dim=2)
    top = best.topk(3, dim=1).indices
    labels = labels.gather(1, top)
    centre, size = outputs.boxes.gather(1, top[..., None].expand(-1, -1, 4)).split(2, dim=2)
    size = size.clamp_min(0.1)
    boxes = (torch.cat([centre - size / 2, centre + size / 2], dim=2) * side + 0.3).clamp(0, side)
    real = (boxes[..., 2:] - boxes[..., :2] > 1.0).all(dim=2)
    return images, [BoxTargets(b[r], k[r]) for b, k, r in zip(boxes, labels, real, strict=True)]


def fit_loose(network: nn.Module, train, **options) -> DetectionModel:
    return fit(network, train, **{**LOOSE, "adapter": GRID, "progress": False, **options})


def fitted_to(network: nn.Module, adapter: Adapter = GRID, **options) -> DetectionModel:
    train, held_out = (noise_scenes(network, n, seed, adapter) for n, seed in ((30, 1), (24, 2)))
    return fit_loose(network, train, validation=held_out, adapter=adapter, **options)


@pytest.fixture(scope="session", params=DETECTORS)
def fitted(request) -> tuple[nn.Module, DetectionModel]:
    """Classes of the grid are sigmoids; DETR has a softmax with "no object"."""
    network = DETECTORS[request.param]()
    return network, fitted_to(network, ADAPTERS.get(request.param, Adapter()))
