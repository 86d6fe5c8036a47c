"""Tiny trained networks, and runs in a process of their own."""

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from draws import Draws
from tiny_networks import adam, seeded
from torch import Tensor, nn
from zoo import Net

import trustgp
from trustgp import Prediction

TESTS = Path(__file__).parents[1]
PATHS = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
ENVIRONMENT = {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"}
OUTPUTS = ("shared", "separate", "pseudo")


def mlp(inputs: int, width: int, outputs: int, *, dtype=torch.float64, seed: int = 0) -> nn.Sequential:
    """An MLP with one hidden layer and seeded weights, in eval mode."""
    network = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs))
    return seeded(network, seed).to(dtype).eval()


def breaks(network: nn.Module, limit: float, value: float = torch.nan) -> nn.Module:
    """Returns NaN, or another value, for rows whose first input is above a limit."""
    return Net(lambda net, x: torch.where(x[:, :1] > limit, value, net.network(x)), network=network).eval()


def rows(n: int, inputs: int = 2, outputs: int = 2, *, dtype=torch.float64, seed: int = 0):
    """n rows of smooth functions with a little noise, in random order."""
    draws = Draws(seed)
    x, frequencies = draws.uniform(n, inputs) * 4 - 2, draws.normal(inputs, outputs)
    noise = draws.normal(n, outputs)
    return x.to(dtype), ((x @ frequencies).sin() + 0.05 * noise).to(dtype)


def train(network: nn.Module, x: Tensor, y: Tensor, steps: int = 60) -> nn.Module:
    """A few full-batch steps of Adam."""
    return adam(network, lambda net: (net(x).reshape_as(y) - y).square().mean(), steps, 0.03)


def trained(n: int, inputs: int = 2, width: int = 3, outputs: int = 2, *, dtype=torch.float64, seed: int = 0):
    """A trained network, its inputs and its targets."""
    x, y = rows(n, inputs, outputs, dtype=dtype, seed=seed)
    return train(mlp(inputs, width, outputs, dtype=dtype, seed=seed), x, y), x, y


def quiet_fit(network: nn.Module, train: Any, **options) -> trustgp.UncertaintyModel:
    """`trustgp.fit` without bars."""
    return trustgp.fit(network, train, progress=False, **options)


def raw_bytes(tensor: Tensor) -> bytes:
    """The bits of a tensor, so that NaN equals NaN and 0 differs from -0."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def prediction_fields(prediction: Prediction, pick: Tensor | slice = slice(None)) -> dict[str, Tensor]:
    """Every public tensor of a prediction and of its two siblings, some rows of it."""
    table = {}
    for view in ("", "corrected", "plain"):
        one = getattr(prediction, view) if view else prediction
        names = [field.name for field in fields(one) if not field.name.startswith("_")]
        values = {name: getattr(one, name) for name in (*names, "variance", "std")}
        table |= {f"{view}.{k}": value[pick] for k, value in values.items() if isinstance(value, Tensor)}
    return table


def different_fields(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Names on which two tables do not agree to the bit."""
    assert one.keys() == other.keys()
    return [name for name in one if raw_bytes(one[name]) != raw_bytes(other[name])]


def python(code: str, *arguments: Any, **environment: str) -> str:
    """Run code in a process of its own, wait for it, and return what it printed."""
    command, options = [sys.executable, "-c", code, *map(str, arguments)], {"timeout": 300, "check": False}
    environment = {**ENVIRONMENT, **environment}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout


def in_a_fork(work: Callable[[], Any]) -> int:
    """Begin work in a fork of this process, and return its id. Only before torch has started threads."""
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def killed_when(work: Callable[[], Any], ripe: Callable[[], bool], delay: float) -> None:
    """Begin work in a fork of this process; kill it (-9) a little after `ripe` has become true."""
    child = in_a_fork(work)
    while not ripe() and os.waitpid(child, os.WNOHANG) == (0, 0):
        time.sleep(0.001)
    time.sleep(delay)
    with suppress(ProcessLookupError, ChildProcessError):  # it may have ended by itself
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def finished(work: Callable[[], Any]) -> float:
    """Do work in a fork of this process; how long it took."""
    began = time.perf_counter()
    _, status = os.waitpid(in_a_fork(work), 0)
    if status:
        raise SystemExit(f"a fork ended with status {status}")
    return time.perf_counter() - began


def listing(folder: Path) -> list[str]:
    """Names in a folder, hidden ones too."""
    return sorted(entry.name for entry in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    """Names and bytes of the files in a folder."""
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}
