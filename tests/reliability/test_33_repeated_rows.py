"""Line 33: a calibration is no worse than its start or constant noise; rows that repeat others count once."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from reliability.helpers import quiet_fit, trained
from scipy import stats

from trustgp.data.rows import Rows, distinct_rows
from trustgp.likelihoods import Regression, Shape
from trustgp.math.calibration_fit import held_out_loss
from trustgp.math.held_out import CalibrationRows, independent_share


def held_out(n=400, seed=0, **values):
    """Rows of two outputs whose experts know nothing of the errors."""
    generator = torch.Generator().manual_seed(seed)
    residual = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    parts = {"novelty": torch.full_like(residual, 0.3), "residual": residual}
    parts["epistemic"] = (6 * torch.rand(n, 2, generator=generator).double()).exp()
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
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(800, 2, generator=generator, dtype=torch.float64)
    assert independent_share(held_out(800, residual=noise), 2) > 0.2
    loud = torch.tensor([1.0, 5.0, 0.2, 2.0, 1.0, 0.1, 4.0, 1.0], dtype=torch.float64)
    stretches = independent_share(held_out(800, residual=noise * loud.repeat_interleave(100)[:, None]), 2)
    assert 800 * stretches < 40
    # the definition, for one number of blocks: sums of means over blocks
    squared = (noise.square() / noise.square().mean(dim=0)).mean(dim=1)
    shares = [
        float(squared.var() / squared.reshape(b, -1).mean(dim=1).var()) * b / 800 for b in (4, 8, 16, 32)
    ]
    parts = torch.stack([part.mean() for part in squared.tensor_split(64)])
    shares.append(float(squared.var() / parts.var()) * 64 / 800)
    assert independent_share(held_out(800, residual=noise), 2) == pytest.approx(min(1.0, *shares), rel=1e-9)


def test_repeats_and_near_repeats_are_found_whatever_the_inputs_are():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(50, 3, generator=generator), torch.randn(50, 2, generator=generator)
    tokens = torch.randint(0, 9, (50, 4), generator=generator)
    inputs, targets = (
        {"x": torch.cat([x, x[:20], x[:5] + 1e-7]), "t": torch.cat([tokens, tokens[:20], tokens[:5]])},
        y,
    )
    rows = Rows(inputs, torch.cat([targets, targets[:20], targets[:5]]))
    assert distinct_rows(rows).tolist() == [True] * 50 + [False] * 25
    changed = Rows({**inputs, "t": torch.cat([tokens, (tokens[:25] + 1) % 9])}, rows.targets)
    assert bool(distinct_rows(changed).all())
    noisy = Rows(inputs, rows.targets + torch.randn(75, 2, generator=generator))  # measured twice
    assert bool(distinct_rows(noisy).all())


@pytest.mark.parametrize("validated", [True, False])
def test_repeated_rows_leave_the_interval_as_it_is(validated):
    """40 distinct rows x 10: of new rows 88 % are covered at least, as without the repeats."""
    network, x, y = trained(300, 2, 40, 1, dtype=torch.float32)
    parts = {"validation": (x[40:60], y[40:60])} if validated else {}
    once, repeated = (
        quiet_fit(network, (x[:40].repeat(n, 1), y[:40].repeat(n, 1)), **parts).predict(x[60:])
        for n in (1, 10)
    )
    torch.testing.assert_close(once.variance, repeated.variance)
    lower, upper = repeated.interval(0.95)
    if validated:
        assert float(((lower <= y[60:]) & (y[60:] <= upper)).double().mean()) >= 0.88
