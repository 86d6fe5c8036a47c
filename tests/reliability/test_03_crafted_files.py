"""Promise 3: files with a correct checksum but wrong contents are refused, and the error names the tensor."""

from __future__ import annotations

import json

import pytest
import torch
from many import Many
from reliability.helpers import ZEROS, forge_header, forge_tensors, forge_text, raw_bytes, seal, split_file

import trustgp

MIX = "mixture.0."
EXPERTS = MIX + "experts."


def drop(*names):
    def change(tensors):
        for name in names:
            del tensors[name]

    return change


def put(name, function):
    """Replace one tensor by a function of it."""

    def change(tensors):
        tensors[name] = function(tensors[name].clone())

    return change


def at(name, place, value):
    """Replace one number of a tensor."""

    def function(tensor):
        tensor.view(-1)[place] = value
        return tensor

    return put(name, function)


def overflowing(sizes):
    """Sizes whose sum wraps around to the right number in 64 bits."""
    return torch.tensor([2**63 - 1, 2**63 - 1, int(sizes.sum()) + 2], dtype=torch.int64)


GRAM = {
    "unknown": (lambda t: t.update({MIX + "extra": torch.ones(2)}), MIX + "extra"),
    "unknown-tangents": (
        lambda t: t.update({MIX + "tangents.extra": torch.zeros(2, dtype=torch.int64)}),
        MIX + "tangents.extra",
    ),
    "unknown-feature": (
        lambda t: t.update({EXPERTS + "features.other.0": t[EXPERTS + "features.signals.0"].clone()}),
        EXPERTS + "features.other.0",
    ),
    "third-mixture": (
        lambda t: t.update({"mixture.1.outputs": torch.zeros(1, dtype=torch.int64)}),
        "mixture.1.outputs",
    ),
    "missing-factor": (drop(EXPERTS + "factor"), EXPERTS + "factor"),
    "missing-level": (drop("calibration.1.level"), "calibration.1.level"),
    "missing-mix": (drop(MIX + "tangents.mix"), MIX + "tangents.mix"),
    "missing-row-bytes": (drop(MIX + "tangents.row_bytes"), MIX + "tangents.row_bytes"),
    "missing-signals": (drop(EXPERTS + "features.signals.1"), EXPERTS + "features.signals.1"),
    "missing-activations": (drop(MIX + "gate.features.activations.0"), MIX + "gate.features.activations.0"),
    "missing-layer": (
        drop(MIX + "gate.features.activations.1", MIX + "gate.features.signals.1"),
        MIX + "gate.features",
    ),
    "missing-first-layer": (
        drop(EXPERTS + "features.activations.0", EXPERTS + "features.signals.0"),
        EXPERTS + "features",
    ),
    "dtype-factor": (put(EXPERTS + "factor", lambda v: v.float()), EXPERTS + "factor"),
    "dtype-neighbours": (put(MIX + "neighbours", lambda v: v.double()), MIX + "neighbours"),
    "dtype-features": (
        put(EXPERTS + "features.signals.0", lambda v: v.double()),
        EXPERTS + "features.signals.0",
    ),
    "dtype-failed": (put(EXPERTS + "failed", lambda v: v.long()), EXPERTS + "failed"),
    "shape-weights": (put(EXPERTS + "weights", lambda v: v.T.contiguous()), EXPERTS + "weights"),
    "shape-scale": (put(EXPERTS + "scale", lambda v: v[:, :1].contiguous()), EXPERTS + "scale"),
    "shape-level": (put("calibration.0.level", lambda v: v[:1].clone()), "calibration.0.level"),
    "shape-features": (
        put(EXPERTS + "features.activations.0", lambda v: v[:, :1].contiguous()),
        EXPERTS + "features",
    ),
    "shape-centroids": (
        put(MIX + "gate.centroids", lambda v: torch.cat([v, v[:1]])),
        MIX + "gate.centroids",
    ),
    "no-components": (put(MIX + "gate.centroids", lambda v: v[:, :0].clone()), MIX + "gate.centroids"),
    "nan-weights": (at(EXPERTS + "weights", 3, torch.nan), EXPERTS + "weights"),
    "inf-features": (
        at(EXPERTS + "features.activations.0", 0, torch.inf),
        EXPERTS + "features.activations.0",
    ),
    "inf-level": (at("calibration.0.level", 0, torch.inf), "calibration.0.level"),
    "nan-centroid": (at(MIX + "gate.centroids", 1, torch.nan), MIX + "gate.centroids"),
    "zero-pivot": (at(EXPERTS + "factor", 0, 0.0), EXPERTS + "factor"),
    "negative-pivot": (at(EXPERTS + "factor", -1, -1.0), EXPERTS + "factor"),
    "negative-scale": (at(EXPERTS + "scale", 0, -1.0), EXPERTS + "scale"),
    "zero-noise": (at(EXPERTS + "noise", 0, 0.0), EXPERTS + "noise"),
    "zero-kappa": (at(EXPERTS + "kappa", 0, 0.0), EXPERTS + "kappa"),
    "negative-jitter": (at(EXPERTS + "jitter", 0, -1e-9), EXPERTS + "jitter"),
    "zero-level": (at("calibration.0.level", 0, 0.0), "calibration.0.level"),
    "negative-excess": (at("calibration.1.excess", 0, -1.0), "calibration.1.excess"),
    "neighbour-beyond": (at(MIX + "neighbours", 0, 3), MIX + "neighbours"),
    "neighbour-below": (at(MIX + "neighbours", 0, -2), MIX + "neighbours"),
    "output-beyond": (at(MIX + "outputs", 0, 2), MIX + "outputs"),
    "output-twice": (at(MIX + "outputs", 0, 1), "mixture.*.outputs"),
    "row-beyond": (at(EXPERTS + "rows", 0, 24), EXPERTS + "rows"),
    "row-below": (at(EXPERTS + "rows", 0, -1), EXPERTS + "rows"),
    "own-beyond": (at(EXPERTS + "own", 0, 25), EXPERTS + "sizes"),
    "own-nothing": (put(EXPERTS + "own", torch.zeros_like), EXPERTS + "own"),
    "sizes-negative": (at(EXPERTS + "sizes", 0, -1), EXPERTS + "sizes"),
    "sizes-overflow": (put(EXPERTS + "sizes", overflowing), EXPERTS + "rows"),
    "all-failed": (put(EXPERTS + "failed", torch.ones_like), EXPERTS + "failed"),
    "one-failed": (at(EXPERTS + "failed", 0, True), EXPERTS + "factor"),
    "bound-beyond": (put(MIX + "bound", lambda v: v + 2.0), MIX + "bound"),
    "row-bytes-zero": (put(MIX + "tangents.row_bytes", torch.zeros_like), MIX + "tangents.row_bytes"),
    "row-bytes-other": (put(MIX + "tangents.row_bytes", lambda v: v + 4), MIX + "gate.features"),
    "mix-empty": (put(MIX + "tangents.mix", lambda v: v[:0].clone()), MIX + "tangents.mix"),
}

