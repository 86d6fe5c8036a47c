"""Line 33: a calibration is no worse than its start or constant noise; rows that repeat others count once."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from draws import Draws, normal
from reliability.helpers import quiet_fit, trained
from scipy import stats

from trustgp.data.rows import Rows, distinct_rows
from trustgp.likelihoods import Regression, Shape
from trustgp.math.calibration_fit import held_out_loss
from trustgp.math.held_out import CalibrationRows, independent_share


def held_out(n=400, seed=0, **values):
    """Rows of two outputs whose experts know nothing of the errors."""
    draws = Draws(seed)
    residual, power = draws.normal(n, 2), 6 * draws.uniform(n, 2)
    parts = {"novelty": torch.full_like(residual, 0.3), "residual": residual, "epistemic": power.exp()}
    return CalibrationRows.of(torch.arange(2), **(parts | values))


def test_a_calibration_is_no_worse_than_its_start_and_than_constant_noise_with_tails():
    rows, shape = held_out(), Shape(2, (1,))
    before = Regression().calibrate(None, shape, None)
    # a start that is right by chance for few rows, and one that is far off
    for start in (before, [replace(c, bias=c.bias - 14.0) for c in before]):
        fitted = Regression().recalibrate(rows, shape, start)
        for one, first in zip(fitted[:2], start[2:], strict=True):
            loss = held_out_loss(one, rows)
            assert loss <= held_out_loss(first, rows)
            by_output = [rows.residual[rows.output == k].numpy() for k in (0, 1)]
            tails = [-stats.t(*stats.t.fit(e, floc=0)).logpdf(e).mean() for e in by_output]
            assert loss <= np.mean(tails) + 0.02


def test_rows_of_few_stretches_of_time_are_few_observations_of_the_scale():
    noise = normal(800, 2)
    assert independent_share(held_out(800, residual=noise), 2) > 0.2
    loud = torch.tensor([1.0, 5.0, 0.2, 2.0, 1.0, 0.1, 4.0, 1.0], dtype=torch.float64)
    stretches = independent_share(held_out(800, residual=noise * loud.repeat_interleave(100)[:, None]), 2)
    assert 800 * stretches < 40
    # the definition, for one number of blocks: sums of means over blocks
    squared = (noise.square() / noise.square().mean(dim=0)).mean(dim=1)
    means = {b: torch.stack([part.mean() for part in squared.tensor_split(b)]) for b in (4, 8, 16, 32, 64)}
    shares = [float(squared.var() / parts.var()) * b / 800 for b, parts in means.items()]
    assert independent_share(held_out(800, residual=noise), 2) == pytest.approx(min(1.0, *shares), rel=1e-9)


def test_repeats_and_near_repeats_are_found_whatever_the_inputs_are():
    draws = Draws()
    x, y, noise = (draws.normal(*shape, dtype=torch.float32) for shape in ((50, 3), (50, 2), (75, 2)))
    tokens = draws.whole(0, 9, 50, 4)
    inputs = {"x": torch.cat([x, x[:20], x[:5] + 1e-7]), "t": torch.cat([tokens, tokens[:20], tokens[:5]])}
    rows = Rows(inputs, torch.cat([y, y[:20], y[:5]]))
    assert distinct_rows(rows).tolist() == [True] * 50 + [False] * 25
    changed = Rows({**inputs, "t": torch.cat([tokens, (tokens[:25] + 1) % 9])}, rows.targets)
    assert bool(distinct_rows(changed).all())
    assert bool(distinct_rows(Rows(inputs, rows.targets + noise)).all())  # measured twice


@pytest.mark.parametrize("validated", [True, False])
def test_repeated_rows_leave_the_interval_as_it_is(validated):
    """40 distinct rows x 10: of new rows 88 % are covered at least, as without the repeats."""
    network, x, y = trained(300, 2, 40, 1, dtype=torch.float32)
    parts = {"validation": (x[40:60], y[40:60])} if validated else {}
    rows = [(x[:40].repeat(n, 1), y[:40].repeat(n, 1)) for n in (1, 10)]
    once, repeated = (quiet_fit(network, pair, **parts).predict(x[60:]) for pair in rows)
    torch.testing.assert_close(once.variance, repeated.variance)
    lower, upper = repeated.interval(0.95)
    if validated:
        assert float(((lower <= y[60:]) & (y[60:] <= upper)).double().mean()) >= 0.88
