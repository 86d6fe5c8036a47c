"""Data as people have it: frames and series, mappings, loaders of dicts or triples."""

from collections import UserDict
from decimal import Decimal

import numpy as np
import pytest
import torch
from reliability.helpers import mlp, quiet_fit, rows, trained
from torch import nn
from torch.utils.data import DataLoader, Dataset

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
    """A float32 network with two inputs and outputs, and its model."""
    network, x, y = trained(60, dtype=torch.float32)
    return network, x, y, quiet_fit(network, (x, y.double()), num_experts=1)


def frame(library, x, y):
    """Inputs and targets as the columns of one frame, float64 as people have them."""
    table = np.concatenate([x.double().numpy(), y.double().numpy()], axis=1)
    return library.DataFrame({name: table[:, i] for i, name in enumerate([*INPUTS, *TARGETS])})


@LIBRARIES
def test_a_frame_gives_the_model_that_tensors_give(case, library):
    network, x, y, model = case
    data = frame(library, x, y)
    found = quiet_fit(network, (data[INPUTS], data[TARGETS]), num_experts=1)
    assert torch.equal(found.predict(data[INPUTS]).variance, model.predict(x).variance)
    assert torch.equal(model.predict(data[INPUTS]).mean, network(x))


@LIBRARIES
def test_frames_serve_wherever_rows_are_taken(case, library):
    network, x, y, _ = case
    data, more = frame(library, x[:40], y[:40]), frame(library, x[40:], y[40:])
    held = (more[INPUTS], more[TARGETS])
    model = quiet_fit(network, (data[INPUTS], data[TARGETS]), validation=held, num_experts=1)
    y = y.double()  # as the frame has them
    plain = quiet_fit(network, (x[:40], y[:40]), validation=(x[40:], y[40:]), num_experts=1)
    assert torch.equal(model.predict(x).variance, plain.predict(x).variance)
    score = trustgp.evaluate(plain, (x, y), ood=x + 9, progress=False)
    framed = frame(library, x, y), frame(library, x + 9, y)[INPUTS]
    found = trustgp.evaluate(model, (framed[0][INPUTS], framed[0][TARGETS]), ood=framed[1], progress=False)
    assert str(found) == str(score)
    said = trustgp.evaluate(model.predict(x), framed[0][TARGETS], progress=False)
    assert said.nll == found.nll
    assert model.threshold(framed[0][INPUTS], false_alarm=0.1) == plain.threshold(x, false_alarm=0.1)
    limits = model.conformal((framed[0][INPUTS], framed[0][TARGETS])).interval(framed[0][INPUTS])
    assert torch.equal(limits[0], plain.conformal((x, y)).interval(x)[0])
    model.update(held, progress=False)
    plain.update((x[40:], y[40:]), progress=False)
    assert torch.equal(model.predict(x).variance, plain.predict(x).variance)


@LIBRARIES
def test_a_series_is_a_vector_of_targets_or_groups(library):
    network, x, y = trained(60, outputs=1)
    data = frame(library, x, y.repeat(1, 2))
    labels = library.Series(["left", "right"] * 30)
    model = quiet_fit(network, (data[INPUTS], data["y"]), groups=labels, num_experts=1)
    plain = quiet_fit(network, (x, y), groups=torch.arange(60) % 2, num_experts=1)
    assert torch.equal(model.predict(x).variance, plain.predict(x).variance)


@LIBRARIES
def test_whole_numbers_become_what_the_network_needs(library):
    data = library.DataFrame({"a": [1, 2, 3], "b": [4, 5, 6]})
    assert as_inputs(data).dtype == torch.int64
    assert as_inputs(data, mlp(2, 3, 2, dtype=torch.float32)).dtype == torch.float32
    assert as_inputs(data, mlp(2, 3, 2)).dtype == torch.float64
    words = nn.Sequential(nn.Embedding(7, 2), nn.Flatten(), nn.Linear(4, 1))
    assert as_inputs(data, words).dtype == torch.int64
    assert words(as_inputs(data, words)).shape == (3, 1)
    ids = torch.tensor([[1, 2]])
    assert as_inputs(ids, mlp(2, 3, 2)).dtype == torch.int64  # only frames are changed


@LIBRARIES
def test_columns_of_several_numeric_types_go_together(library):
    data = library.DataFrame({"a": [1, 2], "b": [True, False], "c": [0.5, 0.25], "d": [Decimal("1.5")] * 2})
    assert as_inputs(data).tolist() == [[1.0, 1.0, 0.5, 1.5], [2.0, 0.0, 0.25, 1.5]]


