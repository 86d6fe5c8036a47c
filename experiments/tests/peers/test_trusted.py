"""trustgp among its peers."""

import warnings

import pytest
import torch

import trustgp
from trustgp_experiments.peers import TrustGP


def rows_of(case):
    return case.inputs, case.targets


def test_the_own_and_the_corrected_reading_come_from_one_fit(case, toy):
    validation, new = toy(40, 5), toy(9, 6)[0]
    fitted = TrustGP.fit(case.network, rows_of(case), validation, num_experts=3)
    expected = trustgp.fit(
        case.network, rows_of(case), validation=validation, num_experts=3, progress=False
    ).predict(new)
    assert fitted.corrected.model is fitted.model
    assert torch.equal(fitted.predict(new).variance, expected.variance)
    assert torch.equal(fitted.corrected.predict(new).mean, expected.corrected.mean)


def test_the_papers_form_has_separate_outputs_and_the_plain_variance(case, toy):
    new = toy(9, 6)[0]
    fitted = TrustGP.fit_paper(case.network, rows_of(case), num_experts=3)
    expected = trustgp.paper(
        case.network, rows_of(case), pruning=None, num_experts=3, progress=False
    ).predict(new)
    assert torch.equal(fitted.predict(new).variance, expected.plain.variance)
    assert not fitted.predict(new).excess.any()
    assert len(fitted.model.mixtures) == 2


def test_the_papers_form_says_nothing_about_time_series(make_mlp):
    steps = torch.linspace(0, 6, 120, dtype=torch.float64)[:, None]
    inputs = torch.cat([steps.sin(), steps.cos(), (2 * steps).sin()], dim=1)
    rows = inputs, inputs[:, :2]
    with pytest.warns(UserWarning, match="time series"):  # they are one
        trustgp.fit(make_mlp(), rows, num_experts=2, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert TrustGP.fit_paper(make_mlp(), rows, num_experts=2).reading == "own"


def test_an_unknown_reading_is_refused(fitted):
    with pytest.raises(ValueError, match="reading='best'"):
        TrustGP(fitted, "best")
