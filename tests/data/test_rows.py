"""Rows from pairs, datasets, loaders and streams; views of rows; time series."""

import math
import warnings

import numpy as np
import pytest
import torch
from many import Many
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler
from torch.utils.data import TensorDataset as Pairs

from trustgp.data import chunking
from trustgp.data import rows as reading
from trustgp.data.chunking import chunks
from trustgp.data.fingerprint import rows_fingerprint
from trustgp.data.rows import ChosenRows, Rows, finite_rows, read_rows
from trustgp.data.trees import as_inputs, concatenate, count, leaves, map_tensors, structure, take

INPUTS, TARGETS = torch.arange(30.0).reshape(10, 3), torch.arange(10.0)[:, None]
PAIRS = Pairs(INPUTS, TARGETS)


class Nested(Dataset):
    """Rows as tensors, tuples or dicts."""

    def __init__(self, kind):
        self.kind = kind

    def __len__(self):
        return 10

    def __getitem__(self, i):
        x = INPUTS[i]
        return {"tensor": x, "tuple": (x, x[:1]), "dict": {"a": x, "b": x[:1]}}[self.kind], TARGETS[i]


STRUCTURES = {"tensor": "tensor", "tuple": "(tensor,tensor)", "dict": "{a:tensor,b:tensor}"}


@pytest.mark.parametrize("kind", STRUCTURES)
def test_datasets_and_loaders_are_read_whole_and_in_order(kind):
    for source in (DataLoader(Nested(kind), batch_size=3), Nested(kind)):
        rows = read_rows(source, name="train")
        assert structure(rows.inputs) == STRUCTURES[kind]
        assert torch.equal(leaves(rows.inputs)[0], INPUTS)
        assert torch.equal(rows.targets, TARGETS)
        assert rows.ordered


def test_a_shuffling_loader_keeps_inputs_and_targets_together():
    shuffled = DataLoader(PAIRS, batch_size=4, shuffle=True)
    for loader in (shuffled, DataLoader(PAIRS, batch_sampler=shuffled.batch_sampler)):
        rows = read_rows(loader, name="train")
        assert not rows.ordered
        assert torch.equal(rows.inputs[:, 0] / 3, rows.targets[:, 0])
        assert sorted(rows.targets[:, 0].tolist()) == TARGETS[:, 0].tolist()
    loader = DataLoader(PAIRS, batch_sampler=BatchSampler(SequentialSampler(PAIRS), 3, drop_last=False))
    assert read_rows(loader, name="train").ordered


def test_arrays_and_vectors_of_targets_are_taken_without_their_gradients():
    rows = read_rows((INPUTS.numpy(), TARGETS[:, 0].numpy()), name="train")
    assert torch.equal(rows.inputs, INPUTS)
    assert rows.targets.shape == (10, 1)
    assert torch.equal(as_inputs(np.arange(4.0)[::-1]), torch.tensor([3.0, 2.0, 1.0, 0.0]).double())
    inputs = INPUTS.clone().requires_grad_(True)
    assert not read_rows((inputs, TARGETS), name="train").inputs.requires_grad
    assert inputs.requires_grad


def after_two(odd):
    return lambda: iter([(INPUTS[:4], TARGETS[:4]), (INPUTS[4:], TARGETS[4:]), odd])


REFUSED = [  # sources, or what makes them, the exception and its message
    (INPUTS, TypeError, "pass .inputs, targets."),
    ((INPUTS, TARGETS, TARGETS), TypeError, "tuple"),
    ((INPUTS, TARGETS[:7]), ValueError, "10 inputs but 7 targets"),
    ((INPUTS, TARGETS[..., None]), ValueError, r"\(10, 1, 1\)"),
    ((INPUTS, [TARGETS]), ValueError, "tuple"),
    ((INPUTS[:0], TARGETS[:0]), ValueError, "no rows"),
    (((INPUTS, INPUTS[:4]), TARGETS), ValueError, r"\[4, 10\]"),
    ((torch.tensor(1.0), TARGETS), ValueError, "first dimension"),
    (("text", TARGETS), TypeError, "str"),
    (DataLoader(Pairs(INPUTS[:0], TARGETS[:0])), ValueError, "no rows"),
    (lambda: iter([]), ValueError, "train holds no rows"),
    *((one, TypeError, "iterable of batches") for one in ({"a": INPUTS}, "text", 7, [INPUTS] * 3)),
    (after_two((INPUTS[:2].double(), TARGETS[:2])), ValueError, r"batch 2 of train holds .*float64\[3\]"),
    (after_two((INPUTS[:2, :2], TARGETS[:2])), ValueError, r"batch 2 .*t32\[2\].* first .*t32\[3\]"),
    (after_two(((INPUTS[:2],), TARGETS[:2])), ValueError, r"batch 2 of train holds .*\(tensor\)"),
    (after_two((INPUTS[:2], TARGETS[:2, 0])), ValueError, "batch 2 of train holds"),
    (after_two((INPUTS[:2], TARGETS[:3])), ValueError, "batch 2 of train has 2 inputs but 3 targets"),
    (after_two((INPUTS[:2], TARGETS[:2], TARGETS[:2])), TypeError, "batch 2 of train is a tuple of 3; pass"),
    (after_two(INPUTS[:2]), TypeError, "batch 2 of train is a Tensor; pass"),
    (Rows(INPUTS, torch.full((10, 1), torch.nan)), ValueError, "NaN"),
]