@LIBRARIES
@pytest.mark.parametrize(
    "values", [["a", "b"], ["1.5", "2"], [[1.0], [2.0]], [None, "x"]], ids=["text", "digits", "lists", "some"]
)
def test_a_column_that_is_not_numeric_is_named(library, values):
    data = library.DataFrame({"a": [1.0, 2.0], "grip": values})
    with pytest.raises(ValueError, match=r"column 'grip' is not numeric.*return_inverse"):
        read_rows((data, [0.0, 1.0]), name="train")
    with pytest.raises(ValueError, match="series 'grip' is not numeric"):
        read_rows((torch.zeros(2, 1), data["grip"]), name="train")


def test_a_column_of_dates_or_one_that_stands_twice_is_named():
    dates = pd.DataFrame({"when": pd.date_range("2020-01-01", periods=2)})
    with pytest.raises(ValueError, match="column 'when' is not numeric: it holds datetime64"):
        as_inputs(dates)
    with pytest.raises(ValueError, match="column 'a' stands in the DataFrame twice"):
        as_inputs(pd.DataFrame([[1, 2]], columns=["a", "a"]))


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([1.0, None, 3.0, float("nan")]),
        pd.Series([1, None, 3, None], dtype="Int64"),
        pd.Series([True, None, False, None], dtype="boolean"),
        pd.Series([1, None, 3, pd.NA], dtype=object),
        pl.Series([1.0, None, 3.0, None]),
        pl.Series([1, None, 3, None]),
        pl.Series([True, None, False, None]),
        np.ma.masked_invalid([1.0, np.nan, 3.0, np.nan]),
    ],
    ids=["float", "Int64", "boolean", "object", "polars", "polars-int", "polars-bool", "masked"],
)
def test_missing_values_are_counted_with_the_first_row(column):
    with pytest.raises(ValueError, match="targets are NaN or infinite in 2 of 4 rows, first in row 1"):
        read_rows((torch.zeros(4, 1), column), name="train")


@LIBRARIES
def test_a_missing_value_at_predict_flags_its_row_only(case, library):
    _, x, _, model = case
    whole = model.predict(x[:3])
    values = x[:3].double().T.tolist()
    values[0][1] = None
    found = model.predict(library.DataFrame(dict(zip(INPUTS, values, strict=True))))
    assert found.valid.tolist() == [True, False, True]
    assert torch.allclose(found.variance[[0, 2]], whole.variance[[0, 2]])


def test_groups_with_a_missing_label_are_refused():
    known = read_rows((torch.zeros(3, 1), torch.zeros(3)), name="train")
    for labels in (pd.Series(["a", None, "b"]), pl.Series([1.0, None, 2.0])):
        with pytest.raises(ValueError, match="groups have no label in 1 of 3 rows, first in row 1"):
            check_groups(labels, known)


def test_the_index_of_a_frame_means_nothing(case):
    _, x, y, model = case
    data = frame(pd, x, y)[INPUTS]
    assert torch.equal(model.predict(data.set_index(data.index[::-1])).mean, model.predict(x).mean)


@LIBRARIES
def test_a_whole_frame_as_rows_is_told_how_to_split(case, library):
    network, x, y, _ = case
    data = frame(library, x, y)
    with pytest.raises(TypeError, match=r"train is a DataFrame with 'a', 'b', 'y', 'z'; pass \(inputs"):
        quiet_fit(network, data)
    split = read_rows(data, name="train", unpack=lambda one: (one[INPUTS], one[TARGETS]), network=network)
    assert torch.equal(split.inputs, x)


class Named(nn.Module):
    """Takes its inputs by name."""

    def __init__(self):
        super().__init__()
        self.inner = mlp(2, 3, 2)

    def forward(self, left, right):
        return self.inner(torch.stack([left, right], dim=1))


class Recordings(Dataset):
    """Rows as dicts, or as triples."""

    def __init__(self, x, y, *, triples=False):
        self.x, self.y, self.triples = x, y, triples

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        if self.triples:
            return self.x[i], self.y[i], i
        return {"left": self.x[i, 0], "right": self.x[i, 1], "label": self.y[i]}


def unpack(batch):
    return {key: batch[key] for key in ("left", "right")}, batch["label"]


