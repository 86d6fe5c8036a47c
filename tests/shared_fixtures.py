"""Fixtures that the tests of the library and of the experiments share: small trained networks and their data.

Session fixtures are shared: tests must not change them.
"""

import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from draws import Draws
from hypothesis import settings
from tiny_networks import adam, seeded
from torch import Tensor, nn

import trustgp
from trustgp.cli import main

# A first call into torch may take longer than hypothesis' deadline, and examples must not vary in CI.
settings.register_profile("trustgp", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("trustgp")


class Case(NamedTuple):
    """A trained network and the rows it was trained on."""

    network: nn.Module
    inputs: Tensor
    targets: Tensor


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of the recordings; tests that need it are skipped where it is not there."""
    root = os.environ.get("TRUSTGP_DATA")
    if not root:
        pytest.skip("TRUSTGP_DATA is not set: it names the folder that holds the robot recordings.")
    if not Path(root).is_dir():
        pytest.skip(f"TRUSTGP_DATA={root} is not a folder.")
    return Path(root)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def make_mlp():
    """A function that makes a small MLP with seeded weights, in eval mode."""

    def make(inputs=3, width=8, outputs=2, *, activation=nn.Tanh, bias=True, dtype=torch.float64, seed=0):
        first, second = nn.Linear(inputs, width, bias=bias), nn.Linear(width, width, bias=bias)
        layers = first, activation(), second, activation(), nn.Linear(width, outputs, bias=bias)
        return seeded(nn.Sequential(*layers), seed).to(dtype).eval()

    return make


def trained(network: nn.Module, inputs: Tensor, targets: Tensor, steps: int) -> nn.Module:
    """A few full-batch steps of Adam."""
    targets = targets.reshape(len(inputs), -1)
    return adam(network, lambda net: (net(inputs).reshape_as(targets) - targets).square().mean(), steps, 0.02)


def toy_rows(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Smooth functions of three inputs with noise of 0.1, rows in random order."""
    draws = Draws(seed)
    inputs = draws.uniform(n, 3) * 4 - 2
    clean = torch.stack([inputs[:, 0].sin() + inputs[:, 1], inputs[:, 1] * inputs[:, 2].cos()], dim=1)
    return inputs, clean + 0.1 * draws.normal(clean.shape)


@pytest.fixture(scope="session")
def toy():
    """A function that gives n toy rows."""
    return toy_rows


@pytest.fixture(scope="session")
def case(make_mlp) -> Case:
    """A trained float64 network with two outputs and its 160 rows."""
    inputs, targets = toy_rows(160, seed=1)
    return Case(trained(make_mlp(), inputs, targets, steps=150), inputs, targets)


@pytest.fixture(scope="session")
def fit_case(case):
    """`trustgp.fit` on the case, quietly, with four experts unless told otherwise."""

    def fit(**options) -> trustgp.UncertaintyModel:
        options = {"num_experts": 4, "progress": False, **options}
        network = options.pop("network", case.network)
        train = options.pop("train", (case.inputs, case.targets))
        return trustgp.fit(network, train, **options)

    return fit


@pytest.fixture(scope="session")
def fit_experts(fit_case):
    """The same without a witness, which takes half of the time, unless a test asks for one."""
    return partial(fit_case, witness=None)


@pytest.fixture(scope="session")
def fitted(fit_case) -> trustgp.UncertaintyModel:
    """A model of the case, with four experts."""
    return fit_case()


@pytest.fixture(scope="module")  # two at once cannot run in one process
def browser():
    """Headless Chromium; skipped, with the reason, where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed.")
    paths = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    path = next(filter(None, paths), None)
    if path is None:
        pytest.skip("there is no Chromium here: apt-get install chromium.")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def interruptible():
    """Ctrl-C works, also in a background process, where a shell disables it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def error_line(capsys):
    """Runs a command that fails, and returns the one line that it prints."""

    def run(*arguments, status: int = 2) -> str:
        assert main(list(map(str, arguments))) == status
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert captured.err.startswith("trustgp: ")
        return captured.err

    return run