SPAN = {
    "columns-beyond": (at(EXPERTS + "columns", 0, 16), EXPERTS + "columns"),
    "columns-below": (at(EXPERTS + "columns", 0, -1), EXPERTS + "columns"),
    "ranks-beyond": (at(EXPERTS + "ranks", 0, 9), EXPERTS + "ranks"),
    "ranks-other": (at(EXPERTS + "ranks", 0, 1), EXPERTS + "shrink"),
    "shrink-beyond": (at(EXPERTS + "shrink", 0, 1.5), EXPERTS + "shrink"),
    "dtype-basis": (put(EXPERTS + "basis", lambda v: v.double()), EXPERTS + "basis"),
    "nan-basis": (at(EXPERTS + "basis", 0, torch.nan), EXPERTS + "basis"),
    "shape-directions": (put(MIX + "gate.directions", lambda v: v[:-1].clone()), MIX + "gate.directions"),
    "all-failed": (put(EXPERTS + "failed", torch.ones_like), EXPERTS + "failed"),
    "kept-beyond": (at(MIX + "tangents.kept", -1, 17), MIX + "tangents.kept"),
    "kept-below": (at(MIX + "tangents.kept", 0, -1), MIX + "tangents.kept"),
    "kept-missing": (drop(MIX + "tangents.kept"), MIX + "tangents.kept"),
    "kept-too-few": (put(MIX + "tangents.kept", lambda v: v[:3].clone()), MIX + "tangents"),
}


