"""The test file of SARCOS, as a small one made here."""

import numpy as np
import pytest
import torch
from scipy.io import savemat

from trustgp_experiments.datasets import load


@pytest.mark.parametrize("form", ["npz", "mat"])
def test_the_official_test_file_may_be_of_matlab_or_a_numpy_archive(tmp_path, form):
    rows = np.random.default_rng(0).normal(size=(20, 28))
    file = tmp_path / "sarcos_official" / f"sarcos_inv_test.{form}"
    file.parent.mkdir()
    if form == "mat":
        savemat(file, {"sarcos_inv_test": rows})
    else:
        np.savez(file, X=rows[:, :21], Y=rows[:, 21:])
    recording = load("sarcos_official", root=tmp_path)
    assert torch.equal(torch.cat([recording.inputs, recording.targets], dim=1), torch.from_numpy(rows))
