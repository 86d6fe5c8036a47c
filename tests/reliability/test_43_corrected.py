"""Promise 43: `corrected` is the network's own prediction unless held-out rows show that it is better."""

import torch
from draws import normal
from many import each

from trustgp.likelihoods import Regression, Shape
from trustgp.math.calibration_fit import held_out_loss
from trustgp.math.held_out import CalibrationRows

SHAPE = Shape(1, (1,))


def held_out(share: float, seed: int, n: int = 300) -> CalibrationRows:
    """Residuals of which this share is what the experts expect; the other part of it is their mistake."""
    expected, noise = normal(2, n, 1, seed=seed)
    parts = {"residual": share * expected + (1.0 - share**2) ** 0.5 * noise, "residual_mean": expected}
    return CalibrationRows.of(torch.arange(1), epistemic=torch.ones_like(noise), **parts)


@each("seed", range(2))
@each(("share", "better"), [(0.0, False), (0.9, True)])
def test_rows_that_cannot_tell_keep_the_networks_mean_and_others_correct_it(share, better, seed):
    rows = held_out(share, seed)
    own, corrected, *_ = Regression().recalibrate(rows, SHAPE, Regression().calibrate(None, SHAPE, None))
    assert (float(own.shift), float(corrected.shift)) == (0.0, float(better))
    new = held_out(share, seed + 100, n=2000)
    # beyond chance: 2,000 new rows know the loss to about 0.02
    assert held_out_loss(corrected, new) <= held_out_loss(own, new) + (-0.3 if better else 0.02)
