"""Damaged and forged files: bytes in, bytes out. Forged ones have a correct checksum, so that what is behind
the checksum is tested; random ones are drawn from a seed."""

import copy
import hashlib
import json
import operator
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from safetensors.torch import load, save

from trustgp import Witness
from trustgp.data.tensor_file import MAX_HEADER_BYTES, MAX_TENSORS
from trustgp.export.metadata import digest_place

ZEROS = "0" * 64
Change = Callable[[dict[str, Any]], Any]  # in place


def split(content: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """The tensors' entries in the header, our metadata with a checksum of zeros, and the payload."""
    length = int.from_bytes(content[:8], "little")
    table = json.loads(content[8 : 8 + length])
    metadata = json.loads(table.pop("__metadata__")["trustgp"])
    return table, metadata | {"sha256": ZEROS}, content[8 + length :]


def header_of(table: dict[str, Any], metadata: dict[str, Any] | str) -> bytes:
    text = metadata if isinstance(metadata, str) else json.dumps(metadata)
    return json.dumps({"__metadata__": {"trustgp": text}, **table}).encode()


def seal(header: bytes, payload: bytes = b"") -> bytes:
    """A file whose checksum is right; `header` holds 64 zeros where the checksum goes."""
    header += b" " * (-len(header) % 8)
    length = len(header).to_bytes(8, "little")
    digest = hashlib.sha256(length + header + payload).hexdigest()
    return length + header.replace(ZEROS.encode(), digest.encode(), 1) + payload


def forge(content: bytes, **changes: Change) -> bytes:
    """The file after changes of its `table`, `metadata`, `text` or `tensors`, with a matching checksum."""
    if change := changes.get("tensors"):
        tensors = load(content)
        change(tensors)
        plain = save({name: value.clone() for name, value in tensors.items()})
        length = int.from_bytes(plain[:8], "little")
        table, metadata, payload = json.loads(plain[8 : 8 + length]), split(content)[1], plain[8 + length :]
    else:
        table, metadata, payload = split(content)
    for name, part in (("table", table), ("metadata", metadata), ("text", metadata["text"])):
        changes.get(name, bool)(part)
    return seal(header_of(table, metadata), payload)


def sealed_onnx(content: bytes) -> bytes:
    """An ONNX file with the digest that belongs to it."""
    place = digest_place(content)
    if place < 0:
        return content
    digest = hashlib.sha256(content[:place] + ZEROS.encode() + content[place + 64 :]).hexdigest().encode()
    return content[:place] + digest + content[place + 64 :]


# -- one damage, one error: (change, names of the tensors that are damaged) ---------------------------
# "m." and "e." begin names of the first mixture and of its experts; "a > b": the error names b.


def of(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict, str], None]:
    """Replace a tensor by a function of it."""

    def change(tensors: dict, name: str) -> None:
        tensors[name] = function(tensors[name].clone()).contiguous()

    return change


def at(value: float, place: int = 0) -> Callable[[dict, str], None]:
    """Replace one number of a tensor."""
    return lambda tensors, name: operator.setitem(tensors[name].view(-1), place, value)


def new(like: Callable[[dict], torch.Tensor] = lambda tensors: torch.ones(2)) -> Callable[[dict, str], None]:
    return lambda tensors, name: tensors.update({name: like(tensors).clone()})


