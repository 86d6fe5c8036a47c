"""A witness as a table of tensors, and back."""

import pytest
import torch

from trustgp.data.tensor_file import ArtifactError, Reader
from trustgp.state.expert_tensors import read_witness, witness_tensors


@pytest.fixture(scope="module", params=[20, 750])
def state(request, find, toy):
    return find(*toy(120, seed=1), rows=request.param)


def reader(table) -> Reader:
    return Reader({f"w.{name}": value for name, value in table.items()}, where="here")


def test_the_table_is_read_back_to_the_bit(state, toy):
    table = witness_tensors(state)
    source = reader(table)
    again = read_witness(source, "w.", 2, 120)
    source.finish()  # nothing is left over
    other = witness_tensors(again)
    assert table.keys() == other.keys()
    assert all(torch.equal(table[name], other[name]) for name in table)
    inputs = toy(20, seed=2)[0]
    one, two = state(inputs), again(inputs)
    assert torch.equal(one.mean, two.mean)
    assert torch.equal(one.precision, two.precision)
    assert again.nbytes == state.nbytes


@pytest.mark.parametrize("name", ["offset", "centroids", "length", "neighbours", "floor", "sizes", "level"])
def test_a_tensor_that_is_missing_is_named(state, name):
    table = witness_tensors(state)
    del table[name]
    with pytest.raises(ArtifactError, match=f"'w.{name}' is missing"):
        read_witness(reader(table), "w.", 2, 120)


def test_outputs_and_rows_must_be_those_of_the_model(state):
    with pytest.raises(ArtifactError, match=r"'w.floor' has shape \(2,\), not \(3,\)"):
        read_witness(reader(witness_tensors(state)), "w.", 3, 120)
    with pytest.raises(ArtifactError, match=r"'w.rows' names rows beyond 0..118"):
        read_witness(reader(witness_tensors(state)), "w.", 2, 119)
