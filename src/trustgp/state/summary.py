"""Contents of a saved model: tables for `trustgp inspect`, made without the network."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.table import Column, Table
from rich.text import Text

from ..data.escapes import printable
from ..data.quantities import size_text
from ..data.tensor_file import ArtifactError, TensorFile, inside, read_file
from ..likelihoods import KINDS
from .model_file import DETECTOR, KIND

MAX_EXPERTS_SHOWN = 32  # unless all are asked for
PARTS = {  # start of a tensor's name after "mixture.<k>.": its contents; the first match counts
    "gate.": "gate",
    "witness.": "witness",
    "experts.factor": "experts: Cholesky factors",
    "experts.basis": "experts: bases",
    "experts.root": "experts: directions",
    "experts.features.": "experts: features of their rows",
    "experts.": "experts: other",
    "whole.": "posterior of all rows",
    "tangents.": "projections of gradients",
    "hidden.": "training rows in the last hidden layer",
    "readout.": "classes of a detector",
    "pictures.": "pictures of a detector",
    "": "other",
}
FORGED = ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError
"""Errors that values of a wrong type, or without meaning, in the description of a file may cause."""


def inspect_tables(path: str | Path, *, every: bool = False) -> list[Table]:
    """Tables of the contents of a saved model or detector; `every`: however many experts, list them all."""
    file = read_file(Path(path), (KIND, DETECTOR))
    tables = [_describe_detector, _sizes]
    if file.kind == KIND:
        tables = [_describe_model, _sizes, partial(_experts, most=None if every else MAX_EXPERTS_SHOWN)]
    try:
        first, *others = (table(file) for table in tables)
    except FORGED as error:
        raise ArtifactError(f"{path}: its description does not fit together ({error!r}).") from error
    first.title = Text(printable(path))
    return [first, *others]


def _facts(facts: Mapping[str, Any]) -> Table:
    """Table with one line for each fact; a file's own text is shown, never interpreted as markup."""
    table = Table(Column(style="bold"), Column(overflow="fold"), title_justify="left", show_header=False)
    for name, value in facts.items():
        table.add_row(name, Text(printable(value)))
    return table


def _describe_detector(file: TensorFile) -> Table:
    text = file.text
    settings = {name: value for name, value in text["settings"].items() if value is not None}
    facts = {
        "detector": text["detector"],
        "pictures": "{} x {} pixels, height x width".format(*text["size"]),
        "seen": ", ".join(text["names"]),
        "training rows": text["rows"],
        "settings": _choice({"kind": "Detection", "settings": settings}),
        "novelty threshold": _threshold(file),
        "network": text["network"],
        "file": size_text(file.nbytes),
    }
    return _facts(facts)


def _describe_model(file: TensorFile) -> Table:
    """Table of the model's origin, settings and calibrations."""
    text, kernels = file.text, _kernels(file)
    names, titles = text["names"], KINDS[text["likelihood"]["kind"]].titles
    bound = float(torch.stack([kernel["bound"] for kernel in kernels]).mean())
    facts = {
        "trustgp": text.get("trustgp", "unknown"),
        "training rows": text["rows"],
        "inputs": text["structure"],
        "outputs": f"{sum(len(kernel['outputs']) for kernel in kernels)}, {text['outputs']}",
        "tangents": _choice(text["tangents"]),
        "parameters": f"{len(names)} tensors: {names[0]} ... {names[-1]}" if names else "none",
        "compressed": text.get("compressed") or "no",
        "likelihood": _choice(text["likelihood"]),
        "bound": f"{bound:.3f} of the squared kernel mass lies between experts",
    }
    for index, title in enumerate(titles):
        means = sorted(inside(file.tensors, f"calibration.{index}.").items())
        facts[title] = ", ".join(f"{name} {float(value.double().mean()):.3g}" for name, value in means)
    facts["novelty threshold"] = _threshold(file)
    return _facts(facts | {name: text[name] for name in ("seed", "network", "data")})


def _kernels(file: TensorFile) -> list[dict[str, torch.Tensor]]:
    """Tensors of each kernel, by name without the kernel's prefix."""
    kernels = []
    for k in range(file.text["mixtures"]):
        kernels.append(inside(file.tensors, f"mixture.{k}."))
        if not kernels[-1]:
            raise LookupError(f"no tensor of mixture {k}")
    return kernels


def _sizes(file: TensorFile) -> Table:
    """Table of the size of each part of the file."""
    sizes: dict[str, int] = {}
    for name, tensor in file.tensors.items():
        suffix = name.split(".", 2)[-1] if name.startswith("mixture.") else name
        part = next(title for start, title in PARTS.items() if suffix.startswith(start))
        sizes[part] = sizes.get(part, 0) + tensor.nbytes
    table = Table("part", Column("size", justify="right"), title="Sizes", title_justify="left")
    for part, size in sorted(sizes.items(), key=lambda item: -item[1]):
        table.add_row(part, size_text(size))
    table.add_section()
    table.add_row("file", size_text(file.nbytes))
    return table


def _experts(file: TensorFile, *, most: int | None) -> Table:
    """Table with one line for each expert, or for the `most` largest if there are more."""
    kernels = _kernels(file)
    experts = [(k, e) for k, kernel in enumerate(kernels) for e in range(len(kernel["experts.sizes"]))]
    shown, title = experts, "Experts"
    if most is not None and len(experts) > most:
        shown = sorted(sorted(experts, key=lambda at: -int(kernels[at[0]]["experts.sizes"][at[1]]))[:most])
        title = f"Experts: the {most} largest of {len(experts)} (--all: all)"
    table = Table(title=title, title_justify="left", caption_justify="left")
    if sum(len(kernel["outputs"]) for kernel in kernels) > 1:
        table.caption = "scale, noise and kappa: geometric means over the outputs"
    for name in ("expert", "own rows", "lent rows", "neighbours", "scale s", "noise", "kappa", "state"):
        table.add_column(name, justify="left" if name in ("neighbours", "state") else "right")
    for k, e in shown:
        one = {name: value[e] for name, value in inside(kernels[k], "experts.").items() if e < len(value)}
        own, total, jitter = int(one["own"]), int(one["sizes"]), float(one["jitter"])
        neighbours = " ".join(str(j) for j in kernels[k]["neighbours"][e].tolist() if j >= 0)
        numbers = [f"{float(one[n].log().mean().exp()):.3g}" for n in ("scale", "noise", "kappa")]
        state = "failed: prior" if one["failed"] else f"jitter {jitter:.1e}" if jitter else "ok"
        name = f"{k}.{e}" if len(kernels) > 1 else str(e)
        table.add_row(name, str(own), str(total - own), neighbours or "-", *numbers, state)
    return table


def _choice(value: Any) -> str:
    """Python expression of an object of the fit or of a setting; long lists are cut to their ends."""
    if isinstance(value, Mapping) and "kind" in value:
        settings = ", ".join(f"{name}={_choice(setting)}" for name, setting in value["settings"].items())
        return f"{value['kind']}({settings})"
    if isinstance(value, list) and len(value) > 3:
        return f"[{value[0]!r}, ... {len(value) - 2} more, {value[-1]!r}]"
    return repr(value)


def _threshold(file: TensorFile) -> str:
    limit, share = (file.tensors.get(f"novelty.{name}") for name in ("threshold", "false_alarm"))
    if limit is None or share is None:
        return "not fitted"
    return f"{float(limit):.4g}, for {100 * float(share):.3g} % false alarms"