def test_sources_that_are_not_rows_are_refused_with_what_to_pass():
    with Many() as check:
        for source, error, message in REFUSED:
            with check(message), pytest.raises(error, match=message):
                read_rows(source() if callable(source) else source, name="train")


@pytest.mark.parametrize("limit", [0, 2**30])
def test_rows_that_are_not_finite_are_counted_and_named(limit, monkeypatch):
    monkeypatch.setattr(reading, "KEPT_BYTES", limit)
    for place, value in ((0, torch.nan), (1, torch.inf)):
        broken = [INPUTS.clone(), TARGETS.clone()]
        broken[place][4, 0] = broken[place][7, 0] = value
        message = f"train {('inputs', 'targets')[place]} are NaN or infinite in 2 of 10 rows, first in row 4"
        for source in (tuple(broken), ((broken[0][i], broken[1][i]) for i in chunks(10, 5))):
            with pytest.raises(ValueError, match=message):
                read_rows(source, name="train")
    assert finite_rows((torch.arange(3), torch.tensor([0.0, torch.nan, 1.0]))).tolist() == [True, False, True]
    assert finite_rows(torch.arange(3)).all()


def test_nested_inputs_are_taken_and_joined_leaf_by_leaf():
    nested = {"a": INPUTS, "b": (TARGETS, INPUTS[:, :1])}
    index = torch.tensor([3, 0])
    assert torch.equal(take(nested, index)["b"][0], TARGETS[index])
    again = concatenate([take(nested, torch.arange(4)), take(nested, torch.arange(4, 10))])
    assert all(torch.equal(a, b) for a, b in zip(leaves(again), leaves(nested), strict=True))
    assert count(nested) == 10
    assert structure(map_tensors(torch.neg, nested)) == structure(nested)
    assert torch.equal(Rows(nested, TARGETS).take(index)["a"], INPUTS[index])


def test_only_ordered_smooth_rows_look_like_a_time_series(generator):
    steps = torch.linspace(0, 12, 400, dtype=torch.float64)
    inputs = torch.stack([(steps * (k + 1)).sin() for k in range(3)], dim=1)
    mixed = inputs[torch.randperm(400, generator=generator)]
    noise = torch.randn(400, 1, generator=generator, dtype=torch.float64)
    assert Rows(inputs, inputs[:, :1].cos()).looks_like_time_series(generator)
    assert not Rows(mixed, mixed[:, :1]).looks_like_time_series(generator)
    assert not Rows(inputs[:40], inputs[:40, :1]).looks_like_time_series(generator)
    assert not Rows(inputs, noise).looks_like_time_series(generator)
    assert not Rows(inputs, inputs, ordered=False).looks_like_time_series(generator)


def test_a_subset_has_the_rows_of_its_parent_without_a_copy():
    parent, chosen = Rows({"a": INPUTS, "b": torch.arange(10)}, TARGETS), torch.arange(10) % 3 == 0
    subset = parent.subset(chosen)
    assert isinstance(subset, ChosenRows)
    assert subset.whole is parent
    assert len(subset) == 4
    inputs, targets = subset.batch(torch.tensor([2, 0]))
    assert torch.equal(inputs["a"], INPUTS[[6, 0]])
    assert torch.equal(targets, TARGETS[[6, 0]])
    assert subset.inputs["b"].tolist() == subset.targets[:, 0].tolist() == [0, 3, 6, 9]
    assert subset.parent_indices(torch.tensor([1, 3])).tolist() == [3, 9]
    assert parent.parent_indices(torch.tensor([1, 3])).tolist() == [1, 3]
    assert subset.subset(torch.arange(4) > 1).inputs["b"].tolist() == [6, 9]
    other = Rows(map_tensors(torch.clone, parent.inputs), TARGETS)
    assert subset.rebind(other).whole is other
    assert parent.rebind(other) is other
    copied = Rows(take(parent.inputs, chosen.nonzero().flatten()), TARGETS[chosen])
    assert rows_fingerprint(subset, None) == rows_fingerprint(copied, None) != rows_fingerprint(parent, None)


