"""Detectors of many families: the features of their queries, and the assignment of queries to targets."""

from itertools import permutations

import pytest
import torch
from detection.conftest import GRID, conditional_detr, grid, noise, plain_detr, seeded
from detection.detector_zoo import ZOO
from torch import nn

from trustgp.detection import Adapter, BoxTargets, Detection, adapter
from trustgp.detection.adapter import Detector, DetectorOutputs, cell_weights, kept, match, mean_inside
from trustgp.metrics.boxes import generous_overlaps

NETWORKS = {**ZOO, "plain": plain_detr, "conditional": conditional_detr}
ATTENTION = "model.decoder.layers.1.encoder_attn"
MODULES = {
    **{name: f"{ATTENTION}.attn" if name.startswith(("Def", "RT")) else ATTENTION for name in NETWORKS},
    "YOLOS": "vit.encoder.layer.1.attention.attention",
    "DAB-DETR": "model.decoder.layers.1.cross_attn.cross_attn",
    "RT-DETR v2": ATTENTION,
}
BACKBONE = "model.backbone.model.encoder.stages.2.layers.0.shortcut"
CELLS = {
    # of its own maps the last normalisation is a GroupNorm, which does not count
    **{name: (f"{BACKBONE}.normalization",) for name in NETWORKS if name.startswith("Def")},
    **{name: ("model.decoder_input_proj.2.1",) for name in NETWORKS if name.startswith("RT")},
    "D-FINE": ("model.encoder.pan_blocks.1.conv4.norm",),
    "YOLOS": (),  # its tokens of the picture are among others
    "Table Transformer": ("model.encoder.layernorm",),
}
EVERY_RUN = ("plain", "YOLOS")
FAMILIES = [pytest.param(n, marks=[] if n in EVERY_RUN else pytest.mark.nightly) for n in MODULES]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_features_of_queries_are_those_of_the_last_attention(name):
    dtype = torch.float32 if name == "DAB-DETR" else torch.float64  # it has no other
    network = seeded(NETWORKS[name]).to(dtype)
    detector, images = Detector(network, Adapter()), noise(3).to(dtype)
    outputs = detector(images)
    least = 1e-6 if dtype == torch.float32 else 1e-9
    assert detector.names == (MODULES[name],)
    assert detector.cells is not None
    assert detector.cells[:1] == CELLS.get(name, ("model.encoder.layers.0.final_layer_norm",))
    assert outputs.cells.shape[3] == (16 if name.startswith("Def") else 32 if detector.cells else 0)
    assert outputs.features.shape == (3, 4 if name == "plain" else 8, 32)
    assert bool((outputs.features[0] - outputs.features[1]).abs().max() > least)  # they differ by picture
    assert bool((outputs.features[0, 0] - outputs.features[0, 1]).abs().max() > least)  # and by query
    with torch.no_grad():
        plain = network(images)
    assert torch.equal(outputs.logits, plain.logits)
    assert torch.equal(outputs.boxes, plain.pred_boxes)
    assert not any(module._forward_hooks for module in network.modules())


def test_cells_inside_a_box_have_equal_weights_and_a_box_between_cells_has_one():
    boxes = torch.tensor([[0.5, 0.5, 0.5, 0.25], [0.33, 0.9, 0.0, 0.0], [2.0, 2.0, 0.1, 0.1]])
    height, width = 4, 5
    expected = torch.zeros(3, height, width)
    for row, (x, y, wide, tall) in enumerate(boxes.tolist()):
        for i in range(height):
            for j in range(width):
                inside = abs((j + 0.5) / width - x) <= wide / 2 + 0.5 / width
                expected[row, i, j] = inside and abs((i + 0.5) / height - y) <= tall / 2 + 0.5 / height
    counts = expected.sum(dim=(1, 2), keepdim=True)
    assert counts.flatten().tolist() == [6, 1, 0]  # the last lies outside
    weights = cell_weights(boxes, height, width)
    torch.testing.assert_close(weights, (expected / counts.clamp_min(1)).flatten(1))
    cells = torch.randn(2, height, width, 7, generator=torch.Generator().manual_seed(0))
    outputs = DetectorOutputs(torch.zeros(2, 3, 2), boxes.expand(2, 3, 4), torch.zeros(2, 3, 1), cells)
    picture, query = torch.tensor([0, 1, 1]), torch.tensor([1, 0, 2])
    means = [(weights[q, :, None] * cells[p].reshape(-1, 7)).sum(dim=0) for p, q in ((0, 1), (1, 0), (1, 2))]
    torch.testing.assert_close(mean_inside(outputs, picture, query), torch.stack(means))


