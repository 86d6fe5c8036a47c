"""Data as people have it: frames and series, mappings, loaders of dicts or triples."""

from collections import UserDict
from decimal import Decimal

import numpy as np
import pytest
import torch
from many import Many
from reliability.helpers import mlp, quiet_fit, rows, trained
from torch import nn
from torch.utils.data import DataLoader, Dataset
from zoo import Net

import trustgp
from trustgp.data.rows import read_rows
from trustgp.data.split import check_groups
from trustgp.data.trees import as_inputs

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

LIBRARIES = pytest.mark.parametrize("library", [pd, pl], ids=["pandas", "polars"])
INPUTS, TARGETS = ["a", "b"], ["y", "z"]


@pytest.fixture(scope="module")
def case():
    """A float32 network with two inputs and outputs, 60 rows, and its model of the first 40."""
    network, x, y = trained(60, dtype=torch.float32)
    y = y.double()  # as a frame has them
    return network, x, y, quiet_fit(network, (x[:40], y[:40]), validation=(x[40:], y[40:]), num_experts=1)


def frame(library, x, y):
    """Inputs and targets as the columns of one frame, float64 as people have them."""
    table = np.concatenate([x.double().numpy(), y.double().numpy()], axis=1)
    return library.DataFrame({name: table[:, i] for i, name in enumerate([*INPUTS, *TARGETS])})


@pytest.mark.parametrize("library", [pd, pytest.param(pl, marks=pytest.mark.nightly)])
def test_frames_serve_wherever_rows_are_taken(case, library):
    """Every function that takes rows reads them on its own path; a cheaper test sees one of them only."""
    network, x, y, _ = case
    plain = quiet_fit(network, (x[:40], y[:40]), validation=(x[40:], y[40:]), num_experts=1)
    data, more, far = (frame(library, *pair) for pair in ((x[:40], y[:40]), (x[40:], y[40:]), (x + 9, y)))
    held, whole = (more[INPUTS], more[TARGETS]), frame(library, x, y)
    both = whole[INPUTS], whole[TARGETS]
    model = quiet_fit(network, (data[INPUTS], data[TARGETS]), validation=held, num_experts=1)
    assert torch.equal(model.predict(both[0]).variance, plain.predict(x).variance)
    assert torch.equal(model.predict(both[0]).mean, network(x))
    scores = trustgp.evaluate(model, both, ood=far[INPUTS], progress=False)
    assert str(scores) == str(trustgp.evaluate(plain, (x, y), ood=x + 9, progress=False))
    assert trustgp.evaluate(model.predict(x), both[1], progress=False).nll == scores.nll
    assert model.threshold(both[0], false_alarm=0.1) == plain.threshold(x, false_alarm=0.1)
    assert torch.equal(model.conformal(both).interval(both[0])[0], plain.conformal((x, y)).interval(x)[0])
    model.update(held, progress=False)
    plain.update((x[40:], y[40:]), progress=False)
    assert torch.equal(model.predict(x).variance, plain.predict(x).variance)


@LIBRARIES
def test_a_series_is_a_vector_of_targets_or_groups(library):
    x, y = rows(6)
    data = frame(library, x, y)
    read = read_rows((data[INPUTS], data["y"]), name="train")
    assert torch.equal(read.inputs, x)
    assert torch.equal(read.targets, y[:, :1])
    assert check_groups(library.Series(["left", "right"] * 3), read).tolist() == [0, 1] * 3


@LIBRARIES
def test_whole_numbers_become_what_the_network_needs(library):
    data = library.DataFrame({"a": [1, 2, 3], "b": [4, 5, 6]})
    assert as_inputs(data).dtype == torch.int64
    for dtype in (torch.float32, torch.float64):
        assert as_inputs(data, mlp(2, 3, 2, dtype=dtype)).dtype == dtype
    words = nn.Sequential(nn.Embedding(7, 2), nn.Flatten(), nn.Linear(4, 1))
    assert as_inputs(data, words).dtype == torch.int64
    assert words(as_inputs(data, words)).shape == (3, 1)
    assert as_inputs(torch.tensor([[1, 2]]), mlp(2, 3, 2)).dtype == torch.int64  # only frames are changed
    data = library.DataFrame({"a": [1, 2], "b": [True, False], "c": [0.5, 0.25], "d": [Decimal("1.5")] * 2})
    assert as_inputs(data).tolist() == [[1.0, 1.0, 0.5, 1.5], [2.0, 0.0, 0.25, 1.5]]


@LIBRARIES
def test_a_column_that_is_not_numeric_is_named(library):
    for values in (["a", "b"], ["1.5", "2"], [[1.0], [2.0]], [None, "x"]):
        data = library.DataFrame({"a": [1.0, 2.0], "grip": values})
        with pytest.raises(ValueError, match=r"column 'grip' is not numeric.*return_inverse"):
            read_rows((data, [0.0, 1.0]), name="train")
        with pytest.raises(ValueError, match="series 'grip' is not numeric"):
            read_rows((torch.zeros(2, 1), data["grip"]), name="train")


def test_missing_values_are_counted_with_the_first_row():
    columns = [
        pd.Series([1.0, None, 3.0, float("nan")]),
        pd.Series([1, None, 3, None], dtype="Int64"),
        pd.Series([True, None, False, None], dtype="boolean"),
        pd.Series([1, None, 3, pd.NA], dtype=object),
        *(pl.Series([a, None, b, None]) for a, b in ((1.0, 3.0), (1, 3), (True, False))),
        np.ma.masked_invalid([1.0, np.nan, 3.0, np.nan]),
    ]
    with Many() as check:
        for column in columns:
            with check(column.dtype), pytest.raises(ValueError, match="in 2 of 4 rows, first in row 1"):
                read_rows((torch.zeros(4, 1), column), name="train")
    read = read_rows((torch.zeros(3, 1), torch.zeros(3)), name="train")
    for labels in (pd.Series(["a", None, "b"]), pl.Series([1.0, None, 2.0])):
        with pytest.raises(ValueError, match="groups have no label in 1 of 3 rows, first in row 1"):
            check_groups(labels, read)


