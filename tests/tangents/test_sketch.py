"""Sketches against their definition, written out in float64, and against the exact kernel."""

import math

import pytest
import torch
from draws import normal
from many import Many
from reference import dense_gram, dense_jacobian
from tangents.binding import assert_close, bound
from torch import Tensor, nn
from zoo import make, portions, seeded

from trustgp.tangents import Sketch
from trustgp.tangents.jacobian import strategies as passes
from trustgp.tangents.projections import find_projections, projections_from
from trustgp.tangents.sketch import SketchMap

# vmap warns of operations that it computes row by row
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:Using padding='same'")


def by_definition(jacobian: Tensor, mix: Tensor, tangents: SketchMap) -> Tensor:
    """Every gradient written out, projected, and every number of it put into its bucket, [n, D]."""
    mixed = torch.einsum("kc,ncp->nkp", mix, jacobian)
    tables, parts, start = tangents.tables, [], 0
    for name, value in tangents.network.parameters.items():
        whole = mixed[:, :, start : start + value.numel()]
        start += value.numel()
        if value.ndim < 2:
            parts.append(whole)
            continue
        whole = whole.reshape(*whole.shape[:2], *value.shape[:2], -1)  # [n, K, o, i, kernel]
        left, right = (tables.projections.get((name, side)) for side in ("left", "right"))
        if left is not None:
            groups = value.shape[0] // len(left)
            whole = torch.einsum("nkoix,oa->nkaix", whole, torch.block_diag(*[left] * groups))
        if right is not None:
            whole = torch.einsum("nkoix,ib->nkobx", whole, right)
        parts.append(whole.flatten(2))
    flat = torch.cat(parts, dim=2)
    found = torch.zeros(len(jacobian), tables.entries.shape[1], dtype=torch.float64)
    for line, signs in zip(tables.entries.tolist(), tables.signs.tolist(), strict=True):
        for bucket, (entry, sign) in enumerate(zip(line, signs, strict=True)):
            for k in range(len(mix) if sign else 0):
                begins = int((tables.shift[k] - k * found.shape[1] == 0).nonzero())
                place = (bucket + begins) % found.shape[1]
                found[:, place] += sign * tables.turn[k, 0] * flat[:, k, entry]
    return found


@pytest.mark.parametrize("names", portions(8))
def test_a_sketch_is_its_definition_and_wide_projections_give_the_kernel_itself(names):
    with Many() as check:
        for name in names:
            network, inputs = make(name)
            jacobian = dense_jacobian(network, inputs)
            for width, outputs in ((2, "shared"), (5, "pseudo"), (5, "separate")):
                with check(name, width, outputs):
                    tangents, mix = bound(network, inputs, Sketch(37, width=width), outputs)
                    expected = by_definition(jacobian, mix, tangents)
                    assert_close(tangents(inputs).rows, expected)
            with check(name, "wide"):
                sketch = Sketch(max(16, jacobian.shape[2]), width=4096)
                tangents, mix = bound(network, inputs, sketch, outputs="pseudo")
                assert not tangents.projections
                rows = tangents(inputs)
                assert_close(rows.gram(rows), dense_gram(jacobian, mix))


def mlp(width=12):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2)).double().eval()


def kernels(network, inputs, dim, width, seeds) -> tuple[Tensor, Tensor]:
    """Kernels of sketches with many seeds [s, n, n], and the exact one."""
    first, mix = bound(network, inputs, Sketch(dim, width=width))
    found = []
    for seed in range(seeds):
        sketch = Sketch(dim, seed=seed, width=width)
        by = find_projections(first.gradients, inputs, sketch.width, sketch.seed)
        rows = SketchMap(first.gradients, sketch, 1, by)(inputs)
        found.append(rows.gram(rows))
    return torch.stack(found), dense_gram(dense_jacobian(network, inputs), mix)


@pytest.mark.parametrize("name", ["conv2d, groups", pytest.param("embedding", marks=pytest.mark.nightly)])
def test_the_kernel_of_a_sketch_is_unbiased(name):
    found, exact = kernels(*make(name), 16, 4, 100)
    spread = found.std(dim=0) / math.sqrt(len(found))
    # 25 means of 100 draws: the largest of them strays by 4 standard errors once in 500 times
    assert float(((found.mean(dim=0) - exact).abs() / spread).max()) < 4.0


