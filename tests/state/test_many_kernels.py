"""A kernel for each of many outputs: 300 of them are saved and loaded, too many refused before the fit."""

import pytest
from reliability.helpers import mlp, quiet_fit, rows

import trustgp
from trustgp.data.tensor_file import read, write
from trustgp.fitting import pipeline
from trustgp.state import model_file
from trustgp.state.expert_tensors import mixture_tensors, most_tensors


def test_too_many_kernels_are_refused_before_the_fit(monkeypatch):
    monkeypatch.setattr(model_file, "MAX_HEADER_BYTES", 20_000)
    monkeypatch.setattr(pipeline, "choose_plan", None)  # what would come next
    with pytest.raises(ValueError, match=r"kernels: 9, of .* could not be saved\. outputs='shared'"):
        quiet_fit(mlp(2, 3, 9), rows(30, outputs=9), outputs="separate", num_experts=1)


TANGENTS = {trustgp.LayerFactors(): "none", trustgp.JacobianRows(): "none", trustgp.Sketch(16): "4 MiB"}


@pytest.mark.parametrize(("tangents", "budget"), TANGENTS.items(), ids=str)
def test_what_is_counted_before_the_fit_is_no_less_than_what_is_saved(tmp_path, tangents, budget):
    network, (x, y) = mlp(2, 4, 3), rows(40, outputs=3)
    kinds = {"tangents": tangents, "outputs": "separate", "budget": budget}
    state = quiet_fit(network, (x, y), num_experts=2, **kinds).state
    counted = [most_tensors(mixture.tangents, x[:1]) for mixture in state.mixtures]
    assert len(set(counted)) == 1  # kernels are alike
    for mixture in state.mixtures:
        assert len(mixture_tensors(mixture)) <= counted[0] <= len(mixture_tensors(mixture)) + 2
    table = model_file.model_tensors(state)
    others = {name: value for name, value in table.items() if not name.startswith("mixture.")}
    assert len(others) <= model_file.MAX_OTHER_TENSORS
    model_file.check_savable([state.mixtures[0].tangents] * 300, x[:1])
    # of a fit with 300 outputs, which takes too long here, the tensors: none is left out by who reads them
    one = {name: value for name, value in table.items() if name.startswith("mixture.0.")}
    many = {name.replace("0", str(k), 1): value for k in range(300) for name, value in one.items()}
    write(tmp_path / "m", kind="k", text=model_file.model_text(state), tensors=many | others)
    assert read(tmp_path / "m", kind="k")[1].keys() == (many | others).keys()
    length = int.from_bytes((tmp_path / "m").read_bytes()[:8], "little")
    assert length <= model_file.ENTRY_BYTES * len(many | others)
