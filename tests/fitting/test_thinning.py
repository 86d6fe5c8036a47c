"""Rows along a trajectory: validation rows or left-out groups choose every how many-th the experts have."""

import pytest
import torch
from draws import Draws
from tiny_networks import adam
from torch import nn

import trustgp
from trustgp.fitting import calibrate, pipeline
from trustgp.state.model_state import describe

SETTINGS = {"progress": False, "num_experts": 2}


def trajectory(n, seed):
    """A slow motion whose errors are those of the rows before: neighbours in time share them."""
    draws, time = Draws(seed), torch.arange(n)[:, None] / 60.0
    phase = 6.28 * draws.uniform(3, dtype=torch.float32)
    inputs = torch.sin(time * torch.tensor([0.31, 0.53, 0.77]) + phase)
    noise = draws.normal(n // 40 + 2, 2, dtype=torch.float32).T[None]
    drift = nn.functional.interpolate(noise, size=n, mode="linear")[0].T
    return inputs, torch.stack([inputs.sum(dim=1), inputs.prod(dim=1)], dim=1) + 0.1 * drift


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 2))
    x, y = trajectory(2400, 0)
    return adam(net, lambda net: (net(x) - y).square().mean(), 200, 1e-2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoint")


@pytest.fixture(scope="module")
def fitted(network, folder):
    """A function that fits the same model, with one checkpoint."""
    rows = {"train": trajectory(2400, 0), "validation": trajectory(600, 1)}
    return lambda: trustgp.fit(network, **rows, checkpoint=folder, **SETTINGS)


@pytest.fixture(scope="module")
def model(fitted):
    return fitted()


def test_consecutive_rows_are_thinned_and_the_model_is_that_of_the_thinned_rows(network, model):
    stride = model.state.provenance.stride
    assert stride > 1
    assert f"every {stride}th" in describe(model.state)
    inputs, targets = trajectory(2400, 0)
    rows = inputs[::stride], targets[::stride]
    alone = trustgp.fit(network, rows, validation=trajectory(600, 1), **SETTINGS)
    x = trajectory(300, 2)[0]
    torch.testing.assert_close(model.predict(x).variance, alone.predict(x).variance, rtol=1e-3, atol=0.0)
    assert model.state.provenance.rows == len(rows[0])


@pytest.mark.nightly
@pytest.mark.parametrize("room", [0, 2**30])
def test_validation_rows_pass_through_the_network_once_where_there_is_room(network, model, monkeypatch, room):
    passes, network_pass = [], calibrate.network_pass
    monkeypatch.setattr(calibrate, "working_set", lambda _: room)
    monkeypatch.setattr(calibrate, "network_pass", lambda *a: passes.append(1) or network_pass(*a))
    again = trustgp.fit(network, trajectory(2400, 0), validation=trajectory(600, 1), **SETTINGS)
    assert (len(passes) == 1) == bool(room)
    new = trajectory(20, 2)[0]
    assert torch.equal(again.predict(new).variance, model.predict(new).variance)


def test_rows_like_the_validation_rows_are_all_kept(network):
    x, y = trajectory(2400, 0)
    order = torch.randperm(2400, generator=torch.Generator().manual_seed(0))
    train, held_out = ((x[part], y[part]) for part in (order[:2000], order[2000:]))
    assert trustgp.fit(network, train, validation=held_out, **SETTINGS).state.provenance.stride == 1


def test_a_fit_that_thins_resumes_from_its_checkpoint(model, fitted, folder):
    files = {path: path.stat().st_mtime_ns for path in folder.glob("expert-*")}
    assert files
    again, x = fitted(), trajectory(50, 2)[0]
    assert {path: path.stat().st_mtime_ns for path in folder.glob("expert-*")} == files
    assert torch.equal(model.predict(x).variance, again.predict(x).variance)


def test_a_stride_is_saved_and_new_rows_are_thinned_by_it(network, model, tmp_path):
    model.save(tmp_path / "m.trustgp")
    loaded = trustgp.load(tmp_path / "m.trustgp", network)
    stride, rows = (getattr(loaded.state.provenance, name) for name in ("stride", "rows"))
    assert stride == model.state.provenance.stride
    new = trajectory(10 * stride, 3)
    loaded.update(new, train=trajectory(2400, 0), progress=False)
    model.update(new, progress=False)
    assert loaded.state.provenance.rows == model.state.provenance.rows == rows + 10
    with pytest.raises(ValueError, match="other rows"):
        trustgp.load(tmp_path / "m.trustgp", network).update(new, train=trajectory(2400, 5), progress=False)


@pytest.fixture(scope="module")
def motions():
    """The rows of six motions, and their groups."""
    rows = tuple(torch.cat(part) for part in zip(*(trajectory(300, k) for k in range(6)), strict=True))
    return rows, torch.arange(6).repeat_interleave(300)


@pytest.fixture(scope="module")
def grouped(network, motions):
    """A model of them."""
    return trustgp.fit(network, motions[0], groups=motions[1], **SETTINGS)


def test_left_out_groups_choose_without_validation_rows(network, motions, grouped, tmp_path):
    """A stride is chosen, but not for independent rows."""
    ((inputs, _), groups), model = motions, grouped
    assert model.state.provenance.stride == 8
    assert model.state.provenance.rows == 225
    assert "every 8th, as left-out groups chose" in str(model)
    model.save(tmp_path / "m.trustgp")
    assert "left-out groups" in str(trustgp.load(tmp_path / "m.trustgp", network))
    mixed = torch.randperm(1800, generator=torch.Generator().manual_seed(0))
    noise = 0.1 * torch.randn(1800, 2, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        independent = inputs[mixed], network(inputs[mixed]) + noise
    assert trustgp.fit(network, independent, groups=groups, **SETTINGS).state.provenance.stride == 1


@pytest.mark.nightly
def test_the_chosen_stride_predicts_new_motions_better_than_all_rows(network, motions, grouped, monkeypatch):
    monkeypatch.setattr(pipeline, "STRIDES", ())
    every = trustgp.fit(network, motions[0], groups=motions[1], **SETTINGS)
    new = [trajectory(300, 20 + k) for k in range(6)]
    losses = [sum(-float(one.predict(x).log_prob(y).mean()) for x, y in new) / 6 for one in (grouped, every)]
    assert losses[0] < losses[1] - 0.05
