"""Gradient rows and the paper's two stages of compression, against dense Jacobians in float64."""

import pytest
import torch
from reference import dense_jacobian, flat_parameters, largest_columns
from tangents.binding import assert_close, bound
from torch import nn
from zoo import NETWORKS, seeded
from zoo import make as make_zoo

from trustgp.tangents import JacobianRows, rows
from trustgp.tangents.rows import RowFeatures

EVERY = torch.empty(0, dtype=torch.int64)


def make(name):
    if name in NETWORKS:
        return make_zoo(name)
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double().eval(), seeded(6, 3)


def test_small_chunks_give_the_same_rows(monkeypatch):
    network, inputs = make("residual block")
    tangents, _ = bound(network, inputs, JacobianRows(keep_per_expert=5))
    whole, columns = tangents(inputs).rows, tangents.columns(inputs)
    monkeypatch.setattr(rows, "WORKING_SET", 2 * tangents.working_bytes())
    torch.testing.assert_close(tangents(inputs).rows, whole, rtol=1e-10, atol=1e-12)
    assert torch.equal(tangents.columns(inputs), columns)


def test_take_cat_select_and_tensors_keep_the_rows():
    features = RowFeatures(seeded(6, 9))
    index = torch.tensor([4, 0, 0])
    assert torch.equal(features.take(index).rows, features.rows[index])
    assert torch.equal(features.select(torch.tensor([8, 2])).rows, features.rows[:, [8, 2]])
    assert features.select(EVERY) is features
    assert torch.equal(RowFeatures.from_tensors(features.tensors()).rows, features.rows)
    parts = [features.take(torch.arange(2)), features.take(torch.arange(2, 6))]
    assert torch.equal(RowFeatures.cat(parts).rows, features.rows)
    assert features.explicit() is features.rows
    gram = features.rows @ features.rows.T
    assert_close(features.gram(parts[0]), gram[:, :2])
    assert_close(features.diag(), gram.diagonal())


def test_magnitude_and_taylor_keep_the_parameters_that_rank_highest():
    network, inputs = make("mlp")
    targets, jacobian = seeded(6, 2) + 1, dense_jacobian(network, inputs)
    magnitude, mix = bound(network, inputs, JacobianRows(keep=11))
    theta = flat_parameters(network)
    expected = theta.abs().argsort(descending=True)[:11].sort().values
    assert torch.equal(magnitude.kept, expected)
    dense = torch.einsum("kc,ncp->nkp", mix, jacobian)[:, :, expected].flatten(1)
    assert_close(magnitude(inputs).rows, dense)
    taylor, _ = bound(network, inputs, JacobianRows(keep=11, rank="taylor"), targets=targets)
    with torch.no_grad():
        error = network(inputs) - targets  # [n, C]
    # d/dtheta of mean_n 0.5 |f - y|^2 is mean_n (f - y) . J
    score = (theta * torch.einsum("nc,ncp->p", error, jacobian) / len(inputs)).abs()
    assert torch.equal(taylor.kept, score.argsort(descending=True)[:11].sort().values)
    assert not torch.equal(taylor.kept, magnitude.kept)


@pytest.mark.parametrize("outputs", ["shared", "pseudo"])
@pytest.mark.parametrize("keep", [None, 20])
def test_an_expert_keeps_the_columns_of_largest_summed_gradient(outputs, keep):
    network, inputs = make("mlp")
    tangents, mix = bound(network, inputs, JacobianRows(keep=keep, keep_per_expert=7), outputs)
    dense = torch.einsum("kc,ncp->nkp", mix, dense_jacobian(network, inputs))[:, :, tangents.kept]
    best = largest_columns(dense.flatten(1), 7, len(mix))
    width = len(tangents.kept)
    expected = torch.cat([best + k * width for k in range(len(mix))])
    assert torch.equal(tangents.columns(inputs), expected)


@pytest.mark.parametrize("tangents", [JacobianRows(), JacobianRows(keep=14), JacobianRows(keep_per_expert=7)])
def test_pseudo_targets_come_from_the_kept_columns(tangents):
    network, inputs = make("mlp")
    bound_map, mix = bound(network, inputs, tangents)
    columns = bound_map.columns(inputs)
    kept = bound_map.kept
    if columns.numel():
        kept = kept[columns[: len(columns) // len(mix)]]
    jacobian, theta = dense_jacobian(network, inputs), flat_parameters(network)
    expected = jacobian[:, :, kept] @ theta[kept]
    pseudo = bound_map.network.directional(inputs, bound_map.direction(columns))
    assert_close(pseudo, expected)


def test_widths_and_bytes_are_those_of_the_rows_and_a_restored_map_gives_the_same():
    network, inputs = make("mlp")
    settings = JacobianRows(keep=20, keep_per_expert=6)
    tangents, _ = bound(network, inputs, settings)
    made, columns = tangents(inputs).rows, tangents.columns(inputs)
    assert tangents.num_columns(expert=False) == made.shape[1]
    assert tangents.row_bytes() * 6 == made.numel() * made.element_size()
    assert tangents.num_columns(expert=True) == len(columns)
    again = JacobianRows(**settings.settings()).restore(tangents.network, tangents.state())
    assert torch.equal(again(inputs).rows, made)
    assert torch.equal(again.columns(inputs), columns)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 0}, "keep=0"),
        ({"keep_per_expert": -1}, "keep_per_expert=-1"),
        ({"keep": 99}, "between 1 and 32"),
        ({"keep": 5, "rank": "beauty"}, "magnitude"),
        ({"keep": 5, "keep_per_expert": 6}, "exceeds the 5"),
    ],
)
def test_impossible_settings_are_refused(options, message):
    network, inputs = make("mlp")
    with pytest.raises(ValueError, match=message):
        bound(network, inputs, JacobianRows(**options))