def twice_own(rows):
    """The first row, which is one cell's own, in the place of all others."""
    return rows[:1].expand_as(rows).clone()


WIT = "witness."
CAL = "calibration.2."
CALIBRATION = ("varying", "constant", "beyond", "growth", "df", "share", "spread")
WITNESS = {
    "unknown": (lambda t: t.update({WIT + "extra": torch.ones(2)}), WIT + "extra"),
    **{
        f"missing-{name}": (drop(WIT + name), WIT + name)
        for name in ("offset", "centroids", "length", "ratio", "size", "reach", "floor", "own", "rows")
    },
    **{
        f"missing-{name}": (drop(WIT + name), WIT + name)
        for name in ("sizes", "centre", "level", "points", "targets", "spread", "neighbours")
    },
    "dtype-rows": (put(WIT + "rows", lambda v: v.double()), WIT + "rows"),
    **{f"dtype-{name}": (put(WIT + name, lambda v: v.half()), WIT + name) for name in ("points", "targets")},
    "dtype-size": (put(WIT + "size", lambda v: v.double()), WIT + "size"),
    "shape-offset": (put(WIT + "offset", lambda v: v[:1].clone()), WIT + "offset"),
    "shape-floor": (put(WIT + "floor", lambda v: v[:1].clone()), WIT + "floor"),
    "shape-length": (put(WIT + "length", lambda v: v[None].clone()), WIT + "length"),
    "shape-level": (put(WIT + "level", lambda v: v[:-1].clone()), WIT + "level"),
    "shape-centre": (put(WIT + "centre", lambda v: v[:, :1].contiguous()), WIT + "centre"),
    "shape-points": (put(WIT + "points", lambda v: v[:, :1].contiguous()), WIT + "points"),
    "shape-targets": (put(WIT + "targets", lambda v: v[:-1].clone()), WIT + "targets"),
    "no-cell": (put(WIT + "centroids", lambda v: v[:0].clone()), WIT + "centroids"),
    "no-input": (put(WIT + "centroids", lambda v: v[:, :0].clone()), WIT + "centroids"),
    "one-cell-more": (put(WIT + "centroids", lambda v: torch.cat([v, v[:1]])), WIT + "level"),
    **{
        f"nan-{name}": (at(WIT + name, 0, torch.nan), WIT + name)
        for name in ("offset", "centroids", "length", "floor", "centre", "points", "targets")
    },
    **{
        f"inf-{name}": (at(WIT + name, 0, torch.inf), WIT + name)
        for name in ("spread", "ratio", "reach", "level")
    },
    **{
        f"negative-{name}": (at(WIT + name, 0, -1.0), WIT + name)
        for name in ("spread", "length", "ratio", "reach", "floor", "level")
    },
    **{
        f"zero-{name}": (at(WIT + name, 0, 0), WIT + name)
        for name in ("spread", "length", "size", "neighbours", "reach", "level")
    },
    "ratio-singular": (at(WIT + "ratio", 0, 1e-12), WIT + "ratio"),
    "point-beyond": (at(WIT + "points", 0, 1e36), WIT + "points"),
    "row-of-two-cells": (put(WIT + "rows", twice_own), WIT + "rows"),
    "reach-beyond": (at(WIT + "reach", 0, 1.5), WIT + "reach"),
    "row-beyond": (at(WIT + "rows", 0, 60), WIT + "rows"),
    "row-below": (at(WIT + "rows", 0, -1), WIT + "rows"),
    "own-beyond": (at(WIT + "own", 0, 61), WIT + "sizes"),
    "own-below": (at(WIT + "own", 0, -1), WIT + "sizes"),
    "own-nothing": (at(WIT + "own", 0, 0), WIT + "own"),
    "sizes-negative": (at(WIT + "sizes", 0, -1), WIT + "sizes"),
    "sizes-other": (at(WIT + "sizes", 0, 60), WIT + "rows"),
    "trust-negative": (at("calibration.0.trust", 0, -0.5), "calibration.0.trust"),
    "trust-shape": (put("calibration.1.trust", lambda v: v[:1].clone()), "calibration.1.trust"),
    "trust-missing": (drop("calibration.1.trust"), "calibration.1.trust"),
    **{f"{name}-missing": (drop(CAL + name), CAL + name) for name in CALIBRATION},
    **{f"{name}-nan": (at(CAL + name, 0, torch.nan), CAL + name) for name in CALIBRATION},
    **{
        f"{name}-shape": (put(CAL + name, lambda v: v[:1].clone()), CAL + name)
        for name in ("constant", "growth", "df", "spread")
    },
    **{
        f"{name}-{value}": (at(CAL + name, 0, value), CAL + name)
        for name, values in {
            "spread": (-0.5, torch.inf),
            "share": (-0.1, 1.0),
            "varying": (0.0, 1.5),
            "beyond": (0.0, 1.5),
            "constant": (0.0, -1.0),
            "df": (2.0, -3.0, torch.inf),
        }.items()
        for value in values
    },
    "calibration-unknown": (
        lambda t: t.update({"calibration.4.fade": t["calibration.3.fade"].clone()}),
        "calibration.4.fade",
    ),
    "weight-missing": (drop("calibration.0.weight"), "calibration.0.weight"),
    "weight-nan": (at("calibration.0.weight", 0, torch.nan), "calibration.0.weight"),
}


