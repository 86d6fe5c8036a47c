"""Promise 13: a checkpoint or a file of something else is refused, and the error names what differs."""

import copy
import shutil

import pytest
import torch
from many import Many
from reliability.forgeries import forge
from reliability.helpers import contents, mlp, quiet_fit, trained
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
    quiet_fit(data[0], data[1:], num_experts=3, checkpoint=folder).save(folder.with_suffix(".trustgp"))
    return folder


def _next(tensor, place):
    """One number changed by one bit."""
    changed = tensor.clone()
    changed.view(-1)[place] = torch.nextafter(changed.view(-1)[place], torch.tensor(9.0))
    return changed


def _other_weights(network):
    changed = copy.deepcopy(network)
    changed[0].bias.data = _next(changed[0].bias.data, 0)
    return changed


SETTINGS = [  # options of the second fit, and what the error names
    ({"seed": 1}, "seed"),
    ({"num_experts": 4}, "experts"),
    ({"outputs": "shared"}, "outputs"),
    ({"tangents": trustgp.LayerFactors()}, "tangents"),
    ({"tangents": trustgp.LayerFactors(parameters="last")}, "tangents, names"),
    ({"patchwork": trustgp.Patchwork(neighbours=1)}, "patchwork"),
    ({"patchwork": trustgp.Patchwork(fraction=0.2)}, "patchwork"),
    ({"division": trustgp.Division(components=3)}, "components"),
    ({"division": trustgp.Division(subset=30)}, "subset"),
    ({"budget": "10 MiB"}, "budget"),
    ({"groups": torch.arange(60) // 10}, "data"),
]


def refused(folder, network, train, expected, **options):
    before = contents(folder)
    with pytest.raises(trustgp.ArtifactError) as caught:
        quiet_fit(network, train, checkpoint=folder, **{"num_experts": 3, **options})
    assert f"another fit; different: {expected}." in str(caught.value)
    assert "Use another folder" in str(caught.value)
    assert contents(folder) == before


def test_another_fit_is_refused_by_what_differs(data, folder):
    network, x, y = data
    rows = {
        "input": (_next(x, -1), y),
        "target": (x, _next(y, 0)),
        "order": (x.flip(0), y.flip(0)),
        "fewer": (x[:-1], y[:-1]),
        "precision": (x, y.double()),
    }
    with Many() as check:
        for options, expected in SETTINGS:
            with check(expected):
                refused(folder, network, (x, y), expected, **options)
        for case, train in rows.items():
            with check(case):
                refused(folder, network, train, "data")
        with check("weights"):
            refused(folder, _other_weights(network), (x, y), "network")
        with check("several"):
            refused(folder, _other_weights(network), (2 * x, y), "network, data, seed", seed=7)


def test_another_version_is_refused_by_name(data, folder, tmp_path):
    """Other versions may round otherwise: experts of both would not be one model."""
    for name in ("torch", "trustgp"):
        copied = tmp_path / name
        shutil.copytree(folder, copied)

        def older(text, name=name):
            text["settings"][name] = "0.0.1"
            text["fingerprint"] = "0" * 63 + "1"

        note = copied / "fit.trustgp"
        note.write_bytes(forge(note.read_bytes(), text=older))
        refused(copied, data[0], data[1:], name)


def test_an_expert_from_elsewhere_is_solved_again(data, folder, tmp_path):
    """From another fit, under another's name, or damaged: each file has the fingerprint of its fit."""
    network, x, y = data
    expected = read(folder / "fit.trustgp", kind="trustgp-checkpoint")[0]["fingerprint"]
    files = sorted(folder.glob("expert-*"))
    texts = [read(path, kind="trustgp-expert")[0] for path in files]
    assert texts == [{"fingerprint": expected, "mixture": 0, "expert": number} for number in range(3)]
    other, mixed = tmp_path / "other", tmp_path / "mixed"
    quiet_fit(network, (x, y), num_experts=3, seed=5, checkpoint=other)
    shutil.copytree(folder, mixed)
    shutil.copy(other / files[0].name, mixed / files[0].name)
    shutil.copy(files[2], mixed / files[1].name)
    (mixed / files[2].name).write_bytes(b"damaged")
    quiet_fit(network, (x, y), num_experts=3, checkpoint=mixed).save(tmp_path / "mixed.trustgp")
    assert (tmp_path / "mixed.trustgp").read_bytes() == folder.with_suffix(".trustgp").read_bytes()
    assert contents(mixed) == contents(folder)


OTHERS = (
    _other_weights,
    lambda network: nn.Sequential(network[0], nn.ReLU(), network[2]).eval(),
    lambda network: mlp(2, 4, 2, dtype=torch.float32),  # wider
    lambda network: nn.Sequential(*[nn.Identity(), *copy.deepcopy(network)]).eval(),  # other names
)


def test_a_model_is_refused_with_another_network(saved):
    trustgp.load(saved.path, copy.deepcopy(saved.network))
    for other in OTHERS:
        with pytest.raises(trustgp.ArtifactError, match="fitted to another network"):
            trustgp.load(saved.path, other(saved.network))


def test_a_network_in_training_mode_is_refused(data, tmp_path):
    """Its outputs would be random, and its statistics would change while it predicts."""
    network = nn.Sequential(copy.deepcopy(data[0][0]), nn.Dropout(0.5), copy.deepcopy(data[0][2])).eval()
    quiet_fit(network, data[1:], num_experts=2).save(tmp_path / "m")
    with pytest.raises(ValueError, match=r"training mode; call network\.eval\(\)"):
        trustgp.load(tmp_path / "m", copy.deepcopy(network).train())
    trustgp.load(tmp_path / "m", network)
