"""The metadata of an exported file, and the digest that detects damage."""

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
MARK = DIGEST.encode() + b"\x12\x40"  # precedes the digest: its key, and the tag and length of a text
ZEROS = "0" * 64
FORMAT = 1
ColumnTexts = Sequence[Sequence[str] | None]
Date = str | datetime.date | None
COLUMNS = ("input_names", "input_units", "output_names", "output_units")


def input_names(inputs: Inputs, name: str = "input") -> list[str]:
    """Name of each leaf: from keys of a dict, and positions in a tuple."""
    if isinstance(inputs, dict):
        lead = "" if name == "input" else f"{name}."
        return [leaf for key in sorted(inputs) for leaf in input_names(inputs[key], f"{lead}{key}")]
    if isinstance(inputs, (tuple, list)):
        return [leaf for i, value in enumerate(inputs) for leaf in input_names(value, f"{name}.{i}")]
    return [name]


def describe(model: UncertaintyModel, inputs: Inputs, columns: ColumnTexts, date: Date) -> dict[str, str]:
    """Metadata as texts; `columns` are names and units as in `COLUMNS`, `date` is that of the calibration."""
    origin = model.origin
    sizes = {"input": sum(leaf[0].numel() for leaf in leaves(inputs)), "output": model.shape.outputs}
    table = {
        **common(origin.network, model.novelty_threshold, date),
        "outputs": origin.outputs,
        **{name: type(getattr(origin, name)).__name__ for name in ("likelihood", "tangents")},
        "num_experts": str(model.num_experts),
        "training_rows": str(origin.rows),
        "structure": structure(inputs),
    }
    for name, values in zip(COLUMNS, columns, strict=True):
        size = sizes[name.split("_")[0]]  # one text for each number of an input row, or for each output
        if values is None:
            continue
        if isinstance(values, str) or len(values) != size:
            given = "one text" if isinstance(values, str) else f"{len(values)} texts"
            needed = f"a list of {size} is needed, one for each number of a row"
            raise ValueError(f"{name} holds {given}; {needed}.")
        if not all(isinstance(value, str) for value in values):
            raise TypeError(f"{name} must hold texts only, such as 'rad' or 'Nm'.")
        table[name] = json.dumps(list(values))
    return {PREFIX + name: value for name, value in table.items()}


def common(network: str, fitted: NoveltyThreshold | None, date: Date) -> dict[str, str]:
    """Metadata of any model, with names without the prefix; `network` is a fingerprint."""
    date = datetime.date.fromisoformat(date) if isinstance(date, str) else date
    return {
        "format": str(FORMAT),
        "version": __version__,
        "network": network,
        "threshold": "none" if fitted is None else repr(float(fitted.threshold)),
        "false_alarm": "none" if fitted is None else repr(float(fitted.false_alarm)),
        "calibration_date": "not given" if date is None else date.isoformat(),
        "export_date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }


def rows_like(inputs: Inputs, wanted: str, network: Any = None) -> Inputs:
    """Inputs as tensors, arrays in the precision of a network. Raise ValueError unless there are rows, nested
    as in the structure `wanted`."""
    rows = as_inputs(inputs, network)
    if structure(rows) != wanted:
        raise ValueError(f"inputs have the structure {structure(rows)}; the model takes {wanted}.")
    if count(rows) == 0:
        raise ValueError("inputs hold no rows; pass at least one.")
    return rows


def sealed(model: Any, table: dict[str, str]) -> bytes:
    """Bytes of an ONNX model with its metadata and their SHA-256, computed with zeros in its place."""
    for name, value in {**table, DIGEST: ZEROS}.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = name, value
    model.producer_name, model.producer_version = "trustgp", table[PREFIX + "version"]
    content = model.SerializeToString()
    place = digest_place(content)
    return content[:place] + _digest(content, place) + content[place + 64 :]


def digest_place(content: bytes) -> int:
    """Offset of the digest, which is near the end of the file; -1 if there is none."""
    place = content.rfind(MARK) + len(MARK)
    return place if len(MARK) <= place <= len(content) - 64 else -1


def is_whole(content: bytes) -> bool:
    """Whether the stored digest matches the content."""
    place = digest_place(content)
    return place >= 0 and _digest(content, place) == content[place : place + 64]


def _digest(content: bytes, place: int) -> bytes:
    return hashlib.sha256(content[:place] + ZEROS.encode() + content[place + 64 :]).hexdigest().encode()