FIRST, COLUMN, LAST = of(lambda v: v[:1]), of(lambda v: v[:, :1]), of(lambda v: v[:-1])
GROWN, NONE = of(lambda v: torch.cat([v, v[:1]])), of(lambda v: v[:0])
SINGLE, DOUBLE = of(torch.Tensor.float), of(torch.Tensor.double)
NAN, INF, ZERO, NEGATIVE = at(torch.nan), at(torch.inf), at(0), at(-1)
LAYERS = "m.gate.features.signals.1>m.gate.features e.features.signals.0>e.features"
DAMAGES: dict[str, list[tuple[Callable[[dict, str], None], str]]] = {
    "gram": [
        (new(), "m.extra mixture.1.outputs"),
        (new(lambda t: torch.zeros(2, dtype=torch.int64)), "m.tangents.extra"),
        (new(lambda t: t["mixture.0.experts.features.signals.0"]), "e.features.other.0"),
        (dict.pop, "e.factor calibration.1.bias m.tangents.mix m.tangents.row_bytes"),
        (dict.pop, "e.features.signals.1 m.gate.features.activations.0"),
        (lambda t, n: (t.pop(n), t.pop(n.replace("signals", "activations"))), LAYERS),
        (SINGLE, "e.factor"),
        (DOUBLE, "m.neighbours e.features.signals.0"),
        (of(torch.Tensor.long), "e.failed"),
        (of(lambda v: v.T), "e.weights"),
        (COLUMN, "e.scale e.features.activations.0>e.features"),
        (FIRST, "calibration.0.bias"),
        (GROWN, "m.gate.centroids"),
        (of(lambda v: v[:, :0]), "m.gate.centroids"),
        (NONE, "m.tangents.mix"),
        (at(torch.nan, 3), "e.weights"),
        (NAN, "m.gate.centroids"),
        (INF, "e.features.activations.0 calibration.0.bias"),
        (ZERO, "e.factor e.noise e.kappa m.tangents.row_bytes"),
        (NEGATIVE, "e.scale calibration.1.excess e.rows e.sizes"),
        (at(-1.0, -1), "e.factor"),
        (at(-1e-9), "e.jitter"),
        (at(3), "m.neighbours"),
        (at(-2), "m.neighbours"),
        (at(2), "m.outputs m.bound"),
        (at(1), "m.outputs>mixture.*.outputs e.failed>e.factor"),
        (at(24), "e.rows"),
        (at(25), "e.own>e.sizes"),
        (of(torch.zeros_like), "e.own"),
        (of(torch.ones_like), "e.failed"),
        (of(lambda v: torch.tensor([2**63 - 1] * 2 + [int(v.sum()) + 2])), "e.sizes>e.rows"),  # wraps around
        (of(lambda v: v + 4), "m.tangents.row_bytes>m.gate.features"),
    ],
    "span": [
        (at(16), "e.columns"),
        (at(-1), "e.columns m.tangents.kept"),
        (at(9), "e.ranks"),
        (at(1), "e.ranks>e.shrink"),
        (at(1.5), "e.shrink"),
        (DOUBLE, "e.basis"),
        (NAN, "e.basis"),
        (LAST, "m.gate.directions"),
        (of(torch.ones_like), "e.failed"),
        (at(17, -1), "m.tangents.kept"),
        (dict.pop, "m.tangents.kept"),
        (of(lambda v: v[:3]), "m.tangents.kept>m.tangents"),
    ],
    "witness": [
        (new(), "w.extra"),
        (new(lambda t: t["calibration.3.bias"]), "calibration.4.bias calibration.0.fade"),
        (dict.pop, "w.offset w.centroids w.length w.ratio w.reach w.floor w.own w.rows w.sizes w.centre"),
        (
            dict.pop,
            "w.level w.points w.targets w.errors w.spread w.neighbours calibration.1.trust "
            "calibration.0.weight",
        ),
        (dict.pop, "c.weights c.bias c.tails c.growth c.df c.share c.spread c.centre c.vague"),
        (DOUBLE, "w.rows"),
        (of(torch.Tensor.half), "w.points w.targets w.errors"),
        (FIRST, "w.offset w.floor calibration.1.trust c.bias c.df c.spread c.tails c.weights"),
        (COLUMN, "w.centre w.points"),
        (LAST, "w.level w.targets"),
        (NONE, "w.centroids"),
        (GROWN, "w.centroids>w.level"),
        (of(lambda v: v[None]), "w.length c.growth"),
        (of(lambda v: v[:, :0]), "w.centroids"),
        (NAN, "w.offset w.centroids w.length w.floor w.centre w.points w.targets calibration.0.weight"),
        (NAN, "c.weights c.bias c.tails c.growth c.df c.share c.spread c.centre c.vague"),
        (INF, "w.spread w.ratio w.reach w.level c.spread c.df"),
        (NEGATIVE, "w.spread w.length w.ratio w.reach w.floor w.level w.rows w.own>w.sizes w.sizes w.errors"),
        (NEGATIVE, "calibration.0.trust c.spread c.share c.weights c.vague c.level c.df"),
        (ZERO, "w.spread w.length w.neighbours w.reach w.level w.own"),
        (at(1), "c.share c.vague"),
        (at(1.5), "w.reach"),
        (at(2), "c.df"),
        (at(60), "w.rows w.sizes>w.rows"),
        (at(61), "w.own>w.sizes"),
        (at(1e-12), "w.ratio"),
        (at(1e36), "w.points"),
        (of(lambda v: v[:1].expand_as(v)), "w.rows"),
    ],
    "classes": [
        (new(lambda t: torch.ones(3).double()), "calibration.1.bias"),
        (dict.pop, "calibration.0.slope novelty.false_alarm novelty.threshold"),
        (of(lambda v: -v - 1), "calibration.0.base novelty.scores novelty.threshold"),
        (of(torch.zeros_like), "calibration.0.slope"),
        (NAN, "calibration.0.slope"),
        (SINGLE, "calibration.0.base"),
        (of(lambda v: v + 1), "novelty.false_alarm"),
        (of(lambda v: v.repeat(1, 3)), "e.scale"),
    ],
}
PREFIXES = {"m": "mixture.0", "e": "mixture.0.experts", "w": "witness", "c": "calibration.2"}