def test_wrong_tensors_of_a_witness_are_named(witness_file, tmp_path):
    _refused_by_name(witness_file, tmp_path, WITNESS)


def test_a_witness_that_was_not_asked_for_is_refused(witness_file, tmp_path):
    path = forge_text(
        witness_file.path, tmp_path / "forged.trustgp", lambda text: text.update({"witness": None})
    )
    with pytest.raises(trustgp.ArtifactError, match=r"unknown tensors.*witness"):
        trustgp.load(path, witness_file.network)


def test_a_witness_made_for_other_inputs_is_refused_when_it_is_asked(witness_file, tmp_path):
    """A file cannot tell how wide the inputs of any network are; the first prediction can."""

    def narrower(tensors):
        for name in ("offset", "spread"):
            tensors[WIT + name] = tensors[WIT + name][:1].clone()
        for name in ("centroids", "points"):
            tensors[WIT + name] = tensors[WIT + name][:, :1].contiguous()

    path = forge_tensors(witness_file.path, tmp_path / "forged.trustgp", narrower)
    model = trustgp.load(path, witness_file.network)
    with pytest.raises(ValueError, match="inputs hold 2 numbers a row; the witness was fitted on 1"):
        model.predict(witness_file.inputs)


@pytest.mark.parametrize("value", [1e-300, 1e300])
def test_numbers_of_a_witness_that_are_absurd_but_allowed_give_no_nan(witness_file, tmp_path, value):
    with Many() as check:
        for name in ("length", "spread", "floor", "level"):
            with check(name):
                change = put(WIT + name, lambda v: torch.full_like(v, value))
                path = forge_tensors(witness_file.path, tmp_path / "f", change)
                prediction = trustgp.load(path, witness_file.network).predict(witness_file.inputs)
                for one in (prediction, prediction.corrected):
                    assert not bool(one.variance.isnan().any())
                    assert not bool(one.mean.isnan().any())


def test_wrong_tensors_of_gram_experts_are_named(gram_file, tmp_path):
    _refused_by_name(gram_file, tmp_path, GRAM)


def test_wrong_tensors_of_span_experts_are_named(span_file, tmp_path):
    _refused_by_name(span_file, tmp_path, SPAN)


def _refused_by_name(saved, tmp_path, forgeries):
    with Many() as check:
        for case, (change, name) in forgeries.items():
            with check(case):
                path = forge_tensors(saved.path, tmp_path / "forged.trustgp", change)
                with pytest.raises(trustgp.ArtifactError) as caught:
                    trustgp.load(path, saved.network)
                assert name in str(caught.value)
                assert "forged.trustgp" in str(caught.value)


