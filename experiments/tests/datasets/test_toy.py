import pytest
import torch

from trustgp_experiments.datasets.toy import snelson_like, truth


def test_no_row_falls_inside_the_gap_and_both_sides_have_rows():
    x, _ = snelson_like(rows=5000, gap=(2.0, 4.0))
    assert not ((x > 2.0) & (x < 4.0)).any()
    assert (x <= 2.0).sum() > 1000
    assert (x >= 4.0).sum() > 1000


def test_the_residual_about_the_truth_is_the_noise():
    x, y = snelson_like(rows=20_000, noise=0.28)
    residual = y - truth(x)
    assert residual.std().item() == pytest.approx(0.28, rel=0.03)
    assert abs(residual.mean().item()) < 0.01
    x, y = snelson_like(noise=0.0)
    assert torch.allclose(y, truth(x), atol=1e-5)


@pytest.mark.parametrize("gap", [(4.0, 2.0), (-1.0, 2.0), (0.0, 6.0)])
def test_an_impossible_gap_is_refused(gap):
    with pytest.raises(ValueError, match="gap="):
        snelson_like(gap=gap)
