"""Predictions of four small fits, compared with stored ones; and stored files of each version."""

import pytest
import torch
from golden_cases import CASES, FOLDER, answers, fitted, kept, network_of
from reliability.forgeries import split

import trustgp
from trustgp.data.tensor_file import inside

# What was kept came from one machine's kernels; another sums in another order, and tau is found by a search.
CLOSE = {"rtol": 1e-6, "atol": 1e-9}
SEARCHED = {"rtol": 1e-5, "atol": 1e-8}  # of a detector nearly all is


def assert_stored(case, model, table, **close):
    for name, value in answers(case, model, table).items():
        close |= {"msg": lambda text, n=name: f"{n}: {text}"}
        torch.testing.assert_close(value, table[f"answers.{name}"], **close)


@pytest.mark.parametrize("case", CASES)
def test_a_fit_answers_as_it_did(case):
    if case == "detector":
        pytest.importorskip("transformers", reason="detectors come from transformers")
    table, close = kept(case), SEARCHED if case == "detector" else CLOSE
    _, model = fitted(case, table)
    assert_stored(case, model, table, **close)


@pytest.mark.filterwarnings("ignore:.*not printed as they were")  # another torch prints layers otherwise
def test_a_stored_file_predicts_as_stored(tmp_path):
    table, network = kept("sketch"), network_of("sketch")
    network.load_state_dict(inside(table, "weights."))
    model = trustgp.load(FOLDER / "sketch-3.trustgp", network)
    assert_stored("sketch", model, table, **CLOSE)
    model.save(tmp_path / "m")
    assert split((tmp_path / "m").read_bytes())[1]["version"] == 3
    with pytest.raises(trustgp.ArtifactError, match=r"trustgp 0\.1.*fit again"):
        trustgp.load(FOLDER / "sketch.trustgp", network)
