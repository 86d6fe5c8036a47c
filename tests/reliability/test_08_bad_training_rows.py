"""Promise 8: bad rows or labels at fit are refused with the count and the first row, before any work."""

import pytest
import torch
from blobs import blobs, fit
from pairwise import every_pair
from reliability.helpers import breaks, quiet_fit, trained
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from zoo import Net

import trustgp

pytestmark = pytest.mark.usefixtures("no_expert_work")
N = 200
BAD = [torch.nan, torch.inf, -torch.inf]


@pytest.fixture(scope="module")
def data():
    return trained(N)


def test_good_rows_do_reach_the_experts(data):
    """The guard of this file works."""
    with pytest.raises(AssertionError, match="work began"):
        quiet_fit(data[0], data[1:])


PLACES, WHERE = [[0], [199], [17, 18, 150]], ["inputs", "targets"]


@pytest.mark.parametrize(("value", "places", "where"), every_pair(BAD, PLACES, WHERE))
@pytest.mark.parametrize("name", ["train", "validation"])
def test_bad_rows_are_counted_and_the_first_is_named(data, value, places, where, name):
    network, x, y = data[0], data[1].clone(), data[2].clone()
    (x if where == "inputs" else y)[places, 1] = value
    rows = {"train": data[1:], name: (x, y)}
    message = rf"{name} {where} are NaN or infinite in {len(places)} of {N} rows, first in row {places[0]};"
    with pytest.raises(ValueError, match=message):
        quiet_fit(network, rows.pop("train"), **rows)


def test_bad_rows_in_a_loader_or_in_one_of_several_inputs_are_refused(data):
    network, x, y = data[0], data[1].clone(), data[2]
    x[120, 0] = torch.nan
    for source in (TensorDataset(x, y), DataLoader(TensorDataset(x, y), batch_size=33)):
        with pytest.raises(ValueError, match=r"1 of 200 rows, first in row 120;"):
            quiet_fit(network, source)
    a, b = torch.randn(N, 1), torch.randn(N, 2)
    b[7, 1] = torch.inf
    two = Net(lambda net, a, b: net.inner(torch.cat([a, b], dim=1)), inner=nn.Linear(3, 1)).eval()
    with pytest.raises(ValueError, match=r"train inputs are NaN or infinite in 1 of 200 .* in row 7;"):
        quiet_fit(two, ((a, b), torch.zeros(N, 1)))


KINDS = [None, trustgp.LayerFactors(), trustgp.JacobianRows()]


@pytest.mark.parametrize(("tangents", "value", "place"), every_pair(KINDS, BAD, [199, 100, 63, 30, 0]))
def test_bad_network_outputs_are_counted_and_the_first_is_named(data, tangents, value, place):
    network, x, y = data
    changed = x.clone()
    changed[[place, 150], 0] = 9.0
    first = min(place, 150)
    for name, rows in (("train", {"train": (changed, y)}), ("validation", {"validation": (changed, y)})):
        message = f"outputs on the {name} rows are NaN or infinite in 2 of {N} rows, first in row {first};"
        options = {"train": (x, y), "tangents": tangents, **rows}
        with pytest.raises(ValueError, match=message):
            quiet_fit(breaks(network, 8.0, value), options.pop("train"), **options)


LABELS = {
    "beyond": (lambda y: torch.where(torch.arange(300) == 17, 3, y), "1 of 300 rows, first 3 in row 17"),
    "below": (lambda y: y - 1, "first -1 in row"),
    "float": (lambda y: y.float(), "labels are torch.float32; class numbers are needed"),
    "soft": (lambda y: torch.full((300, 3), 1 / 3), r"a row: likelihood=MultiLabel\(\)"),
    "one-hot": (lambda y: torch.nn.functional.one_hot(y, 3), r"labels\.argmax\(dim=1\)"),
    "bool": (lambda y: y > 0, "labels are torch.bool"),
    "too few": (lambda y: y[:5], "300 inputs but 5 targets"),
    "empty": (lambda y: y[:0], "300 inputs but 0 targets"),
}


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("where", ["train", "validation"])
def test_labels_that_are_no_class_numbers_are_refused(blob, kind, where):
    change, message = LABELS[kind]
    inputs, labels = blob.train
    with pytest.raises(ValueError, match=message):
        fit(blob, **{where: (inputs, change(labels))})


def test_no_rows_a_third_class_for_one_logit_and_infinite_logits_are_refused(blob):
    with pytest.raises(ValueError, match="no rows"):
        fit(blob, train=(blob.train[0][:0], blob.train[1][:0]))
    two = blobs(2, logits=1)
    labels = torch.where(torch.arange(300) == 8, 2, two.train[1])
    with pytest.raises(ValueError, match=r"first 2 in row 8; the network has one logit, so only 0\.\.1"):
        fit(two, train=(two.train[0], labels))
    bad = (blob.train[0][:, 0] > 3.0).nonzero().flatten()
    message = f"NaN or infinite in {len(bad)} of 300 rows, first in row {int(bad[0])}"
    with pytest.raises(ValueError, match=message):
        fit(blob, network=breaks(blob.network, 3.0, torch.inf))
