"""The witness on its own, as a peer without a network."""

import pytest
import torch

from trustgp_experiments.peers.trusted import InputGP


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(0)
    inputs = 4 * torch.rand(500, 2, generator=generator, dtype=torch.float64) - 2
    clean = torch.stack([inputs.sum(1).sin(), inputs[:, 0] * inputs[:, 1]], dim=1)
    return inputs, clean, clean + 0.05 * torch.randn(clean.shape, generator=generator, dtype=torch.float64)


def test_a_smooth_function_is_recovered_with_its_noise(rows):
    inputs, clean, noisy = rows
    peer = InputGP.fit((inputs[:400], noisy[:400]), (inputs[400:450], noisy[400:450]))
    said = peer.predict(inputs[450:])
    assert float((said.mean - clean[450:]).square().mean().sqrt()) < 0.05
    assert float(said.std.mean()) == pytest.approx(0.05, rel=0.4)


def test_too_few_rows_or_too_many_inputs_are_refused():
    few = torch.rand(20, 2), torch.rand(20, 1)
    wide = torch.rand(100, 65), torch.rand(100, 1)
    for data in (few, wide):
        with pytest.raises(ValueError, match="at least 50 rows of at most 64"):
            InputGP.fit(data, data)
