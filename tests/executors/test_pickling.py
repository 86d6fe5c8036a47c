"""How a function gets to another process: whole, once, and with the data's memory uncopied."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import trustgp
from trustgp.executors import Threads
from trustgp.executors.ray import OUT_OF_BAND, cached_function, pack, unpack

pytest.importorskip("ray", reason='ray is not installed: pip install "trustgp[ray]"')
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
        for about in (type, torch.Tensor.stride, lambda one: one.dtype):
            assert about(arrived) == about(tensor)


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


class Packing:
    """Packs and unpacks what it runs, as if the worker were elsewhere."""

    workers, nearby = 1, Threads(1)

    def run(self, function, tasks):
        there = unpack([bytes(part) for part in pack(function)[0]])
        return ((position, there(task)) for position, task in enumerate(tasks))


nightly = partial(pytest.param, marks=pytest.mark.nightly)
KINDS = trustgp.JacobianRows(keep=40), nightly(trustgp.LayerFactors()), nightly(trustgp.Sketch(64))


@pytest.mark.parametrize("kind", KINDS)
def test_experts_that_have_travelled_are_the_same_to_the_bit(kind, fit_case, assert_same_state):
    """Only a fit packs all that experts share."""
    fits = (fit_case(tangents=kind, executor=one, witness=None) for one in (Threads(1), Packing()))
    assert_same_state(*fits)