def full_name(name: str) -> str:
    first, _, rest = name.partition(".")
    return f"{PREFIXES.get(first, first)}.{rest}"


def damages(model: str) -> Iterator[tuple[str, Change, str]]:
    """Of one of the saved models: what is damaged, the change of its tensors, and what the error names."""
    for number, (change, names) in enumerate(DAMAGES[model]):
        for name in names.split():
            damaged_name, _, expected = name.partition(">")
            one = full_name(damaged_name)
            yield f"{number} {name}", lambda t, c=change, n=one: c(t, n), full_name(expected or damaged_name)


# -- descriptions and headers ---------------------------------------------------------------------------

SETTINGS = Witness().settings()
TEXTS_REFUSED: list[dict[str, Any]] = [
    *({"tangents": {"kind": kind, "settings": {}}} for kind in ("Mystery", ["LayerFactors"])),
    {"tangents": {"kind": "LayerFactors", "settings": {"power": 3}}},
    {"tangents": {"kind": "JacobianRows", "settings": {"keep": "many"}}},
    {"tangents": "LayerFactors"},
    {"likelihood": {"kind": "Mystery", "settings": {}}},
    {"likelihood": {"kind": "Detection", "settings": {}}},
    {"likelihood": {"kind": "Classification", "settings": {"classes": 3}}},
    {"surprise": 1},
    *({"mixtures": value} for value in (0, 2, "1", True)),
    *({"names": value} for value in ([], ["0.weight", "7.weight"], [["0.weight"]], ["0.weight"] * 2, 5)),
    *({"rows": value} for value in ("24", -1)),
    *({"lend": value} for value in (["24"], [1, 1], [-1])),
    *({"split": value} for value in ([3], [10, 20], ["a", 0])),
    {"seed": None},
    {"structure": 5},
    {"outputs": "all"},
    {"network": 0},
    {"witness": 5},
    *({"witness": SETTINGS | {"rows": value}} for value in ("many", 0)),
    *({"witness": SETTINGS | one} for one in ({"power": 3}, {"strangers": True})),
    *({"probes": value} for value in (3, {}, None)),
    {"weights": [1]},
]
PROBES_REFUSED: list[dict[str, Any]] = [  # updates of the probes in it
    *({"inputs": value} for value in (None, ["float32"], "load", "float31", "float64")),
    {"dtype": "int64"},
    {"exact": "yes"},
]
METADATA_REFUSED: list[tuple[dict[str, Any], str]] = [  # updates; None: left out
    ({"version": 4}, "newer trustgp"),
    ({"version": 1}, "written by trustgp 0.1"),
    ({"version": 0}, "version 0"),
    ({"version": "3"}, "not a trustgp file"),
    ({"format": "trustgp-expert"}, "trustgp-expert"),
    ({"format": "pt"}, "'pt'"),
    *(({name: None}, name) for name in ("sha256", "text", "version", "format")),
    ({"more": 1}, "unknown keys"),
    *(({"text": value}, "text") for value in (5, [1, 2], "{}")),
    *(({"sha256": value}, "checksum") for value in ("\ud800" * 64, "0" * 63, "1" * 64)),
]
ENTRIES_REFUSED: list[dict[str, Any]] = [  # updates of a tensor's entry in the header
    *({"dtype": value} for value in ("F7", "F8_E8M0", 5)),
    *({"shape": value} for value in ([1], [2**62, 2**62], [-1], None)),
    *({"data_offsets": value} for value in ([0, 2**40], [0, 16], [])),
]
METADATA = {"sha256": ZEROS, "format": "trustgp-model", "version": 3, "text": {}}
ENTRY = '"dtype":"F32","shape":[0],"data_offsets":[0,0]'


