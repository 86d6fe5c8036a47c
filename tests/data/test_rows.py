import math
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from trustgp.data import chunking
from trustgp.data import rows as spooling
from trustgp.data.chunking import chunks
from trustgp.data.fingerprint import rows_fingerprint
from trustgp.data.rows import Rows, finite_rows, read_rows, require_finite
from trustgp.data.trees import as_inputs, concatenate, count, leaves, map_tensors, structure, take

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
    assert Rows(inputs, inputs[:, :1].cos()).looks_like_time_series(generator)


def test_shuffled_few_or_noisy_rows_do_not_look_like_a_time_series(generator):
    inputs = walk(400)
    mixed = inputs[torch.randperm(400, generator=generator)]
    noise = torch.randn(400, 1, generator=generator, dtype=torch.float64)
    assert not Rows(mixed, mixed[:, :1]).looks_like_time_series(generator)
    assert not Rows(inputs[:40], inputs[:40, :1]).looks_like_time_series(generator)
    assert not Rows(inputs, noise).looks_like_time_series(generator)
    assert not Rows(inputs, inputs, ordered=False).looks_like_time_series(generator)


# -- large data --------------------------------------------------------------------------------------


class Stream(IterableDataset):
    """The same rows one after another, without a length."""

    def __iter__(self):
        yield from zip(INPUTS, TARGETS, strict=True)


class Lots:
    """An iterable of our own: batches, counted as they are read."""

    def __init__(self, size):
        self.size, self.read, self.passes = size, 0, 0

    def __iter__(self):
        self.passes += 1
        for index in chunks(10, self.size):
            self.read += 1
            yield INPUTS[index], TARGETS[index]


def generated(size):
    yield from Lots(size)


@pytest.mark.parametrize("limit", [0, 50, 2**30])
@pytest.mark.parametrize(
    "source",
    [
        lambda: Stream(),
        lambda: DataLoader(Stream(), batch_size=4),
        lambda: Lots(3),
        lambda: generated(4),
        lambda: iter(Lots(10)),
        lambda: map(lambda pair: [pair[0].numpy(), pair[1].numpy()], Lots(1)),
        lambda: DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=3),
    ],
    ids=["iterable-dataset", "its-loader", "iterable", "generator", "iterator", "arrays", "loader"],
)
def test_streams_are_read_whole_and_in_order_in_memory_or_in_a_file(source, limit, monkeypatch):
    monkeypatch.setattr(spooling, "KEPT_BYTES", limit)
    rows = read_rows(source(), name="train")
    assert torch.equal(rows.inputs, INPUTS)
    assert torch.equal(rows.targets, TARGETS)
    assert rows.ordered


def test_a_stream_is_read_in_a_single_pass():
    lots = Lots(3)
    read_rows(lots, name="train")
    assert (lots.passes, lots.read) == (1, 4)


@pytest.mark.parametrize("limit", [0, 2**30])
def test_nested_batches_keep_their_structure_in_a_file(limit, monkeypatch):
    monkeypatch.setattr(spooling, "KEPT_BYTES", limit)
    whole = {"b": (INPUTS, INPUTS.long()), "a": INPUTS[:, 0] > 9}
    rows = read_rows(((take(whole, i), TARGETS[i, 0]) for i in chunks(10, 3)), name="train")
    assert structure(rows.inputs) == structure(whole)
    for found, expected in zip(leaves(rows.inputs), leaves(whole), strict=True):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    assert torch.equal(rows.targets, TARGETS)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ((INPUTS[:2].double(), TARGETS[:2]), r"batch 2 of train holds .*float64\[3\]"),
        (
            (INPUTS[:2, :2], TARGETS[:2]),
            r"batch 2 of train holds .*float32\[2\].* first batch .*float32\[3\]",
        ),
        (((INPUTS[:2],), TARGETS[:2]), r"batch 2 of train holds .*\(tensor\)"),
        ((INPUTS[:2], TARGETS[:2, 0]), r"batch 2 of train holds"),
        ((INPUTS[:2], TARGETS[:3]), "batch 2 of train has 2 inputs but 3 targets"),
        ((INPUTS[:2], TARGETS[:2], TARGETS[:2]), "batch 2 of train is a tuple of 3; pass"),
        (INPUTS[:2], "batch 2 of train is a Tensor; pass"),
    ],
)
def test_a_batch_that_differs_from_the_earlier_ones_is_named(odd, message):
    batches = [(INPUTS[:4], TARGETS[:4]), (INPUTS[4:], TARGETS[4:]), odd]
    with pytest.raises((ValueError, TypeError), match=message):
        read_rows(iter(batches), name="train")


