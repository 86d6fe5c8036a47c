"""How a function gets to another process: whole, once, and with the data's memory uncopied."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import trustgp
from trustgp.data.rows import read_rows
from trustgp.data.trees import state_tensors
from trustgp.executors import FitContext, Threads
from trustgp.executors.pickling import OUT_OF_BAND, cached_function, pack, unpack
from trustgp.experts.gate import Division
from trustgp.experts.neighbours import Patchwork
from trustgp.fitting.divide import divide, precompute_features
from trustgp.fitting.options import FitOptions
from trustgp.fitting.prepare import Residuals, make_problems, prepare_network
from trustgp.fitting.solve import _solve_or_explain, make_tasks

LARGE = OUT_OF_BAND // 4


def given(value, task):
    return value


TENSORS = [
    torch.randn(2 * LARGE, generator=torch.Generator().manual_seed(0)).reshape(2, LARGE),
    torch.arange(2 * LARGE).bfloat16(),
    torch.arange(OUT_OF_BAND + 7) % 3 == 0,
    torch.arange(LARGE) * 1j,
    torch.tensor(2.5),
    torch.zeros(0, 5),
    torch.arange(2.0 * LARGE).reshape(2, LARGE).T,
    torch.arange(4.0 * LARGE).reshape(4, LARGE)[1:3],
    nn.Parameter(torch.arange(2.0 * LARGE)),
]


def test_a_tensor_arrives_with_its_values_dtype_and_layout():
    for tensor in TENSORS:
        arrived = unpack([bytes(part) for part in pack(partial(given, tensor))[0]])(None)
        assert torch.equal(arrived, tensor)
        assert (arrived.dtype, arrived.stride(), type(arrived)) == (
            tensor.dtype,
            tensor.stride(),
            type(tensor),
        )


def test_the_memory_of_large_tensors_is_not_copied_on_either_side():
    tensor = torch.arange(2.0 * LARGE)
    parts, _ = pack(partial(given, [tensor, tensor]))
    whole = np.frombuffer(parts[1], dtype=np.float32)
    assert whole.ctypes.data == tensor.data_ptr()
    assert len(parts) == 2  # it is there once
    assert len(parts[0]) < 1000
    first, second = unpack(parts)(None)
    assert first is second
    assert first.data_ptr() == tensor.data_ptr()


def test_a_part_of_a_large_tensor_travels_without_the_rest():
    tensor = torch.arange(100.0 * LARGE).reshape(100, LARGE)
    assert sum(len(part) for part in pack(partial(given, tensor[3]))[0]) < 2 * 4 * LARGE


def test_a_worker_unpacks_a_function_once_and_caches_one_at_a_time():
    parts = {name: pack(partial(given, [name]))[0] for name in "ab"}
    results = [cached_function(name, parts[name])(None) for name in "aabbab"]
    assert results == [["a"], ["a"], ["b"], ["b"], ["a"], ["b"]]
    assert [results[k] is results[k + 1] for k in range(5)] == [True, False, True, False, False]
    assert results[0] is not results[4]


KINDS = {
    "factors": trustgp.LayerFactors(),
    "rows": trustgp.JacobianRows(keep=40),
    "sketch": trustgp.Sketch(64),
}


@pytest.fixture(params=KINDS)
def problem_and_tasks(request, case, report):
    """What experts share, and their tasks, with everything in it that there may be."""
    rows = read_rows((case.inputs, case.targets), name="train")
    context = FitContext(torch.device("cpu"), 0, Threads(1), report)
    ready = prepare_network(case.network, rows, FitOptions.parse(tangents=KINDS[request.param]))
    residuals = Residuals(trustgp.Regression(), rows, "train").compute(ready.network, context)
    (problem,) = make_problems(ready.maps, rows, residuals, torch.arange(len(rows)) // 10, [])
    if problem.tangents.num_columns(expert=False) is not None:
        problem = replace(problem, cached=precompute_features(problem.tangents, rows, context, mapped=False))
    settings = {"division": Division(), "patchwork": Patchwork(), "cached": problem.cached}
    partition, _ = divide(problem.tangents, rows, 3, context, **settings)
    return problem, make_tasks(partition, 5)


def test_a_problem_that_has_travelled_gives_the_same_experts_to_the_bit(problem_and_tasks):
    problem, tasks = problem_and_tasks
    there = unpack([bytes(part) for part in pack(partial(_solve_or_explain, problem))[0]])
    for task in tasks:
        one, other = (state_tensors(solve(task)) for solve in (partial(_solve_or_explain, problem), there))
        assert len(one) == len(other) > 0
        assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(one, other, strict=True))