@LIBRARIES
def test_a_whole_frame_as_rows_is_refused_with_how_to_split_it(case, library):
    network, x, y, model = case
    data = frame(library, x, y)
    with pytest.raises(TypeError, match=r"train is a DataFrame with 'a', 'b', 'y', 'z'; pass \(inputs"):
        quiet_fit(network, data)
    for source in (data, (data[i : i + 25] for i in range(0, len(data), 25))):  # whole, and in chunks
        parts = {"unpack": lambda one: (one[INPUTS], one[TARGETS]), "network": network}
        assert torch.equal(read_rows(source, name="train", **parts).inputs, x)
    if library is pd:  # whose index has no meaning here
        reversed_index = data[INPUTS].set_index(data.index[::-1])
        assert torch.equal(model.predict(reversed_index).mean, model.predict(x).mean)


class Recordings(Dataset):
    """Rows as dicts."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"left": self.x[i, 0], "right": self.x[i, 1], "answer": self.y[i]}


def unpack(batch):
    return {key: batch[key] for key in ("left", "right")}, batch["answer"]


def test_datasets_loaders_and_mappings_of_dicts_go_through_unpack_everywhere():
    """Every function that takes rows unpacks them on its own path; a cheaper test sees one of them only."""
    x, y = rows(60)
    network = Net(lambda net, left, right: net.inner(torch.stack([left, right], dim=1)), inner=mlp(2, 3, 2))
    network, inputs = network.eval(), {"left": x[:, 0], "right": x[:, 1]}
    first, rest = Recordings(x[:40], y[:40]), DataLoader(Recordings(x[40:], y[40:]), batch_size=7)
    pairs = [({k: v[part] for k, v in inputs.items()}, y[part]) for part in (slice(40), slice(40, 60))]
    model = quiet_fit(network, first, validation=rest, unpack=unpack, num_experts=1)
    # a UserDict such as the BatchEncoding of a tokenizer is taken, too
    plain = quiet_fit(network, (UserDict(pairs[0][0]), y[:40]), validation=pairs[1], num_experts=1)
    assert torch.equal(model.predict(inputs).variance, plain.predict(UserDict(inputs)).variance)
    batch = UserDict({**inputs, "answer": y})
    assert torch.equal(model.predict(batch, unpack=unpack).mean, network(**inputs))
    assert len(read_rows(pairs[1], name="validation", unpack=unpack)) == 20  # what is a pair stays one
    scores = trustgp.evaluate(model, rest, ood=rest, unpack=unpack, progress=False)
    assert scores.nll == pytest.approx(trustgp.evaluate(plain, pairs[1], progress=False).nll)
    assert torch.allclose(model.predict(rest, unpack=unpack).variance, plain.predict(pairs[1]).variance)
    assert model.conformal(rest, unpack=unpack).counts.sum() == 20
    assert model.threshold(rest, false_alarm=0.1, unpack=unpack) > 0
    small = trustgp.compress(model, rank=2, validation=rest, unpack=unpack, progress=False)
    assert small.predict(inputs).valid.all()
    model.update(rest, unpack=unpack, progress=False)
    plain.update(pairs[1], progress=False)
    assert torch.equal(model.predict(inputs).variance, plain.predict(inputs).variance)


def read_dicts(how=None):
    return read_rows(Recordings(*rows(4)), name="train", unpack=how)


DATES = pd.DataFrame({"when": pd.date_range("2020-01-01", periods=2)})
TWICE = pd.DataFrame([[1, 2]], columns=["a", "a"])
REFUSED = [
    (read_dicts, "batch 0 of train is a dict with 'left', 'right', 'answer'; pass .*unpack="),
    (lambda: read_dicts(lambda batch: batch["joints"]), "unpack= failed on batch 0 .*'joints'"),
    (lambda: read_dicts(lambda batch: batch["left"]), "unpack= gave a Tensor for batch 0 of train; a pair"),
    (lambda: as_inputs(DATES), "column 'when' is not numeric: it holds datetime64"),
    (lambda: as_inputs(TWICE), "column 'a' occurs twice in the DataFrame"),
    (lambda: as_inputs(np.array([["a"]])), "an array of <U1; numbers are needed"),
    (lambda: as_inputs(np.array([[None]])), "an array of object; numbers are needed"),
    (lambda: as_inputs([[1.0, 2.0]]), "inputs hold a float; pass a tensor, an array or a data frame"),
    (lambda: as_inputs(torch.eye(2).to_sparse()), "sparse_coo; a dense one is needed"),
    (lambda: as_inputs(torch.eye(2, device="meta")), "on the meta device"),
]


def test_data_without_plain_numbers_is_refused_with_what_to_do():
    with Many() as check:
        for call, message in REFUSED:
            with check(message), pytest.raises((TypeError, ValueError), match=message):
                call()


def test_arrays_of_foreign_byte_order_or_odd_strides_are_taken():
    values = np.arange(6.0).reshape(3, 2)
    assert as_inputs(values.astype(">f4")).tolist() == values.tolist()
    packed = np.zeros(3, dtype=[("flag", "i1"), ("value", "f4")])
    packed["value"] = [1, 2, 3]
    assert as_inputs(packed["value"]).tolist() == [1.0, 2.0, 3.0]
