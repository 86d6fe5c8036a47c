from itertools import pairwise

import pytest
import torch
from reference import dense_gram, dense_jacobian

from trustgp.tangents import JacobianRows, LayerFactors, output_mixes
from trustgp.tangents.base import MAX_BLOCKS, MIN_BLOCK_ROWS, gram_blocks, mirrored
from trustgp.tangents.factors import LARGE_BLOCK
from trustgp.tangents.network import prepare


@pytest.mark.parametrize(
    "rows", [1, 2, MIN_BLOCK_ROWS, MIN_BLOCK_ROWS + 1, 3 * MIN_BLOCK_ROWS, 20 * MIN_BLOCK_ROWS + 7]
)
def test_blocks_cover_the_lower_triangle_and_are_few(rows):
    covered = torch.zeros(rows, rows, dtype=torch.bool)
    blocks = gram_blocks(rows, rows, same=True)
    for across, down in blocks:
        covered[across, down] = True
    assert bool(covered.tril().eq(torch.ones(rows, rows, dtype=torch.bool).tril()).all())
    assert len(blocks) <= MAX_BLOCKS


def test_a_matrix_of_two_lots_of_rows_is_one_block():
    assert gram_blocks(1000, 300, same=False) == [(slice(0, 1000), slice(0, 300))]


def test_a_mirrored_matrix_takes_nothing_from_above_the_diagonal():
    expected = torch.tensor([[0.0, 3.0, 6.0], [3.0, 4.0, 7.0], [6.0, 7.0, 8.0]])
    for edges in ([0, 3], [0, 1, 3], [0, 2, 3], [0, 1, 2, 3]):
        blocks = [(slice(a, b), slice(0, b)) for a, b in pairwise(edges)]
        assert torch.equal(mirrored(torch.arange(9.0).reshape(3, 3), blocks), expected)


@pytest.mark.parametrize("large", [None, MIN_BLOCK_ROWS + 40, 4 * MIN_BLOCK_ROWS])  # None: as on a CPU
@pytest.mark.parametrize("tangents", [LayerFactors(), JacobianRows()])
def test_a_gram_matrix_by_blocks_is_the_dense_one_and_symmetric_to_the_bit(
    case, toy, tangents, large, monkeypatch
):
    if large is not None:
        monkeypatch.setitem(LARGE_BLOCK, "cpu", large)
    inputs = toy(2 * MIN_BLOCK_ROWS + 11, seed=5)[0]
    mix, _ = output_mixes("shared", 2, torch.Generator())[0]
    features = tangents.bind(prepare(case.network, "all", None), mix, inputs[:4], inputs[:4])(inputs)
    found = features.gram(features)
    expected = dense_gram(dense_jacobian(case.network, inputs), mix)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10 * float(expected.max()))
    assert torch.equal(found, found.T)
