"""The likelihood of what queries have found."""

from __future__ import annotations

import pytest
import torch

from trustgp.likelihoods import KINDS, Classification, Finding
from trustgp.tangents import output_mixes


def test_the_kernel_of_pseudo_outputs_is_that_of_the_sum():
    ((mix, served),) = Finding().mixes("pseudo", 4, torch.Generator())
    assert torch.equal(mix, torch.ones(1, 4, dtype=torch.float64))
    assert torch.equal(served, torch.arange(4))


@pytest.mark.parametrize("outputs", ["shared", "separate"])
def test_other_kernels_are_those_of_classes(outputs):
    mine, theirs = (kind().mixes(outputs, 3, torch.Generator()) for kind in (Finding, Classification))
    for (a, _), (b, _) in zip(mine, theirs, strict=True):
        assert torch.equal(a, b)
    assert len(mine) == len(output_mixes(outputs, 3, torch.Generator()))


def test_it_is_read_back_by_its_name():
    assert KINDS[Finding.__name__](**Finding().settings()) == Finding()
