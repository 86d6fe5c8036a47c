"""Promises 1 and 2: a cut or a flipped bit anywhere in a file is found."""

import os
import random

import pytest

import trustgp
from trustgp.state.summary import inspect_tables

FLIPS = {"gram": 500, "span": 2000}


def accepted(path, network, damages) -> list:
    """Which damages, each done to the file by a call that also repairs the one before, a load accepts."""
    numbers = []
    for number in damages:
        try:
            trustgp.load(path, network)
        except trustgp.ArtifactError:
            continue
        numbers.append(number)
    return numbers


def test_a_file_cut_at_any_byte_is_refused(saved, tmp_path):
    path = tmp_path / "cut.trustgp"
    path.write_bytes(saved.content)
    size = len(saved.content)
    step = 1 if size < 16_000 else 29  # every byte of the smaller file

    def cuts():
        for length in range(size - 1, -1, -step):
            os.truncate(path, length)
            yield length

    assert accepted(path, saved.network, cuts()) == []
    for length in (0, 1, 7, 8, 9, 100, 4000):
        path.write_bytes(saved.content[:length])
        with pytest.raises(trustgp.ArtifactError, match=r"cut\.trustgp"):
            inspect_tables(path)
    for extra in (b"\0", b"\0" * 8, saved.content):
        saved.refusal(tmp_path / "long.trustgp", saved.content + extra)


def test_every_single_bit_flip_is_refused(saved, tmp_path, request):
    """Random ones, and all of the header's first part, which holds the checksum."""
    whole, path = saved.content, tmp_path / "flipped.trustgp"
    count = FLIPS[request.node.callspec.params["saved"]]
    path.write_bytes(whole)

    def flips(file):
        for place in (*range(8 * 200), *random.Random(0).sample(range(8 * len(whole)), count)):
            byte, bit = divmod(place, 8)
            os.pwrite(file.fileno(), bytes([whole[byte] ^ (1 << bit)]), byte)
            yield place
            os.pwrite(file.fileno(), whole[byte : byte + 1], byte)

    with open(path, "r+b") as file:
        assert accepted(path, saved.network, flips(file)) == []
    assert path.read_bytes() == whole  # the loop itself left nothing behind
    trustgp.load(path, saved.network)
