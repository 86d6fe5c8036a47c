"""Promise 3: files with a correct checksum but wrong contents are refused, and the error names the tensor."""

import json
from functools import partial

import pytest
import torch
from many import Many
from reliability import forgeries
from reliability.forgeries import damages, full_name, header_of, of, seal, split

import trustgp


def update(values, table) -> None:
    table.update(values)
    for name in [name for name, value in values.items() if value is None]:
        del table[name]


MODELS = ("gram", "span", "witness", "classes")


@pytest.mark.parametrize("model", MODELS)
def test_wrong_tensors_are_refused_by_name(model, request, tmp_path):
    saved = request.getfixturevalue(f"{model}_file")
    with Many() as check:
        for name, change, expected in damages(model):
            with check(name):
                assert expected in saved.refusal(tmp_path / "forged", tensors=change)


@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_read_and_written_to_the_byte(model, request, tmp_path):
    """Also after a forgery that changes nothing: else the other tests would pass for a wrong checksum."""
    saved = request.getfixturevalue(f"{model}_file")
    for changes in ({}, {"tensors": bool}):
        loaded = trustgp.load(saved.forged(tmp_path / "same", **changes), saved.network)
        assert (loaded.witness is not None) == (model == "witness")
        loaded.save(tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == saved.content


def test_a_wrong_description_is_refused(gram_file, tmp_path):
    with Many() as check:
        for wrong in forgeries.TEXTS_REFUSED:
            with check(wrong):
                gram_file.refusal(tmp_path / "forged", text=lambda text, wrong=wrong: text.update(wrong))
        for wrong in forgeries.PROBES_REFUSED:
            with check(wrong):
                gram_file.refusal(tmp_path / "forged", text=lambda text, w=wrong: update(w, text["probes"]))
        for key in ("network", "tangents", "names", "mixtures", "seed", "likelihood", "witness", "rows"):
            with check(key):
                assert key in gram_file.refusal(tmp_path / "forged", text=lambda text, k=key: text.pop(k))


def test_a_description_of_another_model_is_refused(witness_file, classes_file, tmp_path):
    message = witness_file.refusal(tmp_path / "forged", text=lambda text: text.update(witness=None))
    assert "unknown tensors" in message
    other = {"likelihood": {"kind": "Regression", "settings": {}}}
    classes_file.refusal(tmp_path / "forged", text=lambda text: text.update(other))


def test_a_wrong_header_is_refused(gram_file, tmp_path):
    with Many() as check:
        for wrong, expected in forgeries.METADATA_REFUSED:
            with check(wrong):
                assert expected in gram_file.refusal(tmp_path / "forged", metadata=partial(update, wrong))
        for wrong in forgeries.ENTRIES_REFUSED:
            with check(wrong):
                level = wrong.get("data_offsets") == [0, 16]
                name = "calibration.0.bias" if level else full_name("e.factor")
                gram_file.refusal(tmp_path / "forged", table=lambda t, n=name, w=wrong: update(w, t[n]))
        for metadata in ({}, {"trustgp": "{}", "more": ""}, [], "trustgp"):
            with check(metadata):
                gram_file.refusal(tmp_path / "forged", table=partial(update, {"__metadata__": metadata}))
        for number, content in enumerate(forgeries.FOREIGN):
            with check(f"foreign {number}"):
                gram_file.refusal(tmp_path / "forged", content)


def test_a_key_that_occurs_twice_is_refused(gram_file, tmp_path):
    table, metadata, payload = split(gram_file.content)
    for key in ("mixture.0.experts.scale", "__metadata__"):
        again = json.dumps({key: table.get(key, {"trustgp": ""})})
        header = header_of(table, metadata)[:-1] + b"," + again[1:].encode()
        assert f"'{key}' occurs twice" in gram_file.refusal(tmp_path / "forged", seal(header, payload))
    text = json.dumps(metadata)
    for twice in (text[:-1] + ', "version": 3}', text.replace('"text": {', '"text": {"rows": 24, ')):
        message = gram_file.refusal(tmp_path / "forged", seal(header_of(table, twice), payload))
        assert "occurs twice" in message


def test_bytes_that_do_not_belong_are_refused(gram_file, tmp_path):
    """Behind the last tensor, and of 2 in a tensor of truth values."""
    table, metadata, payload = split(gram_file.content)
    header, (start, end) = header_of(table, metadata), table[full_name("e.failed")]["data_offsets"]
    gram_file.refusal(tmp_path / "forged", seal(header, payload + b"hidden.."))
    twos = payload[:start] + bytes([2] * (end - start)) + payload[end:]
    assert "failed" in gram_file.refusal(tmp_path / "forged", seal(header, twos))


def test_a_witness_for_other_inputs_is_refused_at_the_first_prediction(witness_file, tmp_path):
    """A file cannot contain how wide the inputs of any network are."""

    def narrower(tensors):
        for name in ("offset", "spread", "centroids", "points"):
            value = tensors[f"witness.{name}"]
            tensors[f"witness.{name}"] = value[..., :1].contiguous()

    model = trustgp.load(witness_file.forged(tmp_path / "f", tensors=narrower), witness_file.network)
    with pytest.raises(ValueError, match="inputs hold 2 numbers a row; the witness was fitted on 1"):
        model.predict(witness_file.inputs)


def test_extreme_numbers_of_a_witness_that_are_allowed_give_no_nan(witness_file, tmp_path):
    for value in (1e-300, 1e300):
        for name in ("length", "spread", "floor", "level"):
            fill = of(lambda v, value=value: torch.full_like(v, value))
            path = witness_file.forged(tmp_path / "f", tensors=lambda t, n=name, f=fill: f(t, f"witness.{n}"))
            prediction = trustgp.load(path, witness_file.network).predict(witness_file.inputs)
            for one in (prediction, prediction.corrected):
                assert not bool((one.variance.isnan() | one.mean.isnan()).any())
