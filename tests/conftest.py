"""Small trained networks and their data. Session fixtures are shared: tests must not change them."""

from __future__ import annotations

import copy
import os
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from fitted_zoo import FittedZoo
from hypothesis import settings
from torch import Tensor, nn

import trustgp
from trustgp.executors import Executor, FitContext, Processes, Ray
from trustgp.executors.progress import reporting
from trustgp.experts.witness import WitnessState
from trustgp.experts.witness_fit import find_witness
from trustgp.state.expert_tensors import mixture_tensors, witness_tensors

# A first call into torch may take longer than hypothesis' deadline, and examples must not vary in CI.
settings.register_profile("trustgp", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("trustgp")

# Ray's workers would give way to the tests that run beside them, on two cores for minutes.
os.environ.setdefault("RAY_worker_niceness", "0")


# Files that take longest, the longest first: what begins last should be short.
SLOW = (
    "test_docs.py",
    "test_compiled.py",
    "test_14_lost_workers.py",
    "test_12_killed_fit.py",
    "test_16_memory.py",
    "test_distant.py",
    "test_runtime.py",
    "test_budget.py",
    "test_10_degenerate_data.py",
    "test_fit.py",
    "test_matrix.py",
    "test_tune.py",
    "test_ablation.py",
    "test_transfer.py",
    "test_contract.py",
    "test_classification.py",
    "test_examples.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow files first; the others stay in their order."""
    items.sort(key=lambda item: SLOW.index(item.path.name) if item.path.name in SLOW else len(SLOW))


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
        layers = [
            nn.Linear(inputs, width, bias=bias),
            activation(),
            nn.Linear(width, width, bias=bias),
            activation(),
            nn.Linear(width, outputs, bias=bias),
        ]
        network = nn.Sequential(*layers)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in network.parameters():
                fan_in = parameter.shape[-1]
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / fan_in**0.5)
        return network.to(dtype).eval()

    return make


def trained(network: nn.Module, inputs: Tensor, targets: Tensor, steps: int) -> nn.Module:
    """A few full-batch steps of Adam."""
    optimiser = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = (network(inputs).reshape(len(inputs), -1) - targets.reshape(len(inputs), -1)).square().mean()
        loss.backward()
        optimiser.step()
    for parameter in network.parameters():
        parameter.grad = None
    return network.eval()


def toy_rows(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Smooth functions of three inputs with noise of 0.1, rows in random order."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(n, 3, generator=generator, dtype=torch.float64) * 4 - 2
    clean = torch.stack([inputs[:, 0].sin() + inputs[:, 1], inputs[:, 1] * inputs[:, 2].cos()], dim=1)
    return inputs, clean + 0.1 * torch.randn(clean.shape, generator=generator, dtype=torch.float64)


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
def single_case(make_mlp) -> Case:
    """The same with one output."""
    inputs, targets = toy_rows(90, seed=2)
    return Case(trained(make_mlp(outputs=1), inputs, targets[:, :1], steps=150), inputs, targets[:, :1])


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
def fitted(fit_case) -> trustgp.UncertaintyModel:
    """A model of the case, with four experts."""
    return fit_case()


@pytest.fixture(scope="session")
def fitted_zoo() -> FittedZoo:
    """Twelve fitted models, by name: see fitted_zoo.py."""
    return FittedZoo()


@pytest.fixture(scope="session")
def find():
    """A function that finds a witness of (inputs, targets) on this CPU, quietly."""

    def found(inputs, targets, *, room=None, seed=0, workers=2, **setting) -> WitnessState | None:
        with reporting(enabled=False) as reporter:
            context = FitContext(torch.device("cpu"), seed, trustgp.Threads(workers), reporter)
            return find_witness(trustgp.Rows(inputs, targets), trustgp.Witness(**setting), context, room)

    return found


@pytest.fixture(scope="session")
def state_of():
    """Every tensor of a model, by name: what two equal models agree on to the bit."""

    def state(model: trustgp.UncertaintyModel) -> dict[str, Tensor]:
        table = {}
        for k, mixture in enumerate(model.mixtures):
            table |= {f"{k}.{name}": value for name, value in mixture_tensors(mixture).items()}
        for k, calibration in enumerate(model.calibrations):
            names = [field.name for field in fields(calibration)]
            table |= {f"calibration.{k}.{name}": getattr(calibration, name) for name in names}
        if model.witness is not None:
            table |= {f"witness.{name}": value for name, value in witness_tensors(model.witness).items()}
        return table

    return state


@pytest.fixture(scope="session")
def assert_same_state(state_of):
    """Two models agree on every tensor, to the bit."""

    def check(one: trustgp.UncertaintyModel, other: trustgp.UncertaintyModel) -> None:
        first, second = state_of(one), state_of(other)
        assert first.keys() == second.keys()
        different = [name for name in first if not torch.equal(first[name], second[name])]
        assert different == []

    return check


@pytest.fixture
def report():
    """A silent reporter."""
    with reporting(enabled=False) as reporter:
        yield reporter


@pytest.fixture
def own_network(case) -> nn.Module:
    """A copy of the case's network that a test may change."""
    return copy.deepcopy(case.network)


@pytest.fixture(scope="session")
def processes():
    """Two worker processes: starting them takes seconds, so all tests share them."""
    return Processes(2)


class TwoNodes:
    """A simulated Ray cluster with a CPU on each of two nodes."""

    def __init__(self) -> None:
        import ray
        from ray.cluster_utils import Cluster

        ray.shutdown()  # one that an example started
        head = {**NODE, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.second = self.cluster.add_node(**NODE)
        ray.init(self.cluster.address, log_to_driver=False, logging_level="ERROR")

    def replace_second(self) -> None:
        """Remove the second node as if its power had failed, and put another in its place."""
        self.cluster.remove_node(self.second, allow_graceful=False)
        self.second = self.cluster.add_node(**NODE)

    def close(self) -> None:
        """Leave the cluster, and end it."""
        import ray

        ray.shutdown()
        self.cluster.shutdown()


NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="session")
def two_nodes():
    """The simulated cluster, to which this process is connected."""
    pytest.importorskip("ray", reason='ray is not installed: pip install "trustgp[ray]"')
    nodes = TwoNodes()
    yield nodes
    nodes.close()


@pytest.fixture(params=["processes", "ray"])
def distant(request) -> Executor:
    """Each executor whose workers are other processes, two of them."""
    if request.param == "processes":
        return request.getfixturevalue("processes")
    request.getfixturevalue("two_nodes")
    return Ray(workers=2)