def test_a_forgery_that_changes_nothing_loads(saved, tmp_path):
    """Otherwise the tests of this file would pass for want of a right checksum."""
    for forge in (forge_tensors, forge_text, forge_header):
        path = forge(saved.path, tmp_path / "same.trustgp", lambda table: None)
        assert trustgp.load(path, saved.network).num_experts > 0


def _tangents(kind="LayerFactors", **settings):
    return {"kind": kind, "settings": settings}


SETTING = trustgp.Witness().settings()
TEXTS = {
    "unknown-tangents": {"tangents": _tangents("Mystery")},
    "unknown-likelihood": {"likelihood": {"kind": "Mystery", "settings": {}}},
    "unknown-setting": {"tangents": _tangents(power=3)},
    "tangents-no-table": {"tangents": "LayerFactors"},
    "kind-unhashable": {"tangents": _tangents(["LayerFactors"])},
    "settings-wrong-type": {"tangents": _tangents("JacobianRows", keep="many")},
    "unknown-key": {"surprise": 1},
    "no-mixtures": {"mixtures": 0},
    "too-many-mixtures": {"mixtures": 2},
    "mixtures-text": {"mixtures": "1"},
    "mixtures-bool": {"mixtures": True},
    "names-none": {"names": []},
    "names-unknown": {"names": ["0.weight", "7.weight"]},
    "names-unhashable": {"names": [["0.weight"]]},
    "names-twice": {"names": ["0.weight", "0.weight"]},
    "names-number": {"names": 5},
    "rows-text": {"rows": "24"},
    "rows-negative": {"rows": -1},
    "lend-text": {"lend": ["24"]},
    "lend-too-many": {"lend": [1, 1]},
    "lend-negative": {"lend": [-1]},
    "seed-none": {"seed": None},
    "structure-number": {"structure": 5},
    "outputs-unknown": {"outputs": "all"},
    "network-number": {"network": 0},
    "witness-number": {"witness": 5},
    "witness-unknown-setting": {"witness": {**SETTING, "power": 3}},
    "witness-text": {"witness": {**SETTING, "rows": "many"}},
    "witness-bool": {"witness": {**SETTING, "strangers": True}},
    "witness-nothing": {"witness": {**SETTING, "rows": 0}},
}


def test_a_wrong_description_is_refused(gram_file, tmp_path):
    with Many() as check:
        for case, wrong in TEXTS.items():
            with check(case):
                path = forge_text(
                    gram_file.path, tmp_path / "forged.trustgp", lambda text, wrong=wrong: text.update(wrong)
                )
                with pytest.raises(trustgp.ArtifactError, match=r"forged\.trustgp"):
                    trustgp.load(path, gram_file.network)


@pytest.mark.parametrize("key", ["network", "tangents", "names", "mixtures", "seed", "likelihood", "witness"])
def test_a_description_with_a_key_missing_is_refused(gram_file, tmp_path, key):
    path = forge_text(gram_file.path, tmp_path / "forged.trustgp", lambda text: text.pop(key))
    with pytest.raises(trustgp.ArtifactError, match=key):
        trustgp.load(path, gram_file.network)


def _metadata(**values):
    return lambda table: table["__metadata__"].update(values)


def _entry(name, **values):
    return lambda table: table[name].update(values)


HEADERS = {
    "future": (_metadata(version="3"), "newer trustgp"),
    "past": (_metadata(version="1"), "written by trustgp 0.1"),
    "version-zero": (_metadata(version="0"), "version 0"),
    "version-text": (_metadata(version="one"), "not a trustgp file"),
    "other-kind": (_metadata(format="trustgp-expert"), "trustgp-expert"),
    "foreign": (_metadata(format="pt"), "pt"),
    "no-metadata": (lambda table: table.pop("__metadata__"), "__metadata__"),
    "no-checksum": (lambda table: table["__metadata__"].pop("sha256"), "sha256"),
    "no-text": (lambda table: table["__metadata__"].pop("text"), "text"),
    "text-number": (_metadata(text=5), "sha256|text"),
    "text-no-json": (_metadata(text="{"), "forged"),
    "text-no-table": (_metadata(text="[1, 2]"), "not a table"),
    "text-key-twice": (_metadata(text='{"rows": 1, "rows": 2}'), "'rows' stands twice"),
    "text-deep": (_metadata(text="[" * 100_000), "forged"),
    "checksum-surrogate": (_metadata(sha256="\ud800" * 64), "checksum"),
    "checksum-short": (_metadata(sha256="0" * 63), "checksum"),
    "dtype-code": (_entry(EXPERTS + "factor", dtype="F7"), "forged"),
    "shape-no-fit": (_entry(EXPERTS + "factor", shape=[1]), "forged"),
    "shape-huge": (_entry(EXPERTS + "factor", shape=[2**62, 2**62]), "forged"),
    "shape-negative": (_entry(EXPERTS + "factor", shape=[-1]), "forged"),
    "offsets-beyond": (_entry(EXPERTS + "factor", data_offsets=[0, 2**40]), "forged"),
    "offsets-overlap": (_entry(EXPERTS + "own", data_offsets=[0, 24]), "forged"),
}


