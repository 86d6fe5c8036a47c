"""Answers of four small fits, as they were kept, and a file that release 0.1.0 wrote."""

from __future__ import annotations

import pytest
import torch
from golden_cases import CASES, FOLDER, answers, fitted, kept, network_of

import trustgp

# What was kept came from one machine's kernels; another sums in another order, and tau is found by a search.
CLOSE = {"rtol": 1e-6, "atol": 1e-9}
SEARCHED = {"rtol": 1e-5, "atol": 1e-8}  # of a detector nearly all is


@pytest.mark.parametrize("case", CASES)
def test_a_fit_answers_as_it_did(case):
    if case == "detector":
        pytest.importorskip("transformers", reason="detectors come from transformers")
    table, close = kept(case), SEARCHED if case == "detector" else CLOSE
    _, model = fitted(case, table)
    for name, value in answers(case, model, table).items():
        torch.testing.assert_close(
            value, table[f"answers.{name}"], **close, msg=lambda text, n=name: f"{n}: {text}"
        )


def test_a_file_of_an_earlier_release_is_refused_with_the_release_that_reads_it():
    with pytest.raises(trustgp.ArtifactError, match=r"trustgp 0\.1.*fit again"):
        trustgp.load(FOLDER / "sketch.trustgp", network_of("sketch"))
