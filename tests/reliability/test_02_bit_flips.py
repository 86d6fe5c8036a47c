"""Promise 2: one flipped bit anywhere in an artifact is found."""

from __future__ import annotations

import os
import random

from reliability.helpers import different_fields, prediction_fields

import trustgp

FLIPS = 2000


def test_every_single_bit_flip_is_refused(saved, tmp_path):
    whole = saved.path.read_bytes()
    path = tmp_path / "flipped.trustgp"
    path.write_bytes(whole)
    places = random.Random(0).sample(range(8 * len(whole)), FLIPS)
    accepted = []
    with open(path, "r+b", buffering=0) as file:
        for place in places:
            byte, bit = divmod(place, 8)
            _put(file, byte, whole[byte] ^ (1 << bit))
            try:
                trustgp.load(path, saved.network)
                accepted.append(place)
            except trustgp.ArtifactError:
                pass
            _put(file, byte, whole[byte])
    assert accepted == []
    assert path.read_bytes() == whole  # the loop itself left nothing behind
    trustgp.load(path, saved.network)


def test_the_checksum_covers_the_checksums_own_neighbourhood(gram_file, tmp_path):
    """Every bit of the header's first part, in which the checksum stands."""
    whole = gram_file.path.read_bytes()
    path = tmp_path / "flipped.trustgp"
    path.write_bytes(whole)
    accepted = []
    with open(path, "r+b", buffering=0) as file:
        for place in range(8 * 160):
            byte, bit = divmod(place, 8)
            _put(file, byte, whole[byte] ^ (1 << bit))
            try:
                trustgp.load(path, gram_file.network)
                accepted.append(place)
            except trustgp.ArtifactError:
                pass
            _put(file, byte, whole[byte])
    assert accepted == []


def test_a_loaded_model_does_not_change_with_the_file(saved, tmp_path):
    """safetensors maps the file into memory: whoever overwrites it would change the model."""
    path = tmp_path / "model.trustgp"
    path.write_bytes(saved.path.read_bytes())
    model = trustgp.load(path, saved.network)
    with open(path, "r+b") as file:
        file.write(bytes(path.stat().st_size))
    os.truncate(path, 0)
    before = trustgp.load(saved.path, saved.network).predict(saved.inputs)
    after = model.predict(saved.inputs)
    assert different_fields(prediction_fields(before), prediction_fields(after)) == []


def _put(file, place: int, value: int) -> None:
    file.seek(place)
    file.write(bytes([value]))
