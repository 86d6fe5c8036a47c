"""Letters, textures and the 1-D toy, which are drawn here."""

import pytest
import torch

from trustgp_experiments.datasets import draw_letters, draw_textures, snelson_like, truth
from trustgp_experiments.datasets.letters import LETTERS
from trustgp_experiments.datasets.textures import KINDS


def drawn(kind: str, n: int, seed: int) -> tuple[torch.Tensor, list[str]]:
    if kind == "letters":
        pytest.importorskip("matplotlib")
        return draw_letters(n, seed=seed)
    return draw_textures(n, seed=seed)


@pytest.mark.parametrize("kind", ["letters", "textures"])
def test_a_seed_draws_the_same_images_of_the_size_of_mnist(kind):
    before = torch.get_rng_state()
    (images, names), (again, same), (other, _) = (drawn(kind, 40, seed) for seed in (2, 2, 1))
    assert torch.equal(images, again)
    assert names == same
    assert not torch.equal(images, other)
    assert torch.equal(torch.get_rng_state(), before)
    assert images.shape == (40, 1, 28, 28)
    assert images.dtype == torch.float32
    assert len(names) == 40
    assert float(images.min()) >= 0.0
    assert float(images.max()) <= 1.0
    assert float(images.flatten(1).std(dim=1).min()) > 0.02  # none is blank
    assert len(images.flatten(1).unique(dim=0)) == 40


def test_letters_lie_in_the_middle_and_letters_like_digits_are_left_out():
    images, names = drawn("letters", 200, 3)
    assert set(names) <= set(LETTERS)
    assert not set("OIlSZBoszbgq") & set(LETTERS)
    mass = images.sum(dim=(1, 2, 3))
    at = torch.arange(28).float()
    for place in ((images.sum(dim=(1, 2)) @ at), (images.sum(dim=(1, 3)) @ at)):
        assert float((place / mass - 13.5).abs().max()) < 6.0
    assert float(images[..., 0].max()) < 1.0  # a box of 20 pixels, shifted by 2 at most


def test_there_are_as_many_textures_of_each_kind():
    _, names = drawn("textures", 20, 0)
    assert [names.count(kind) for kind in KINDS] == [5, 5, 5, 5]


def test_rows_of_the_toy_leave_the_gap_out_and_have_their_noise():
    x, y = snelson_like(rows=20_000, gap=(2.0, 4.0), noise=0.28)
    assert not ((x > 2.0) & (x < 4.0)).any()
    assert min((x <= 2.0).sum(), (x >= 4.0).sum()) > 4000
    residual = y - truth(x)
    assert residual.std().item() == pytest.approx(0.28, rel=0.03)
    assert abs(residual.mean().item()) < 0.01
