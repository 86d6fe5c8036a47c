"""How outputs enter the kernel, and Gram matrices by blocks."""

import itertools

import pytest
import torch
from reference import dense_gram, dense_jacobian

from trustgp.tangents import KINDS, JacobianRows, LayerFactors, output_mixes
from trustgp.tangents.base import MIN_BLOCK_ROWS, leading_signs
from trustgp.tangents.factors import LARGE_BLOCK
from trustgp.tangents.network import prepare


def test_outputs_are_mixed_as_asked(generator):
    ((mix, served),) = output_mixes("shared", 3, generator)
    torch.testing.assert_close(mix, torch.eye(3, dtype=torch.float64) / 3**0.5, rtol=1e-10, atol=0)
    assert served.tolist() == [0, 1, 2]
    mixes = output_mixes("separate", 3, generator)
    assert [served.tolist() for _, served in mixes] == [[0], [1], [2]]
    assert torch.equal(torch.cat([mix for mix, _ in mixes]), torch.eye(3, dtype=torch.float64))
    ((mix, served),) = output_mixes("pseudo", 5, generator)
    assert mix.shape == (1, 5)
    assert float(mix.square().sum()) == pytest.approx(1.0, rel=1e-10)
    assert served.tolist() == [0, 1, 2, 3, 4]
    single = [output_mixes(kind, 1, generator)[0][0].abs() for kind in ("shared", "separate", "pseudo")]
    assert all(torch.equal(mix, torch.ones(1, 1, dtype=torch.float64)) for mix in single)
    with pytest.raises(ValueError, match='"shared", "separate" and "pseudo"'):
        output_mixes("joint", 2, generator)


def test_every_representation_is_rebuilt_from_its_settings():
    for kind in KINDS.values():
        made = kind(parameters=["a", "b"])
        assert kind(**made.settings()).settings() == made.settings()


@pytest.mark.parametrize("seed", range(6))
def test_leading_signs_lose_little_against_the_best_of_all(seed):
    half = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)).double()
    energy = half @ half.T
    every = torch.tensor([[1, *rest] for rest in itertools.product((1, -1), repeat=5)]).double()
    best = torch.einsum("sc,ce,se->s", every, energy, every).max()
    signs = leading_signs(energy)
    assert signs[0] == 1
    assert set(signs.abs().tolist()) == {1.0}
    assert float(signs @ energy @ signs) >= 0.9 * float(best)


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
    gram = features.gram(features)
    expected = dense_gram(dense_jacobian(case.network, inputs), mix)
    torch.testing.assert_close(gram, expected, rtol=1e-10, atol=1e-10 * float(expected.max()))
    assert torch.equal(gram, gram.T)