def test_a_stream_without_rows_is_refused():
    with pytest.raises(ValueError, match="train holds no rows"):
        read_rows(iter([]), name="train")


@pytest.mark.parametrize("source", [{"a": INPUTS}, "text", 7, INPUTS.numpy(), [INPUTS] * 3], ids=str)
def test_what_can_be_iterated_but_holds_no_batches_is_refused(source):
    with pytest.raises(TypeError, match="an iterable of batches"):
        read_rows(source, name="train")


def test_rows_of_a_stream_that_are_not_finite_are_counted(monkeypatch):
    monkeypatch.setattr(spooling, "KEPT_BYTES", 0)
    broken = INPUTS.clone()
    broken[4, 0] = broken[7, 1] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinite in 2 of 10 rows, first in row 4"):
        read_rows(iter([(broken[:5], TARGETS[:5]), (broken[5:], TARGETS[5:])]), name="train")


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_mapped_array_stays_where_it_is(tmp_path, order):
    """Not a byte of it is copied, nothing warns of read-only memory, and the file is as it was."""
    np.save(tmp_path / "inputs.npy", np.asarray(INPUTS.numpy(), order=order))
    before = (tmp_path / "inputs.npy").read_bytes()
    mapped = np.load(tmp_path / "inputs.npy", mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = read_rows((mapped, TARGETS), name="train")
    assert rows.inputs.data_ptr() == mapped.ctypes.data
    assert torch.equal(rows.inputs, INPUTS)
    assert rows_fingerprint(rows, None) == rows_fingerprint(Rows(INPUTS, TARGETS), None)
    assert (tmp_path / "inputs.npy").read_bytes() == before


def test_a_tensor_on_a_file_stays_where_it_is(tmp_path):
    INPUTS.numpy().tofile(tmp_path / "inputs")
    mapped = torch.from_file(str(tmp_path / "inputs"), size=30).reshape(10, 3)
    rows = read_rows((mapped, TARGETS), name="train")
    assert rows.inputs.data_ptr() == mapped.data_ptr()


@pytest.mark.parametrize("shape", [(10,), (10, 0), (10, 3), (10, 2, 2), (0, 3), (1, 5)])
@pytest.mark.parametrize("size", [1, 8, 2**24])
def test_pieces_of_a_tensor_cover_its_rows_in_order(shape, size, monkeypatch):
    monkeypatch.setattr(chunking, "CHUNK_BYTES", size)
    tensor = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    assert torch.equal(torch.cat(list(chunking.byte_chunks(tensor))), tensor)
    assert finite_rows(tensor).tolist() == [True] * shape[0]


def test_what_is_seen_of_the_rows_does_not_depend_on_the_pieces(monkeypatch, generator):
    tensor = torch.randn(50, 4, generator=generator).where(
        torch.rand(50, 4, generator=generator) > 0.1, torch.inf
    )
    finite, print_of = finite_rows(tensor), rows_fingerprint(Rows(tensor, tensor), None)
    monkeypatch.setattr(chunking, "CHUNK_BYTES", 33)
    assert torch.equal(finite_rows(tensor), finite)
    assert torch.equal(finite, torch.isfinite(tensor).all(dim=1))
    assert rows_fingerprint(Rows(tensor, tensor), None) == print_of


def test_rows_that_are_split_off_may_lie_in_a_file(monkeypatch):
    monkeypatch.setattr(spooling, "KEPT_BYTES", 0)
    found = Rows(INPUTS, TARGETS).subset(torch.arange(10) % 3 == 0)
    assert torch.equal(found.inputs, INPUTS[::3])
    assert torch.equal(found.targets, TARGETS[::3])


def test_a_model_is_the_same_to_the_bit_whatever_its_rows_came_from(
    case, fit_case, assert_same_state, tmp_path, monkeypatch
):
    whole = fit_case(checkpoint=tmp_path / "c")
    arrays = []
    for name, tensor in (("x", case.inputs), ("y", case.targets)):
        np.save(tmp_path / f"{name}.npy", tensor.numpy())
        arrays.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    assert_same_state(fit_case(train=tuple(arrays)), whole)
    monkeypatch.setattr(spooling, "KEPT_BYTES", 1000)
    batches = ((case.inputs[i], case.targets[i]) for i in chunks(len(case.inputs), 7))
    assert_same_state(
        fit_case(train=batches, checkpoint=tmp_path / "c"), whole
    )  # a checkpoint of the same data