def test_a_wrong_header_is_refused(gram_file, tmp_path):
    with Many() as check:
        for case, (change, said) in HEADERS.items():
            with check(case):
                path = forge_header(gram_file.path, tmp_path / "forged.trustgp", change)
                with pytest.raises(trustgp.ArtifactError, match=said):
                    trustgp.load(path, gram_file.network)


@pytest.mark.parametrize("key", [EXPERTS + "scale", "__metadata__"])
def test_a_key_that_stands_twice_is_refused(gram_file, tmp_path, key):
    table, payload = split_file(gram_file.path)
    table["__metadata__"]["sha256"] = ZEROS
    again = json.dumps({key: table[key]}).replace(ZEROS, "1" * 64)
    header = json.dumps(table)[:-1] + "," + again[1:]
    path = seal(tmp_path / "forged.trustgp", header.encode(), payload)
    with pytest.raises(trustgp.ArtifactError, match=f"'{key}' stands twice"):
        trustgp.load(path, gram_file.network)


def test_bytes_that_belong_to_no_tensor_are_refused(gram_file, tmp_path):
    payload = split_file(gram_file.path)[1] + b"hidden.."
    path = forge_header(gram_file.path, tmp_path / "forged.trustgp", lambda table: None, payload)
    with pytest.raises(trustgp.ArtifactError):
        trustgp.load(path, gram_file.network)


def test_a_truth_value_beyond_one_does_no_harm(gram_file, tmp_path):
    """A byte of 2 in a tensor of truth values is read as True everywhere, or refused."""
    table, payload = split_file(gram_file.path)
    start, end = table[EXPERTS + "failed"]["data_offsets"]
    forged = payload[:start] + bytes([2] * (end - start)) + payload[end:]
    path = forge_header(gram_file.path, tmp_path / "forged.trustgp", lambda table: None, forged)
    with pytest.raises(trustgp.ArtifactError, match="failed"):
        trustgp.load(path, gram_file.network)


@pytest.mark.parametrize("case", ["empty", "short", "zeros", "text"])
def test_files_of_other_kinds_are_refused(gram_file, tmp_path, case):
    contents = {"empty": b"", "short": b"abc", "zeros": bytes(100), "text": b"hello, world! " * 50}
    path = tmp_path / "other.trustgp"
    path.write_bytes(contents[case])
    with pytest.raises(trustgp.ArtifactError, match=r"other\.trustgp"):
        trustgp.load(path, gram_file.network)


def test_a_file_with_a_witness_is_read_and_written_to_the_byte(witness_file, tmp_path):
    path = forge_tensors(witness_file.path, tmp_path / "same", lambda tensors: None)
    model = trustgp.load(path, witness_file.network)
    assert model.witness is not None
    model.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == witness_file.path.read_bytes()


def test_the_same_model_gives_the_same_bytes(saved, tmp_path):
    model = trustgp.load(saved.path, saved.network)
    for name in ("one", "two"):
        model.save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes() == saved.path.read_bytes()


def test_a_loaded_model_predicts_the_same_bits(saved, tmp_path):
    model = trustgp.load(saved.path, saved.network)
    model.save(tmp_path / "again")
    again = trustgp.load(tmp_path / "again", saved.network)
    one, two = model.predict(saved.inputs), again.predict(saved.inputs)
    assert raw_bytes(one.variance) == raw_bytes(two.variance)
