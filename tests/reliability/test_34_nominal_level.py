"""Promise 34: the nominal level is compared with what held-out rows show, overall and in thirds."""

from dataclasses import replace

import pytest
import torch
from draws import Draws

from trustgp.experts.mixture import LatentPrediction
from trustgp.likelihoods import Regression, Shape
from trustgp.likelihoods.regression import _covering
from trustgp.math.held_out import CalibrationRows


def held_out(n: int, loud: float) -> CalibrationRows:
    """A tenth of the rows, those where the experts expect most, have errors that are larger by a factor."""
    draws = Draws()
    epistemic = torch.linspace(1.0, 2.0, n).double()[torch.randperm(n, generator=draws.generator)]
    residual = torch.where(epistemic > 1.9, loud, 1.0) * epistemic.sqrt() * draws.normal(n)
    novelty = torch.full((n, 1), 0.01, dtype=torch.float64)
    values = {"residual": residual[:, None], "epistemic": epistemic[:, None], "novelty": novelty}
    return CalibrationRows.of(torch.arange(1), **values)


@pytest.mark.parametrize(("factor", "where"), [(1.0, ""), (0.05, "covers .. % of the held-out rows;")])
def test_a_level_that_held_out_rows_do_not_show_is_named_with_both_numbers(factor, where):
    rows, shape = held_out(2000, 1.0), Shape(1, (1,))
    own, *others = Regression().recalibrate(rows, shape, Regression().calibrate(None, shape, None))
    shifted = replace(own, bias=own.bias + torch.tensor(factor).log(), weights=own.weights)
    warning = Regression().calibration_warning(rows, (shifted, *others))
    assert (warning == "") == (where == "")
    if where:
        assert "constant noise" in warning or "the 95 % interval covers" in warning


def test_thirds_of_the_width_are_compared_too():
    rows, shape = held_out(6000, 2.0), Shape(1, (1,))
    start = Regression().calibrate(None, shape, None)[0]
    # the scale of the experts, right but for the widest intervals
    flat = replace(start, df=torch.full_like(start.df, 1e6), tails=start.tails)
    warning = Regression().calibration_warning(rows, (flat, flat, flat, flat))
    assert "the 95 % interval covers 8" in warning
    assert "whose intervals are widest" in warning


@pytest.mark.parametrize(("n", "least"), [(30, 30), (200, 190)])
def test_intervals_cover_as_many_held_out_rows_as_a_new_row_needs(n, least):
    rows, shape = held_out(n, 1.0), Shape(1, (1,))
    residual = rows.residual.clamp(-1.0, 1.0)
    residual[: n // 15] *= 1.5
    rows = replace(rows, residual=residual)
    own, *_ = Regression().recalibrate(rows, shape, Regression().calibrate(None, shape, None))
    names = vars(rows).keys() - {"residual", "output", "target", "measures"}
    values = {name: getattr(rows, name)[:, None] for name in names}
    raw = LatentPrediction(**values, expert=torch.zeros(n, 1, dtype=torch.int64), nearest=rows.measures)
    zeros = torch.zeros(n, 1, dtype=torch.float64)
    low, high = Regression().prediction(zeros, raw, (own, own, own, own)).interval(0.95)
    wide = 1.0 + 1e-2  # half a percent of the width is of the experts' own variance
    assert int(((residual[:, None] >= wide * low) & (residual[:, None] <= wide * high)).sum()) >= least


@pytest.mark.parametrize(("size", "grows"), [(3.0, True), (1e4, False)])
def test_one_error_widens_all_intervals_only_as_far_as_the_likelihood_allows(size, grows):
    rows, shape = held_out(30, 1.0), Shape(1, (1,))
    residual = rows.residual.clone()
    residual[3] = size
    start, *_ = Regression().calibrate(None, shape, None)
    start = replace(start, df=torch.full_like(start.df, 4.0))
    usual = torch.full_like(rows.measures, -10.0)
    wider = _covering(replace(rows, residual=residual, measures=usual), start)
    assert (float(wider.bias) > float(start.bias)) == grows