def test_any_mapping_is_taken():  # such as the BatchEncoding of a tokenizer, a UserDict
    x, y = rows(60)
    network = Named().eval()
    inputs = {"left": x[:, 0], "right": x[:, 1]}
    model = quiet_fit(network, (UserDict(inputs), y), num_experts=1)
    plain = quiet_fit(network, (inputs, y), num_experts=1)
    assert torch.equal(model.predict(UserDict(inputs)).variance, plain.predict(inputs).variance)
    batch = UserDict({**inputs, "label": y})
    assert torch.equal(model.predict(batch, unpack=unpack).mean, network(**inputs))


def test_datasets_and_loaders_of_dicts_go_through_unpack_everywhere():
    x, y = rows(60)
    network = Named().eval()
    inputs = {"left": x[:, 0], "right": x[:, 1]}
    first, rest = Recordings(x[:40], y[:40]), DataLoader(Recordings(x[40:], y[40:]), batch_size=7)
    pairs = [({k: v[part] for k, v in inputs.items()}, y[part]) for part in (slice(40), slice(40, 60))]
    model = quiet_fit(network, first, validation=rest, unpack=unpack, num_experts=1)
    plain = quiet_fit(network, pairs[0], validation=pairs[1], num_experts=1)
    assert torch.equal(model.predict(inputs).variance, plain.predict(inputs).variance)
    assert len(read_rows(pairs[1], name="validation", unpack=unpack)) == 20  # what is a pair stays one
    held = trustgp.evaluate(model, rest, ood=rest, unpack=unpack, progress=False)
    assert held.nll == pytest.approx(trustgp.evaluate(plain, pairs[1], progress=False).nll)
    assert torch.allclose(model.predict(rest, unpack=unpack).variance, plain.predict(pairs[1]).variance)
    assert model.conformal(rest, unpack=unpack).counts.sum() == 20
    assert model.threshold(rest, false_alarm=0.1, unpack=unpack) > 0
    small = trustgp.compress(model, rank=2, validation=rest, unpack=unpack, progress=False)
    assert small.predict(inputs).valid.all()
    model.update(rest, unpack=unpack, progress=False)
    plain.update(pairs[1], progress=False)
    assert torch.equal(model.predict(inputs).variance, plain.predict(inputs).variance)


def test_triples_go_through_unpack_and_frames_in_chunks_too(case):
    _, x, y, _ = case
    triples = DataLoader(Recordings(x, y, triples=True), batch_size=7)
    found = read_rows(triples, name="train", unpack=lambda batch: batch[:2])
    assert torch.equal(found.inputs, x)
    data = frame(pd, x, y)
    lots = (data.iloc[i : i + 25] for i in range(0, len(data), 25))
    found = read_rows(
        lots, name="train", unpack=lambda lot: (lot[INPUTS], lot[TARGETS]), network=mlp(2, 3, 2)
    )
    assert torch.equal(found.inputs, x.double())


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        (None, TypeError, "batch 0 of train is a dict with 'left', 'right', 'label'; pass .*unpack=lambda"),
        (lambda batch: batch["joints"], ValueError, "unpack= failed on batch 0 of train, a dict .*'joints'"),
        (lambda batch: batch["left"], TypeError, "unpack= gave a Tensor for batch 0 of train; a pair"),
    ],
)
def test_batches_that_are_no_pairs_are_told_what_to_do(how, error, message):
    with pytest.raises(error, match=message):
        read_rows(Recordings(*rows(4)), name="train", unpack=how)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.array([["a"]]), "an array of <U1; numbers are needed"),
        (np.array([[None]]), "an array of object; numbers are needed"),
        ([[1.0, 2.0]], "inputs hold a float; pass a tensor, an array or a data frame"),
        (torch.eye(2).to_sparse(), "sparse_coo; a dense one is needed"),
        (torch.eye(2, device="meta"), "on the meta device"),
    ],
)
def test_what_holds_no_plain_numbers_is_refused(inputs, message):
    with pytest.raises((TypeError, ValueError), match=message):
        as_inputs(inputs)


def test_arrays_of_foreign_byte_order_or_odd_strides_are_taken():
    values = np.arange(6.0).reshape(3, 2)
    assert as_inputs(values.astype(">f4")).tolist() == values.tolist()
    packed = np.zeros(3, dtype=[("flag", "i1"), ("value", "f4")])
    packed["value"] = [1, 2, 3]
    assert as_inputs(packed["value"]).tolist() == [1.0, 2.0, 3.0]
