"""Detectors of many kinds: what their queries have seen is found, and an error bar fitted."""

from __future__ import annotations

import pytest
import torch
from detection.conftest import DETECTORS, seeded
from detection.detector_zoo import ZOO, GridDetector
from torch import nn

import trustgp
from trustgp.detection import Adapter, Detection, Things
from trustgp.detection.adapter import Detector
from trustgp.detection.query_rows import kept

SEEN = {
    "plain": "model.decoder.layers.1.encoder_attn",
    "conditional": "model.decoder.layers.1.encoder_attn",
    "DAB-DETR": "model.decoder.layers.1.cross_attn.cross_attn",
    "Table Transformer": "model.decoder.layers.1.encoder_attn",
    "Deformable DETR": "model.decoder.layers.1.encoder_attn.attn",
    "Deformable DETR, refined": "model.decoder.layers.1.encoder_attn.attn",
    "Deformable DETR, two stages": "model.decoder.layers.1.encoder_attn.attn",
    "RT-DETR": "model.decoder.layers.1.encoder_attn.attn",
    "RT-DETR v2": "model.decoder.layers.1.encoder_attn",
    "D-FINE": "model.decoder.layers.1.encoder_attn",
    "YOLOS": "vit.encoder.layer.1.attention.attention",
}
GRID = Adapter(seen=("fine", "coarse"), labels=2, suppression=0.5)


def noise(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, 3, 64, 64, generator=torch.Generator().manual_seed(seed))


def made(name: str) -> nn.Module:
    return seeded({**DETECTORS, **ZOO}[name])


@pytest.mark.parametrize("name", SEEN)
def test_what_queries_have_seen_is_found(name):
    dtype = torch.float32 if name == "DAB-DETR" else torch.float64  # it knows no other
    network = made(name).to(dtype)
    detector, images = Detector(network, Adapter()), noise(3).to(dtype)
    said = detector(images)
    least = 1e-6 if dtype == torch.float32 else 1e-9
    assert detector.names == (SEEN[name],)
    assert said.seen.shape == (3, 8, 32)
    assert bool((said.seen[0] - said.seen[1]).abs().max() > least)  # it comes from the picture
    assert bool((said.seen[0, 0] - said.seen[0, 1]).abs().max() > least)  # and is each query's own
    with torch.no_grad():
        whole = network(images)
    assert torch.equal(said.logits, whole.logits)
    assert torch.equal(said.boxes, whole.pred_boxes)
    assert not any(module._forward_hooks for module in network.modules())


def scenes(network: nn.Module, adapter: Adapter, n: int, seed: int):
    """Pictures of noise, whose things are what a detector says, a little off."""
    images = noise(n, seed)
    said = Detector(network, adapter)(images)
    labels = said.logits[:, :3, :2].argmax(dim=2)
    centre, size = said.boxes[:, :3, :2], said.boxes[:, :3, 2:].clamp_min(0.1)
    boxes = (torch.cat([centre - size / 2, centre + size / 2], dim=2) * 64 + 0.3).clamp(0, 64)
    things = []
    for own, kind in zip(boxes, labels, strict=True):
        real = (own[:, 2:] - own[:, :2] > 1.0).all(dim=1)
        things.append(Things(own[real], kind[real]))
    return images, things


@pytest.mark.filterwarnings("ignore:.*classes have no training row")
@pytest.mark.parametrize("name", [*ZOO, "grid"])
def test_it_gets_an_error_bar_that_is_saved_and_loaded(name, tmp_path):
    network = seeded(GridDetector) if name == "grid" else made(name)
    adapter = GRID if name == "grid" else Adapter()
    settings = Detection(threshold=0.01, overlap=0.01, most=5, adapter=adapter)
    train, held = (scenes(network, adapter, 12, seed) for seed in (1, 2))
    model = trustgp.fit(network, train, likelihood=settings, validation=held, progress=False)
    images = noise(2, 3)
    found = model.predict(images)
    for one in found:
        assert len(one) > 0
        assert bool(torch.isfinite(one.std).all() & (one.std > 0).all())
        assert 0 < one.picture_novelty < 1
    model.save(tmp_path / "m.trustgp")
    again = trustgp.load(tmp_path / "m.trustgp", network).predict(images)
    assert all(
        torch.equal(a.std, b.std) and torch.equal(a.boxes, b.boxes) for a, b in zip(found, again, strict=True)
    )


def test_suppression_keeps_the_surest_of_boxes_that_overlap():
    boxes = torch.tensor(
        [[0.5, 0.5, 0.2, 0.2], [0.51, 0.5, 0.2, 0.2], [0.2, 0.2, 0.1, 0.1], [0.5, 0.5, 0.2, 0.2]]
    )
    chances = torch.tensor([[0.6, 0.1], [0.9, 0.1], [0.7, 0.1], [0.1, 0.8]])
    image, query = kept(chances[None], boxes[None], Detection(adapter=Adapter(suppression=0.5)))
    assert query.tolist() == [1, 3, 2]  # 3 is of another class
    assert image.tolist() == [0, 0, 0]
    assert kept(chances[None], boxes[None], Detection())[1].tolist() == [1, 3, 2, 0]
    assert kept(chances[None], boxes[None], Detection(most=2))[1].tolist() == [1, 3]
    both = torch.stack([chances, chances]), torch.stack([boxes, boxes])
    image, query = kept(*both, Detection(most=1, adapter=Adapter(suppression=0.5)))
    assert (image.tolist(), query.tolist()) == ([0, 1], [1, 1])


@pytest.mark.parametrize(
    ("adapter", "match"),
    [
        (Adapter(seen="nowhere", labels=2), r"Adapter\(seen='nowhere'\): the network has no such module"),
        (Adapter(seen="fine", labels=2), "fine: 64 places, but 80 queries"),
        (Adapter(labels=2), "there is no attention with an answer for each of its 80 queries"),
        (Adapter(), "does not say how many classes it knows"),
        (Adapter(seen=("fine", "coarse"), labels=5), "2 logits for 5 classes"),
    ],
)
def test_what_cannot_be_found_is_told(adapter, match):
    with pytest.raises(ValueError, match=match):
        Detector(seeded(GridDetector), adapter)(noise(2))


def test_what_is_no_detector_is_told():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, images):
            return images

    with pytest.raises(ValueError, match=r"logits NoneType and boxes NoneType\. Detection takes networks"):
        Detector(Odd(), Adapter(seen="layer", labels=2))(noise(2))


@pytest.mark.parametrize("options", [{"labels": 0}, {"suppression": 1.5}])
def test_adapters_that_make_no_sense_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Adapter(**options)