def with_entries(entries: str) -> bytes:
    """A header with our metadata and then these entries."""
    return header_of({}, METADATA)[:-1] + b"," + entries.encode() + b"}"


def entries(size: int, count: int | None = None) -> str:
    """Entries of empty tensors that take `size` bytes: as many as fit, or with long names so many."""
    fixed = len(ENTRY) + 16
    count, width = (size // fixed, 0) if count is None else (count, size // count - fixed)
    return ",".join(f'"{"x" * width}{number:010}":{{{ENTRY}}}' for number in range(count))


ROOM = MAX_HEADER_BYTES - len(with_entries("")) - 16  # bytes of entries that still pass the limit
BLOATED: dict[str, Callable[[], bytes]] = {
    "20 MB of entries": lambda: seal(with_entries(entries(20 * 10**6))),
    "20 MB of blanks": lambda: seal(with_entries(entries(100)) + b" " * (20 * 10**6)),
    "a header of nearly 2^64 bytes": lambda: b"\xff" * 7 + b"\x7f" + b"{}" * 100,
    "longer than the file": lambda: (MAX_HEADER_BYTES - 1).to_bytes(8, "little") + b"{}" * 100,
    "many tensors": lambda: seal(with_entries(entries(ROOM))),
    "as many tensors as are read": lambda: seal(with_entries(entries(ROOM, MAX_TENSORS))),
    "one key twice among many": lambda: seal(with_entries(entries(ROOM - 200, 8000) + "," + entries(70, 1))),
    "deep nesting": lambda: seal(with_entries('"a":' + "[" * (ROOM - 8))),
    "a long number": lambda: seal(with_entries('"a":' + "9" * (ROOM - 8))),
    "a long version": lambda: seal(header_of({}, json.dumps(METADATA).replace("3", "9" * 10**6, 1))),
    "a deep description": lambda: seal(header_of({}, json.dumps(METADATA).replace("{}", "[" * 10**6))),
    "8 EiB in an empty file": lambda: seal(
        with_entries(f'"a":{{"dtype":"F64","shape":[{2**60}],"data_offsets":[0,{2**63}]}}')
    ),
}
FOREIGN = (
    b"", b"abc", b"{}", b"[]", b"PK\x05\x06" + bytes(18), b"PK\x03\x04", b"\x89PNG\r\n\x1a\n", b"\x7fELF",
    b"\x80\x04K\x01.", b"%PDF-1.7", b"<html>", b"\xff\xfe{\x00}\x00", b"\x1f\x8b\x08\x00", bytes(4096),
    b"\xff" * 4096, b"hello, world! " * 50,
)  # fmt: skip

# -- at random -------------------------------------------------------------------------------------------

# What a terminal, rich or a browser obeys when it is not written out; half a character; a long name.
TEXTS = (
    "\x1b[2J\x1b[31mred", "\x1b]0;owned\x07", "\x9b31m", "\r\nall is well", "\x08\x08\x00", "\u202etxt.exe",
    "[red]x[/red]", "[/]", "[/red]", "[link=file:///x]y[/link]", ":skull:", "[@click=app.quit]x",
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</title></style></script>",
    "$style ${x} $", "%s %n {0} {}", "\ud800", "caf\u00e9 \U0001f600", "", "a" * 50_000,
    "../../etc/passwd", "nan", "-1",
)  # fmt: skip
VALUES = (
    None, True, False, 0, -1, 1, 2, 7, 2**31, 2**63, -(2**63) - 1, 10**400, 1.5, -0.0, 1e308, float("nan"),
    float("inf"), [], {}, [[]], [None], {"": None}, {"kind": "x", "settings": {}}, {"kind": []},
)  # fmt: skip


def strange(draw: random.Random) -> Any:
    """A value that does not belong: of another type, out of range, deep, or with something to obey."""
    kind, depth = draw.randrange(5), draw.choice((50, 400, 900))
    if kind == 0:
        return json.loads("[" * depth + "]" * depth)
    return draw.choice(VALUES if kind < 3 else TEXTS)


def changed(tree: Any, draw: random.Random) -> Any:
    """A copy of a JSON value in which one place, somewhere, is replaced, left out, doubled or renamed."""
    tree = copy.deepcopy(tree)
    places = list(_places(tree))
    holder, key = draw.choice(places)
    action = draw.randrange(6)
    if action == 0 and isinstance(holder, dict):
        del holder[key]
    elif action == 1 and isinstance(holder, dict):
        holder[draw.choice(TEXTS)] = holder.pop(key)
    elif action == 1:
        holder.insert(key, copy.deepcopy(holder[key]))
    elif action == 2:
        other, place = draw.choice(places)
        holder[key] = copy.deepcopy(other[place])
    else:
        holder[key] = strange(draw)
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inner:
        yield tree, key
        yield from _places(value)


def as_json(tree: Any, draw: random.Random) -> str:
    """The value as JSON, now and then with a key twice, or with text after it."""
    text = json.dumps(tree)
    kind = draw.randrange(20)
    if kind == 0 and isinstance(tree, dict) and tree:
        key = draw.choice(list(tree))
        return text[:-1] + ", " + json.dumps({key: strange(draw)})[1:]
    return text + draw.choice(("", "]", "\x00", " {}")) if kind == 1 else text


def damaged(content: bytes, draw: random.Random) -> bytes:
    """The bytes cut, with bits flipped, a part overwritten, put in, left out or moved, or others."""
    kind, place = draw.randrange(7), draw.randrange(len(content) + 1)
    length = draw.choice((1, 2, 4, 8, 64, 500))
    end = min(len(content), place + length)
    if kind == 1:
        flipped = bytearray(content)
        for _ in range(draw.choice((1, 1, 3, 30))):
            flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        return bytes(flipped)
    filler = draw.choice((b"\x00", b"\xff", b"\x1b", b"9")) * (end - place)
    before, after = content[:place], content[place:]
    options = (before, b"", before + filler + content[end:], before + draw.randbytes(length) + after)
    return (*options, before + content[end:], after + before, draw.choice(FOREIGN))[kind]


def random_forgery(content: bytes, draw: random.Random) -> bytes:
    """A saved model: damaged, or with another header, description or payload under a right checksum."""
    table, metadata, payload = split(content)
    header, kind = header_of(table, metadata), draw.choice((0, 1, 2, 2, 3, 3, 4, 4))
    if kind == 0:
        return damaged(content, draw)
    if kind == 1:
        return seal(header, damaged(payload, draw))
    if kind == 2:
        return seal(damaged(header, draw), payload)
    if kind == 3:
        return seal(as_json(changed(json.loads(header), draw), draw).encode(), payload)
    metadata["text"] = changed(metadata["text"], draw)
    return seal(header_of(table, as_json(metadata, draw)), payload)
