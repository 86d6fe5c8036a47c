import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from trustgp.data import (
    Rows,
    as_inputs,
    chunks,
    concatenate,
    count,
    finite_rows,
    leaves,
    looks_like_time_series,
    map_tensors,
    read_rows,
    require_finite,
    structure,
    take,
)

INPUTS, TARGETS = torch.arange(30.0).reshape(10, 3), torch.arange(10.0)[:, None]


class Pairs(Dataset):
    """Rows as dicts and tuples."""

    def __init__(self, kind):
        self.kind = kind

    def __len__(self):
        return 10

    def __getitem__(self, i):
        inputs = {
            "tensor": INPUTS[i],
            "tuple": (INPUTS[i], INPUTS[i, :1]),
            "dict": {"a": INPUTS[i], "b": INPUTS[i, :1]},
        }
        return inputs[self.kind], TARGETS[i]


@pytest.mark.parametrize(
    ("kind", "text"), [("tensor", "tensor"), ("tuple", "(tensor,tensor)"), ("dict", "{a:tensor,b:tensor}")]
)
@pytest.mark.parametrize("loader", [False, True])
def test_datasets_and_loaders_are_read_whole_and_in_order(kind, text, loader):
    source = DataLoader(Pairs(kind), batch_size=3) if loader else Pairs(kind)
    rows = read_rows(source, name="train")
    assert structure(rows.inputs) == text
    assert torch.equal(leaves(rows.inputs)[0], INPUTS)
    assert torch.equal(rows.targets, TARGETS)
    assert rows.ordered


def test_a_shuffling_loader_keeps_inputs_and_targets_together():
    loader = DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=4, shuffle=True)
    rows = read_rows(loader, name="train")
    assert not rows.ordered
    assert torch.equal(rows.inputs[:, 0] / 3, rows.targets[:, 0])
    assert sorted(rows.targets[:, 0].tolist()) == TARGETS[:, 0].tolist()


def test_a_sequential_batch_sampler_is_in_order():
    data = TensorDataset(INPUTS, TARGETS)
    loader = DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 3, drop_last=False))
    assert read_rows(loader, name="train").ordered


def test_a_shuffling_batch_sampler_is_not_in_order():
    data = TensorDataset(INPUTS, TARGETS)
    loader = DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 3, drop_last=False))
    assert not read_rows(loader, name="train").ordered


def test_arrays_and_vectors_of_targets_are_taken():
    rows = read_rows((INPUTS.numpy(), TARGETS[:, 0].numpy()), name="train")
    assert torch.equal(rows.inputs, INPUTS)
    assert rows.targets.shape == (10, 1)


def test_arrays_with_negative_strides_are_taken():
    assert torch.equal(as_inputs(np.arange(4.0)[::-1]), torch.tensor([3.0, 2.0, 1.0, 0.0]).double())


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (INPUTS, TypeError, "pass .inputs, targets."),
        ((INPUTS, TARGETS, TARGETS), TypeError, "tuple"),
        ((INPUTS, TARGETS[:7]), ValueError, "10 inputs but 7 targets"),
        ((INPUTS, TARGETS[..., None]), ValueError, r"\(10, 1, 1\)"),
        ((INPUTS, [TARGETS]), ValueError, "tuple"),
        ((INPUTS[:0], TARGETS[:0]), ValueError, "no rows"),
        (((INPUTS, INPUTS[:4]), TARGETS), ValueError, r"\[4, 10\]"),
        ((torch.tensor(1.0), TARGETS), ValueError, "first dimension"),
        (("text", TARGETS), TypeError, "str"),
        (DataLoader(TensorDataset(INPUTS[:0], TARGETS[:0])), ValueError, "no rows"),
    ],
)
def test_sources_that_are_not_rows_are_refused(source, error, message):
    with pytest.raises(error, match=message):
        read_rows(source, name="train")


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("where", ["inputs", "targets"])
def test_rows_that_are_not_finite_are_counted_and_named(where, value):
    inputs, targets = INPUTS.clone(), TARGETS.clone()
    broken = {"inputs": inputs, "targets": targets}[where]
    broken[4, 0] = broken[7, 0] = value
    with pytest.raises(
        ValueError, match=f"train {where} are NaN or infinite in 2 of 10 rows, first in row 4"
    ):
        read_rows((inputs, targets), name="train")


def test_rows_made_by_the_user_are_checked_too():
    with pytest.raises(ValueError, match="NaN"):
        read_rows(Rows(INPUTS, torch.full((10, 1), torch.nan)), name="train")


def test_reading_shares_memory_but_never_gradients():
    inputs = INPUTS.clone().requires_grad_(True)
    rows = read_rows((inputs, TARGETS), name="train")
    assert not rows.inputs.requires_grad
    assert inputs.requires_grad


@pytest.mark.parametrize(("n", "size"), [(10, 3), (9, 3), (1, 5), (0, 4)])
def test_chunks_cover_every_row_once_in_order(n, size):
    parts = list(chunks(n, size))
    assert torch.cat([*parts, torch.empty(0, dtype=torch.int64)]).tolist() == list(range(n))
    assert all(0 < len(part) <= size for part in parts)


def test_nested_inputs_are_taken_and_joined_leaf_by_leaf():
    nested = {"a": INPUTS, "b": (TARGETS, INPUTS[:, :1])}
    index = torch.tensor([3, 0])
    part = take(nested, index)
    assert torch.equal(part["b"][0], TARGETS[index])
    again = concatenate([take(nested, torch.arange(4)), take(nested, torch.arange(4, 10))])
    assert all(torch.equal(a, b) for a, b in zip(leaves(again), leaves(nested), strict=True))
    assert count(nested) == 10
    assert structure(map_tensors(torch.neg, nested)) == structure(nested)
    assert torch.equal(Rows(nested, TARGETS).take(index)["a"], INPUTS[index])


def test_leaves_of_a_dict_come_by_their_keys_whatever_its_order():
    a, b, c = torch.zeros(2), torch.ones(2), torch.full((2,), 2.0)
    for inputs in ({"a": a, "b": (b, {"c": c})}, {"b": (b, {"c": c}), "a": a}):
        assert [int(leaf[0]) for leaf in leaves(inputs)] == [0, 1, 2]
    with pytest.raises(TypeError, match="inputs hold a str"):
        leaves({"a": a, "b": "text"})


def test_integers_are_always_finite():
    assert finite_rows((torch.arange(3), torch.tensor([0.0, torch.nan, 1.0]))).tolist() == [True, False, True]
    require_finite(torch.arange(3), "rows")


def walk(n: int, dims: int = 3) -> torch.Tensor:
    steps = torch.linspace(0, 12, n, dtype=torch.float64)
    return torch.stack([(steps * (k + 1)).sin() for k in range(dims)], dim=1)


def test_a_smooth_trajectory_looks_like_a_time_series(generator):
    inputs = walk(400)
    assert looks_like_time_series(Rows(inputs, inputs[:, :1].cos()), generator)


def test_shuffled_few_or_noisy_rows_do_not_look_like_a_time_series(generator):
    inputs = walk(400)
    mixed = inputs[torch.randperm(400, generator=generator)]
    noise = torch.randn(400, 1, generator=generator, dtype=torch.float64)
    assert not looks_like_time_series(Rows(mixed, mixed[:, :1]), generator)
    assert not looks_like_time_series(Rows(inputs[:40], inputs[:40, :1]), generator)
    assert not looks_like_time_series(Rows(inputs, noise), generator)
    assert not looks_like_time_series(Rows(inputs, inputs, ordered=False), generator)
