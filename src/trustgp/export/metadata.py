"""What a file says about itself, and the digest that tells whether it is whole."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from ..data.trees import Inputs, as_inputs, count, leaves, structure
from ..data.version import __version__
from ..likelihoods.base import NoveltyThreshold
from ..model import UncertaintyModel

PREFIX = "trustgp."
DIGEST = PREFIX + "sha256"
ZEROS = "0" * 64
FORMAT = 1
COLUMNS = ("input_names", "input_units", "output_names", "output_units")


def input_names(inputs: Inputs, name: str = "input") -> list[str]:
    """A name for each leaf: the keys of a dict, the numbers of a tuple."""
    if isinstance(inputs, dict):
        lead = "" if name == "input" else f"{name}."
        return [leaf for key in sorted(inputs) for leaf in input_names(inputs[key], f"{lead}{key}")]
    if isinstance(inputs, (tuple, list)):
        return [leaf for i, value in enumerate(inputs) for leaf in input_names(value, f"{name}.{i}")]
    return [name]


def describe(
    model: UncertaintyModel,
    inputs: Inputs,
    columns: Sequence[Sequence[str] | None],
    date: str | datetime.date | None,
) -> dict[str, str]:
    """The metadata of a model, all of it text. The `columns` hold texts for the numbers of a row, in the
    order of `COLUMNS`; `date` is that of the calibration. None: not told."""
    origin = model.origin
    sizes = {"input": sum(leaf[0].numel() for leaf in leaves(inputs)), "output": model.shape.outputs}
    table = {
        **common(origin.network, model.novelty_threshold, date),
        "outputs": origin.outputs,
        "likelihood": type(origin.likelihood).__name__,
        "tangents": type(origin.tangents).__name__,
        "num_experts": str(model.num_experts),
        "training_rows": str(origin.rows),
        "structure": structure(inputs),
    }
    for name, values in zip(COLUMNS, columns, strict=True):
        if values is not None:
            table[name] = _texts(name, values, sizes[name.split("_")[0]])
    return {PREFIX + name: value for name, value in table.items()}


def common(network: str, alarm: NoveltyThreshold | None, date: str | datetime.date | None) -> dict[str, str]:
    """What the file of any model says, without the prefix; `network` is a fingerprint."""
    date = datetime.date.fromisoformat(date) if isinstance(date, str) else date
    return {
        "format": str(FORMAT),
        "version": __version__,
        "network": network,
        "threshold": "none" if alarm is None else repr(float(alarm.threshold)),
        "false_alarm": "none" if alarm is None else repr(float(alarm.false_alarm)),
        "calibration_date": "not given" if date is None else date.isoformat(),
        "export_date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _texts(name: str, values: Sequence[str], size: int) -> str:
    """A text for each of the numbers that go in, or come out."""
    if isinstance(values, str) or len(values) != size:
        count = "one text" if isinstance(values, str) else f"{len(values)} texts"
        raise ValueError(f"{name} holds {count}; a list of {size} is needed, one for each number of a row.")
    if not all(isinstance(value, str) for value in values):
        raise TypeError(f"{name} must hold texts only, such as 'rad' or 'Nm'.")
    return json.dumps(list(values))


def rows_like(inputs: Inputs, wanted: str) -> Inputs:
    """The inputs as tensors; raise unless there are rows, nested as the structure `wanted` says."""
    rows = as_inputs(inputs)
    if structure(rows) != wanted:
        raise ValueError(f"inputs have the structure {structure(rows)}; the model takes {wanted}.")
    if count(rows) == 0:
        raise ValueError("inputs hold no rows; pass at least one.")
    return rows


def sealed(made: Any, table: dict[str, str]) -> bytes:
    """The file: the model with its metadata, and a SHA-256 over all bytes, those of the digest taken as 0."""
    for name, value in {**table, DIGEST: ZEROS}.items():
        entry = made.metadata_props.add()
        entry.key, entry.value = name, value
    made.producer_name, made.producer_version = "trustgp", table[PREFIX + "version"]
    content = made.SerializeToString()
    place = digest_place(content)
    found = hashlib.sha256(content).hexdigest().encode()
    return content[:place] + found + content[place + len(found) :]


def digest_place(content: bytes) -> int:
    """Where the digest stands, which is at the end of the file; -1: there is none."""
    place = content.rfind(DIGEST.encode())
    start = place + len(DIGEST) + 2  # the tag and the length of the value
    there = place >= 0 and content[start - 2 : start] == b"\x12\x40" and len(content) >= start + 64
    return start if there else -1


def is_whole(content: bytes) -> bool:
    """Whether the digest is that of the content."""
    place = digest_place(content)
    if place < 0:
        return False
    digest = hashlib.sha256(content[:place] + ZEROS.encode() + content[place + 64 :])
    return digest.hexdigest().encode() == content[place : place + 64]