def test_cells_may_be_named_and_left_out_and_other_modules_are_refused():
    network = seeded(plain_detr)
    tokens = ("model.encoder.layers.0.final_layer_norm", "model.input_projection")
    expected = Detector(network, Adapter())(noise(2)).cells
    assert torch.equal(Detector(network, Adapter(cells=tokens))(noise(2)).cells, expected)
    assert Detector(network, Adapter(cells=tokens[1]))(noise(2)).cells.shape == expected.shape
    assert Detector(network, Adapter(cells=()))(noise(2)).cells.shape[3] == 0
    with pytest.raises(ValueError, match="no token for each of its cells"):
        Detector(network, Adapter(cells=tokens[0]))(noise(2))
    with pytest.raises(ValueError, match=r"Adapter\(cells='nowhere'\): the network has no such module"):
        Detector(network, Adapter(cells="nowhere"))


def test_suppression_keeps_the_most_confident_of_boxes_that_overlap():
    first = [0.5, 0.5, 0.2, 0.2]
    boxes = torch.tensor([first, [0.51, 0.5, 0.2, 0.2], [0.2, 0.2, 0.1, 0.1], first])
    chances = torch.tensor([[0.6, 0.1], [0.9, 0.1], [0.7, 0.1], [0.1, 0.8]])
    image, query = kept(chances[None], boxes[None], Detection(adapter=Adapter(suppression=0.5)))
    assert query.tolist() == [1, 3, 2]  # 3 is of another class
    assert image.tolist() == [0, 0, 0]
    assert kept(chances[None], boxes[None], Detection())[1].tolist() == [1, 3, 2, 0]
    assert kept(chances[None], boxes[None], Detection(most=2))[1].tolist() == [1, 3]
    both = torch.stack([chances, chances]), torch.stack([boxes, boxes])
    image, query = kept(*both, Detection(most=1, adapter=Adapter(suppression=0.5)))
    assert (image.tolist(), query.tolist()) == ([0, 1], [1, 1])


class Identity(nn.Linear):
    def forward(self, images):
        return images


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: Detector(grid(), Adapter("nowhere", labels=2)), r"seen='nowhere'\): the network has no"),
        (lambda: Detector(grid(), Adapter(seen="fine", labels=2))(noise(2)), "fine: 64 rows, but 80 queries"),
        (lambda: Detector(grid(), Adapter(labels=2))(noise(2)), "no attention with a row for each of its 80"),
        (lambda: Detector(grid(), Adapter()), "has no config.num_labels, the number of its classes"),
        (lambda: Detector(grid(), Adapter(GRID.seen, labels=5))(noise(2)), "2 logits for 5 classes"),
        (lambda: Detector(Identity(2, 2), Adapter("", labels=2))(noise(2)), "logits NoneType and boxes None"),
        (lambda: Adapter(labels=0), "labels=0"),
        (lambda: Adapter(suppression=1.5), "suppression"),
    ],
)
def test_errors_name_the_cause(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def boxes(n: int, seed: int) -> torch.Tensor:
    low, size = torch.rand(2, n, 2, generator=torch.Generator().manual_seed(seed))
    return torch.cat([40 * low, 40 * low + 4 + 10 * size], dim=1)


@pytest.mark.parametrize("seed", range(3))
def test_the_assignment_is_the_cheapest_of_all(seed):
    found, targets = boxes(6, seed), BoxTargets(boxes(3, seed + 50), torch.tensor([0, 1, 0]))
    chances = torch.rand(6, 2, generator=torch.Generator().manual_seed(seed))
    query, shared = match(chances, found, targets, side=48.0)

    def cost(assignment: tuple[int, ...]) -> float:
        total = 0.0
        for k, q in enumerate(assignment):
            total -= adapter.CLASS_COST * float(chances[q, targets.labels[k]])
            total += adapter.DISTANCE_COST * float((found[q] - targets.boxes[k]).abs().sum()) / 48.0
            overlap = generous_overlaps(found[q : q + 1], targets.boxes[k : k + 1])
            total -= adapter.OVERLAP_COST * float(overlap)
        return total

    best = min(permutations(range(6), 3), key=cost)
    assert tuple(query.tolist()) == best
    assert bool(((shared >= 0) & (shared <= 1)).all())


def test_targets_may_be_none_or_more_than_the_queries():
    none = BoxTargets(torch.zeros(0, 4), torch.zeros(0).long())
    assert [len(part) for part in match(torch.ones(4, 2), boxes(4, 0), none, side=48.0)] == [0, 0]
    more = BoxTargets(boxes(4, 9), torch.zeros(4).long())
    query, shared = match(torch.ones(2, 1), boxes(2, 0), more, side=48.0)
    assert sorted(query.tolist()) == [-1, -1, 0, 1]
    assert bool((shared[query == -1] == 0).all())