@pytest.mark.nightly
def test_the_error_of_the_kernel_falls_as_one_over_the_root_of_the_dimension():
    errors = []
    for dim in (16, 64, 256):
        sketched, exact = kernels(mlp(600), seeded(5, 3), dim, 1000, 60)
        errors.append(float((sketched - exact).square().mean().sqrt()))
    # a factor of 2 each; of 60 x 25 correlated draws the ratio is known to about a quarter
    assert 1.5 < errors[0] / errors[1] < 2.7
    assert 1.5 < errors[1] / errors[2] < 2.7


@pytest.mark.parametrize("seen", [0, 3, 40])
def test_a_projection_keeps_the_leading_directions_and_is_unbiased_in_the_others(seen):
    m, width = 12, 6
    vectors = normal(seen, m, seed=1)
    draws = torch.Generator().manual_seed(2)
    found = projections_from(vectors.expand(400, -1, -1), width, draws)
    squares = torch.stack([by.double() @ by.double().T for by in found])
    spread = squares.std(dim=0).clamp_min(1e-12) / math.sqrt(len(squares))
    assert float(((squares.mean(dim=0) - torch.eye(m)).abs() - 1e-6).div(spread).max()) < 4.5
    if seen:  # half of the width: what they span is projected to the same lengths
        lead = torch.linalg.svd(vectors).Vh[: min(seen, width // 2)]
        torch.testing.assert_close(squares[0] @ lead.T, lead.T, rtol=1e-8, atol=1e-8)


def test_the_same_seed_or_state_gives_the_same_sketch_and_another_seed_another():
    network, inputs = make("conv2d, groups")
    sketch = Sketch(64, seed=3)
    tangents, again, other = (bound(network, inputs, Sketch(64, seed=s))[0] for s in (3, 3, 4))
    rows = tangents(inputs).rows
    assert torch.equal(rows, again(inputs).rows)
    assert not torch.allclose(rows, other(inputs).rows)
    restored = Sketch(**sketch.settings()).restore(tangents.network, tangents.state())
    assert torch.equal(restored(inputs).rows, rows)
    assert restored.working_bytes() == tangents.working_bytes()
    assert rows.shape == (5, 64)
    assert tangents.num_columns(expert=False) == tangents.num_columns(expert=True) == 64
    assert tangents.row_bytes() * 5 == rows.numel() * rows.element_size()
    assert tangents.columns(inputs).numel() == 0


def test_projections_grow_with_the_widths_of_the_layers_not_with_their_products():
    network, inputs = mlp(width=3000), seeded(4, 3)  # 18,002 parameters
    tangents, mix = bound(network, inputs, Sketch(64, width=8))
    # of [3000, 3] the left and of [2, 3000] the right side are projected
    assert sum(value.numel() for value in tangents.state().values()) == mix.numel() + 1 + 2 * 3000 * 8
    assert tangents.tables.size == 8 * 3 + 3000 + 2 * 8 + 2


def test_a_table_is_never_as_large_as_its_vocabulary():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Embedding(5000, 16), nn.Flatten(), nn.Linear(48, 1)).double().eval()
    inputs = torch.randint(0, 5000, (6, 3), generator=torch.Generator().manual_seed(0))
    tangents, mix = bound(network, inputs, Sketch(64, width=4))
    assert tangents.tables.cores["0.weight"] == (4, 4)
    expected = by_definition(dense_jacobian(network, inputs), mix, tangents)
    assert_close(tangents(inputs).rows, expected)


@pytest.mark.parametrize("name", ["conv2d, groups", "embedding", "tied, transposed"])
def test_small_chunks_and_a_small_workspace_give_the_same_sketches(name, monkeypatch):
    network, inputs = make(name)
    tangents, _ = bound(network, inputs, Sketch(64))
    whole = tangents(inputs).rows
    monkeypatch.setattr("trustgp.tangents.sketch.working_set", lambda *_: tangents.working_bytes())
    monkeypatch.setattr(passes, "WORKSPACE", 1)
    torch.testing.assert_close(tangents(inputs).rows, whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dim", [0, 15, 100.0])
def test_an_impossible_dimension_is_refused(dim):
    with pytest.raises(ValueError, match="at least 16"):
        Sketch(dim)
