"""Small saved models, shared by the tests of this folder, which must not change them."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
import torch
from blobs import blobs, fit
from reliability.forgeries import Change, forge
from reliability.helpers import quiet_fit, trained
from torch import Tensor, nn

import trustgp
from trustgp.fitting import solve as solving


@dataclass(frozen=True)
class Saved:
    """A model on disk, with the network it was fitted to."""

    path: Path
    network: nn.Module
    inputs: Tensor

    @cached_property
    def content(self) -> bytes:
        return self.path.read_bytes()

    def forged(self, target: Path, **changes: Change) -> Path:
        """A copy after changes, see `forge`."""
        target.write_bytes(forge(self.content, **changes))
        return target

    def refusal(self, target: Path, content: bytes | None = None, **changes: Change) -> str:
        """The error of a load of these bytes, or of a copy after changes."""
        target.write_bytes(forge(self.content, **changes) if content is None else content)
        with pytest.raises(trustgp.ArtifactError) as caught:
            trustgp.load(target, self.network)
        assert target.name in str(caught.value)
        return str(caught.value)


def _saved(folder: Path, rows: int = 24, **options) -> Saved:
    network, x, y = trained(rows, dtype=torch.float32)
    quiet_fit(network, (x, y), num_experts=3, **options).save(folder / "model.trustgp")
    return Saved(folder / "model.trustgp", network, x)


@pytest.fixture(scope="session")
def gram_file(tmp_path_factory) -> Saved:
    """Experts that keep a Gram factor: about 20 KB."""
    return _saved(tmp_path_factory.mktemp("gram"), tangents=trustgp.LayerFactors())


@pytest.fixture(scope="session")
def span_file(tmp_path_factory) -> Saved:
    """Experts that keep a basis of chosen columns: about 15 KB. Requested by name, as are all files here."""
    tangents = trustgp.JacobianRows(keep=8, keep_per_expert=4)
    return _saved(tmp_path_factory.mktemp("span"), tangents=tangents)


@pytest.fixture(scope="session")
def witness_file(tmp_path_factory) -> Saved:
    """Experts and a witness of a few cells: about 30 KB."""
    return _saved(tmp_path_factory.mktemp("witness"), 60, witness=trustgp.Witness(rows=20))


@pytest.fixture(scope="session")
def classes_file(tmp_path_factory) -> Saved:
    """A classifier with a novelty threshold."""
    case, path = blobs(), tmp_path_factory.mktemp("classes") / "model.trustgp"
    model = fit(case)
    model.threshold(false_alarm=0.05)
    model.save(path)
    return Saved(path, case.network, case.test[0])


@pytest.fixture(params=["gram", "span"])
def saved(request) -> Saved:
    """Both in turn."""
    return request.getfixturevalue(f"{request.param}_file")


@pytest.fixture
def no_expert_work(monkeypatch):
    """Any of the costly stages fails the test."""

    def never(*arguments, **options):
        raise AssertionError("an expert's work began before the check")

    monkeypatch.setattr(solving, "divide", never)
    monkeypatch.setattr(solving, "solve_expert", never)


@pytest.fixture(autouse=True)
def one_thread():
    """Small matrices, one thread: other work on the machine then costs little."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
