"""Promise 13: a checkpoint or an artifact of something else is refused, and the error says what differs."""

from __future__ import annotations

import copy

import pytest
import torch
from reliability.helpers import forge_text, mlp, quiet_fit, trained
from torch import nn

import trustgp
from trustgp.data.tensor_file import read


@pytest.fixture(scope="module")
def data():
    return trained(60, width=5, dtype=torch.float32)


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    """The checkpoint of a fit that is done. Refusals leave it as it is."""
    folder = tmp_path_factory.mktemp("checkpoint")
    quiet_fit(data[0], data[1:], num_experts=3, checkpoint=folder)
    return folder


def contents(folder):
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


def _other_weights(network):
    changed = copy.deepcopy(network)
    with torch.no_grad():
        changed[0].bias[0] = torch.nextafter(changed[0].bias[0], torch.tensor(9.0))  # by one bit
    return changed


def _changed(tensor, place):
    changed = tensor.clone()
    changed.view(-1)[place] = torch.nextafter(changed.view(-1)[place], torch.tensor(9.0))
    return changed


SETTINGS = {
    "seed": ({"seed": 1}, "seed"),
    "experts": ({"num_experts": 4}, "experts"),
    "outputs": ({"outputs": "shared"}, "outputs"),
    "tangents": ({"tangents": trustgp.LayerFactors()}, "tangents"),
    "parameters": ({"tangents": trustgp.LayerFactors(parameters="last")}, "tangents, names"),
    "neighbours": ({"patchwork": trustgp.Patchwork(neighbours=1)}, "patchwork"),
    "fraction": ({"patchwork": trustgp.Patchwork(fraction=0.2)}, "patchwork"),
    "components": ({"division": trustgp.Division(components=3)}, "components"),
    "subset": ({"division": trustgp.Division(subset=30)}, "subset"),
    "budget": ({"budget": "10 MiB"}, "budget"),
    "groups": ({"groups": torch.arange(60) // 10}, "data"),
}


def _refused(folder, said, network, train, **options):
    before = contents(folder)
    with pytest.raises(trustgp.ArtifactError) as caught:
        quiet_fit(network, train, checkpoint=folder, **{"num_experts": 3, **options})
    assert f"different: {said}." in str(caught.value)
    assert "Use another folder" in str(caught.value)
    assert contents(folder) == before


@pytest.mark.parametrize("case", SETTINGS)
def test_other_settings_are_refused_by_name(data, folder, case):
    changed, said = SETTINGS[case]
    _refused(folder, said, data[0], data[1:], **changed)


def test_several_differences_are_all_named(data, folder):
    _refused(folder, "network, data, seed", _other_weights(data[0]), (data[1] * 2, data[2]), seed=7)


@pytest.mark.parametrize("case", ["input", "target", "order", "fewer", "precision"])
def test_other_data_are_refused(data, folder, case):
    network, x, y = data
    train = {
        "input": (_changed(x, -1), y),
        "target": (x, _changed(y, 0)),
        "order": (x.flip(0), y.flip(0)),
        "fewer": (x[:-1], y[:-1]),
        "precision": (x, y.double()),
    }[case]
    with pytest.raises(trustgp.ArtifactError, match=r"another fit; different: data"):
        quiet_fit(network, train, num_experts=3, checkpoint=folder)


def test_other_weights_are_refused(data, folder):
    _refused(folder, "network", _other_weights(data[0]), data[1:])


def test_the_same_call_is_accepted(data, folder):
    before = contents(folder)
    quiet_fit(copy.deepcopy(data[0]), (data[1].clone(), data[2].clone()), num_experts=3, checkpoint=folder)
    assert contents(folder) == before


@pytest.mark.parametrize("name", ["torch", "trustgp"])
def test_another_version_is_refused_by_name(data, tmp_path, name):
    """Other versions may round otherwise: experts of both would not be one model."""
    quiet_fit(data[0], data[1:], num_experts=3, checkpoint=tmp_path)
    note = tmp_path / "fit.trustgp"

    def older(text):
        text["settings"][name] = "0.0.1"
        text["fingerprint"] = "0" * 63 + "1"

    forge_text(note, note, older)
    _refused(tmp_path, name, data[0], data[1:])


def test_each_file_of_a_checkpoint_carries_the_fingerprint(folder):
    expected = read(folder / "fit.trustgp", kind="trustgp-checkpoint")[0]["fingerprint"]
    files = sorted(folder.glob("expert-*"))
    assert len(files) == 3
    for number, path in enumerate(files):
        text, _ = read(path, kind="trustgp-expert")
        assert text == {"fingerprint": expected, "mixture": 0, "expert": number}


def test_an_expert_from_elsewhere_is_solved_again(data, folder, tmp_path):
    """From another fit, under another's name, or damaged: none of them is believed."""
    network, x, y = data
    other = tmp_path / "other"
    quiet_fit(network, (x, y), num_experts=3, seed=5, checkpoint=other)
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for entry in folder.iterdir():
        (mixed / entry.name).write_bytes(entry.read_bytes())
    (mixed / "expert-000-00000.trustgp").write_bytes((other / "expert-000-00000.trustgp").read_bytes())
    (mixed / "expert-000-00001.trustgp").write_bytes((folder / "expert-000-00002.trustgp").read_bytes())
    (mixed / "expert-000-00002.trustgp").write_bytes(b"damaged")
    model = quiet_fit(network, (x, y), num_experts=3, checkpoint=mixed)
    model.save(tmp_path / "mixed.trustgp")
    quiet_fit(network, (x, y), num_experts=3).save(tmp_path / "whole.trustgp")
    assert (tmp_path / "mixed.trustgp").read_bytes() == (tmp_path / "whole.trustgp").read_bytes()
    assert contents(mixed) == contents(folder)


# -- loading with another network -------------------------------------------------------------------


def _wider(network):
    return mlp(2, 4, 2, dtype=torch.float32)


def _other_class(network):
    changed = copy.deepcopy(network)
    changed[1] = nn.ReLU()
    return changed


def _other_names(network):
    return nn.Sequential(*[nn.Identity(), *copy.deepcopy(network)]).eval()


OTHERS = [_other_weights, _wider, _other_class, _other_names]


@pytest.mark.parametrize("other", OTHERS, ids=lambda f: f.__name__)
def test_an_artifact_is_refused_with_another_network(saved, other):
    with pytest.raises(trustgp.ArtifactError, match="fitted to another network"):
        trustgp.load(saved.path, other(saved.network))


def test_an_artifact_is_accepted_with_a_copy(saved):
    trustgp.load(saved.path, copy.deepcopy(saved.network))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.LeakyReLU(0.1), nn.LeakyReLU(0.2)),
        (nn.ELU(1.0), nn.ELU(0.5)),
        (nn.GELU(), nn.GELU(approximate="tanh")),
        (nn.Softplus(1.0), nn.Softplus(2.0)),
    ],
    ids=lambda layer: str(layer),
)
def test_a_setting_that_no_tensor_holds_counts_too(data, tmp_path, one, other):
    network = nn.Sequential(copy.deepcopy(data[0][0]), one, copy.deepcopy(data[0][2])).eval()
    quiet_fit(network, data[1:], num_experts=2).save(tmp_path / "m")
    changed = nn.Sequential(network[0], other, network[2]).eval()
    with pytest.raises(trustgp.ArtifactError, match="fitted to another network"):
        trustgp.load(tmp_path / "m", changed)


