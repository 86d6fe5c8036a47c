"""One prior for all experts, found on rows of several."""

import copy

import pytest
import torch
from blobs import blobs, fit
from reference import dense_jacobian, flat_parameters

from trustgp.experts.expert import HIGHEST, LOWEST, prior_of
from trustgp.likelihoods import Classification
from trustgp.math.evidence import pooled_evidence


def test_the_prior_is_that_of_the_dense_kernel_and_pseudo_targets():
    case = blobs()
    network = copy.deepcopy(case.network).double()
    inputs, labels = case.train[0][:120].double(), case.train[1][:120]
    held = (case.validation[0].double(), case.validation[1])
    model = fit(case, network=network, train=(inputs, labels), validation=held, num_experts=1)
    mix = model.mixtures[0].tangents.mix
    jacobian = dense_jacobian(network, inputs)
    rows = torch.einsum("c,ncp->np", mix[0], jacobian)
    logits = network(inputs).detach()
    aim = jacobian @ flat_parameters(network) + Classification().residual(logits, labels[:, None])
    expected = pooled_evidence([(rows @ rows.T, aim @ mix.T)], lowest=LOWEST, highest=HIGHEST)
    found = prior_of(model.mixtures[0].experts)
    assert float(found.tau) == pytest.approx(float(expected.tau), rel=1e-6)
    assert float(found.scale) == pytest.approx(float(expected.scale), rel=1e-6)
