"""trustgp among its peers."""

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
