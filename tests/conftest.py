"""Fixtures of the library's tests. Session fixtures are shared: tests must not change them."""

import os
from dataclasses import fields

import pytest
import torch
from blobs import Blobs, blobs, fit
from fitted_zoo import FittedZoo
from shared_fixtures import *  # noqa: F403 (pytest finds them here)
from torch import Tensor

import trustgp
from trustgp.executors import FitContext, Ray
from trustgp.executors.progress import reporting
from trustgp.experts.witness import WitnessState
from trustgp.experts.witness_fit import find_witness
from trustgp.state.expert_tensors import mixture_tensors, witness_tensors

# else Ray's workers have a lower priority than the tests
os.environ.setdefault("RAY_worker_niceness", "0")


# The slowest files, the slowest first, so that the last ones are short.
SLOW = [
    "test_docs.py", "test_compiled.py", "test_14_lost_workers.py", "test_matrix.py", "test_12_killed_fit.py",
    "test_10_degenerate_data.py", "test_07_estimator_checks.py", "test_40_updates.py", "test_thinning.py",
    "test_fit.py", "test_38_global_state.py", "test_several_networks.py", "test_21_memorised.py",
    "test_witness_fit.py", "test_runtime.py", "test_budget.py", "test_ablation.py", "test_transfer.py",
    "test_contract.py", "test_classification.py", "test_examples.py",
]  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow files first; the others stay in their order."""
    items.sort(key=lambda item: SLOW.index(item.path.name) if item.path.name in SLOW else len(SLOW))


@pytest.fixture(scope="session")
def fitted_zoo() -> FittedZoo:
    """Twelve fitted models, by name: see fitted_zoo.py."""
    return FittedZoo()


@pytest.fixture(scope="module")
def blob() -> Blobs:
    """A small classification case."""
    return blobs()


@pytest.fixture(scope="module")
def blob_model(blob) -> trustgp.UncertaintyModel:
    """Its model: one for each module, whose tests may give it a threshold."""
    return fit(blob)


@pytest.fixture(scope="session")
def find():
    """A function that fits a witness to (inputs, targets) on this CPU, quietly."""

    def fit(inputs, targets, *, room=None, seed=0, workers=2, **setting) -> WitnessState | None:
        with reporting(enabled=False) as reporter:
            context = FitContext(torch.device("cpu"), seed, trustgp.Threads(workers), reporter)
            return find_witness(trustgp.Rows(inputs, targets), trustgp.Witness(**setting), context, room)

    return fit


@pytest.fixture(scope="session")
def state_of():
    """Every tensor of a model, by name."""

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


class TwoNodes:
    """A simulated Ray cluster with a CPU on each of two nodes."""

    def __init__(self) -> None:
        import ray
        from ray.cluster_utils import Cluster

        ray.shutdown()  # that of an example
        head = {**NODE, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.second = self.cluster.add_node(**NODE)
        ray.init(self.cluster.address, log_to_driver=False, logging_level="ERROR")

    def replace_second(self) -> None:
        """Remove the second node without warning, and add another."""
        self.cluster.remove_node(self.second, allow_graceful=False)
        self.second = self.cluster.add_node(**NODE)


NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="session")
def two_nodes():
    """The simulated cluster, to which this process is connected."""
    ray = pytest.importorskip("ray", reason='ray is not installed: pip install "trustgp[ray]"')
    nodes = TwoNodes()
    yield nodes
    ray.shutdown()
    nodes.cluster.shutdown()


@pytest.fixture
def ray_workers(two_nodes) -> Ray:
    """Two workers, which are other processes."""
    return Ray(workers=2)
