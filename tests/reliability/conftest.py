"""Small saved models, shared by the tests of this folder, which must not change them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from reliability.helpers import quiet_fit, trained
from torch import Tensor, nn

import trustgp


class Saved(NamedTuple):
    """A model on disk, with the network it was fitted to."""

    path: Path
    network: nn.Module
    inputs: Tensor


def _saved(folder: Path, tangents: trustgp.LayerFactors | trustgp.JacobianRows) -> Saved:
    network, x, y = trained(24, dtype=torch.float32)
    path = folder / "model.trustgp"
    quiet_fit(network, (x, y), num_experts=3, tangents=tangents).save(path)
    return Saved(path, network, x)


@pytest.fixture(scope="session")
def gram_file(tmp_path_factory) -> Saved:
    """Experts that keep a Gram factor: about 11 KB."""
    return _saved(tmp_path_factory.mktemp("gram"), trustgp.LayerFactors())


@pytest.fixture(scope="session")
def span_file(tmp_path_factory) -> Saved:
    """Experts that keep a basis of chosen columns: about 6 KB."""
    tangents = trustgp.JacobianRows(keep=8, keep_per_expert=4)
    return _saved(tmp_path_factory.mktemp("span"), tangents)


@pytest.fixture(scope="session")
def witness_file(tmp_path_factory) -> Saved:
    """Experts and a witness of a few cells: about 30 KB."""
    network, x, y = trained(60, dtype=torch.float32)
    path = tmp_path_factory.mktemp("witness") / "model.trustgp"
    model = quiet_fit(network, (x, y), num_experts=2, witness=trustgp.Witness(rows=20))
    assert model.witness is not None
    assert len(model.witness.sizes) > 2
    model.save(path)
    return Saved(path, network, x)


@pytest.fixture(params=["gram", "span"])
def saved(request) -> Saved:
    """Both in turn."""
    return request.getfixturevalue(f"{request.param}_file")


@pytest.fixture(autouse=True)
def one_thread():
    """Small matrices, one thread: other work on the machine then costs little."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