class Stream(IterableDataset):
    """The same rows one after another, without a length."""

    def __iter__(self):
        yield from zip(INPUTS, TARGETS, strict=True)


class Batches:
    """An iterable of our own: batches, counted as they are read."""

    def __init__(self, size):
        self.size, self.read, self.passes = size, 0, 0

    def __iter__(self):
        self.passes += 1
        for index in chunks(10, self.size):
            self.read += 1
            yield INPUTS[index], TARGETS[index]


STREAMS = {
    "iterable dataset": Stream,
    "its loader": lambda: DataLoader(Stream(), batch_size=4),
    "iterable": lambda: Batches(3),
    "generator": lambda: (batch for batch in Batches(4)),
    "iterator": lambda: iter(Batches(10)),
    "arrays": lambda: map(lambda pair: [pair[0].numpy(), pair[1].numpy()], Batches(1)),
    "loader": lambda: DataLoader(PAIRS, batch_size=3),
}


@pytest.mark.parametrize("limit", [0, 50, 2**30])
def test_streams_are_read_once_whole_and_in_order_in_memory_or_in_a_file(limit, monkeypatch):
    monkeypatch.setattr(reading, "KEPT_BYTES", limit)
    with Many() as check:
        for name, source in STREAMS.items():
            with check(name):
                rows = read_rows(source(), name="train")
                assert torch.equal(rows.inputs, INPUTS)
                assert torch.equal(rows.targets, TARGETS)
                assert rows.ordered
    batches = Batches(3)
    read_rows(batches, name="train")
    assert (batches.passes, batches.read) == (1, 4)
    whole = {"b": (INPUTS, INPUTS.long()), "a": INPUTS[:, 0] > 9}
    rows = read_rows(((take(whole, i), TARGETS[i, 0]) for i in chunks(10, 3)), name="train")
    assert structure(rows.inputs) == structure(whole)
    for leaf, expected in zip(leaves(rows.inputs), leaves(whole), strict=True):
        assert leaf.dtype == expected.dtype
        assert torch.equal(leaf, expected)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_mapped_array_is_not_copied(tmp_path, order):
    """Not a byte of it, nothing warns of read-only memory, and the file is as it was."""
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
    INPUTS.numpy().tofile(tmp_path / "inputs")
    tensor = torch.from_file(str(tmp_path / "inputs"), size=30).reshape(10, 3)
    assert read_rows((tensor, TARGETS), name="train").inputs.data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("size", [1, 8, 33, 2**24])
def test_nothing_depends_on_the_bytes_that_are_looked_at_at_a_time(size, monkeypatch, generator):
    tensor = torch.randn(50, 4, generator=generator)
    tensor[torch.rand(50, 4, generator=generator) < 0.1] = torch.inf
    expected = rows_fingerprint(Rows(tensor, tensor), None)
    monkeypatch.setattr(chunking, "CHUNK_BYTES", size)
    assert torch.equal(finite_rows(tensor), torch.isfinite(tensor).all(dim=1))
    assert rows_fingerprint(Rows(tensor, tensor), None) == expected
    for shape in ((10,), (10, 0), (10, 3), (10, 2, 2), (0, 3), (1, 5)):
        tensor = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
        assert torch.equal(torch.cat(list(chunking.byte_chunks(tensor))), tensor)
        assert finite_rows(tensor).tolist() == [True] * shape[0]


def test_a_model_is_the_same_to_the_bit_whatever_its_rows_came_from(
    case, fit_case, assert_same_state, tmp_path, monkeypatch
):
    """Three fits: only a whole one shows that a checkpoint of tensors goes on with a stream of them."""
    whole = fit_case(checkpoint=tmp_path / "c")
    arrays = []
    for name, tensor in (("x", case.inputs), ("y", case.targets)):
        np.save(tmp_path / f"{name}.npy", tensor.numpy())
        arrays.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    assert_same_state(fit_case(train=tuple(arrays)), whole)
    monkeypatch.setattr(reading, "KEPT_BYTES", 1000)
    batches = ((case.inputs[i], case.targets[i]) for i in chunks(len(case.inputs), 7))
    assert_same_state(fit_case(train=batches, checkpoint=tmp_path / "c"), whole)