def test_a_buffer_counts_too(data, tmp_path):
    def normed():
        network = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
        for layer, source in ((network[0], mlp(2, 4, 2)[0]), (network[3], mlp(2, 4, 2)[2])):
            layer.load_state_dict(source.float().state_dict())
        return network.eval()

    network, other = normed(), normed()
    other[1].running_mean[0] = 0.5
    quiet_fit(network, data[1:], num_experts=2).save(tmp_path / "m")
    trustgp.load(tmp_path / "m", normed())
    with pytest.raises(trustgp.ArtifactError, match="another network"):
        trustgp.load(tmp_path / "m", other)


def test_a_network_in_training_mode_is_refused(data, tmp_path):
    """Its outputs would be random, and its statistics would change while it predicts."""
    network = nn.Sequential(copy.deepcopy(data[0][0]), nn.Dropout(0.5), copy.deepcopy(data[0][2])).eval()
    quiet_fit(network, data[1:], num_experts=2).save(tmp_path / "m")
    with pytest.raises(ValueError, match=r"training mode; call network\.eval\(\)"):
        trustgp.load(tmp_path / "m", copy.deepcopy(network).train())
    trustgp.load(tmp_path / "m", network)


def test_rows_for_an_update_must_be_those_of_the_fit(saved):
    model = trustgp.load(saved.path, saved.network)
    new = (torch.zeros(2, 2), torch.zeros(2, 2))
    with pytest.raises(ValueError, match="other rows than those"):
        model.update(new, train=(saved.inputs + 1, torch.zeros(24, 2)), progress=False)
