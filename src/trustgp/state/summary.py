"""What is inside a saved model? Tables for `trustgp inspect`, made without the network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Column, Table
from rich.text import Text
from torch import Tensor

from ..data.escapes import printable
from ..data.quantities import size_text
from ..data.tensor_file import ArtifactError, inside, read_file
from ..likelihoods import KINDS
from .model_file import DETECTOR, KIND

MOST = 32  # experts that are shown unless all are asked for
LEFT_OUT = re.compile(r"(gate|witness|tangents|alike)\.|experts\.(factor|basis|root|features|weights|rows)")
PARTS = {  # how a tensor's name goes on after "mixture.<k>.": what it holds; the first that fits counts
    "gate.": "gate",
    "witness.": "witness",
    "experts.factor": "experts: Cholesky factors",
    "experts.basis": "experts: bases",
    "experts.root": "experts: directions",
    "experts.features.": "experts: features of their rows",
    "experts.": "experts: the rest",
    "readout.": "what queries see, by class",
    "pictures.": "what is seen in pictures",
    "": "the rest",
}


@dataclass(frozen=True)
class Summary:
    """A saved model, as far as it can be read without its network."""

    path: Path
    text: Mapping[str, Any]  # its description: plain values
    tensors: Mapping[str, Tensor]  # those that are shown in full, of the others the sizes
    nbytes: int  # of the file

    @property
    def kernels(self) -> int:
        return int(self.field("mixtures"))

    @property
    def outputs(self) -> int:
        return sum(len(self.tensor(k, "outputs")) for k in range(self.kernels))

    def field(self, name: str) -> Any:
        if name not in self.text:
            raise ArtifactError(f"{self.path}: its description lacks '{name}'.")
        return self.text[name]

    def tensor(self, kernel: int, name: str) -> Tensor:
        full = f"mixture.{kernel}.{name}"
        if full not in self.tensors:
            raise ArtifactError(f"{self.path}: tensor '{full}' is missing.")
        return self.tensors[full]


FORGED = ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError
"""What values of other types, or of no sense, in the description of a file may lead to."""


def inspect_tables(path: Path, *, every: bool) -> list[Table]:
    """What a file holds of a model or of a detector's error bars; with `every`, of however many experts."""
    try:
        return _tables(path, every=every)
    except ArtifactError:
        raise
    except FORGED as error:
        raise ArtifactError(f"{path}: its description does not fit together ({error!r}).") from error


def _tables(path: Path, *, every: bool) -> list[Table]:
    kind, whole = _summary(path, KIND, DETECTOR)
    if kind != DETECTOR:
        most = None if every else MOST
        return [origin_table(whole), size_table(whole), expert_table(whole, most=most)]
    settings = {name: value for name, value in whole.field("settings").items() if value is not None}
    facts = {
        "detector": whole.field("detector"),
        "pictures": "{} x {} pixels, height x width".format(*whole.field("size")),
        "seen": ", ".join(whole.field("names")),
        "training rows": whole.field("rows"),
        "settings": _choice({"kind": "Detection", "settings": settings}),
        "novelty threshold": _threshold(whole),
        "network": whole.field("network"),
        "file": size_text(whole.nbytes),
    }
    return [_facts(path, facts), size_table(whole)]


def _facts(title: str | Path, facts: Mapping[str, Any]) -> Table:
    """One line for each fact; what a file says of itself is shown, never obeyed as markup."""
    columns = (Column(style="bold"), Column(overflow="fold"))
    table = Table(*columns, title=Text(printable(title)), title_justify="left", show_header=False)
    for name, value in facts.items():
        table.add_row(name, Text(printable(value)))
    return table


def summarise(path: str | Path) -> Summary:
    """Read a saved model; raises `ArtifactError` when it is damaged or something else."""
    return _summary(Path(path), KIND)[1]


def _summary(path: Path, *kinds: str) -> tuple[str, Summary]:
    """Of which kind a file is, and what it holds. Every byte is checked, but large tensors are not kept: a
    model may be larger than the memory of who looks at it."""
    kind, text, tensors, nbytes = read_file(path, kinds, keep=lambda name: not LEFT_OUT.search(name))
    return kind, Summary(path, text, tensors, nbytes)


def origin_table(summary: Summary) -> Table:
    """Where the model comes from."""
    names, kind = summary.field("names"), summary.field("likelihood")["kind"]
    if kind not in KINDS:
        raise ArtifactError(f"{summary.path}: its likelihood, {kind!r}, is unknown.")
    bounds = torch.stack([summary.tensor(k, "bound") for k in range(summary.kernels)])
    facts = {
        "trustgp": summary.text.get("trustgp", "unknown"),
        "training rows": summary.field("rows"),
        "inputs": summary.field("structure"),
        "outputs": f"{summary.outputs}, {summary.field('outputs')}",
        "tangents": _choice(summary.field("tangents")),
        "parameters": f"{len(names)} tensors: {names[0]} ... {names[-1]}" if names else "none",
        "compressed": summary.text.get("compressed") or "no",
        "likelihood": _choice(summary.field("likelihood")),
        "bound": f"{float(bounds.mean()):.3f} of the squared kernel mass lies between experts",
    }
    for index, title in enumerate(KINDS[kind].titles):
        found = sorted(inside(summary.tensors, f"calibration.{index}.").items())
        facts[title] = ", ".join(f"{name} {float(value.double().mean()):.3g}" for name, value in found)
    facts["novelty threshold"] = _threshold(summary)
    return _facts(summary.path, facts | {name: summary.field(name) for name in ("seed", "network", "data")})


def size_table(summary: Summary) -> Table:
    """What takes how much of the file."""
    sizes: dict[str, int] = {}
    for name, tensor in summary.tensors.items():
        rest = name.split(".", 2)[-1] if name.startswith("mixture.") else name
        part = next(title for start, title in PARTS.items() if rest.startswith(start))
        sizes[part] = sizes.get(part, 0) + tensor.nbytes
    table = Table("part", Column("size", justify="right"), title="Sizes", title_justify="left")
    for part, size in sorted(sizes.items(), key=lambda item: -item[1]):
        table.add_row(part, size_text(size))
    table.add_section()
    table.add_row("file", size_text(summary.nbytes))
    return table


def expert_table(summary: Summary, *, most: int | None = MOST) -> Table:
    """One line for each expert; of more than `most` the largest."""
    experts = [(k, e) for k in range(summary.kernels) for e in range(len(summary.tensor(k, "experts.sizes")))]
    shown = experts
    if most is not None and len(experts) > most:
        largest = sorted(experts, key=lambda at: -int(summary.tensor(at[0], "experts.sizes")[at[1]]))
        shown = sorted(largest[:most])
    title = "Experts" if shown is experts else f"Experts: the {most} largest of {len(experts)} (--all: all)"
    table = Table(title=title, title_justify="left", caption_justify="left")
    if summary.outputs > 1:
        table.caption = "scale, noise and kappa: geometric means over the outputs"
    for name in ("expert", "own rows", "lent rows", "neighbours", "scale s", "noise", "kappa", "state"):
        table.add_column(name, justify="left" if name in ("neighbours", "state") else "right")
    for k, e in shown:
        own, total = (int(summary.tensor(k, f"experts.{n}")[e]) for n in ("own", "sizes"))
        near = [str(j) for j in summary.tensor(k, "neighbours")[e].tolist() if j >= 0]
        each = [summary.tensor(k, f"experts.{n}")[e] for n in ("scale", "noise", "kappa")]
        numbers = [f"{float(value.log().mean().exp()):.3g}" for value in each]
        failed, jitter = (float(summary.tensor(k, f"experts.{n}")[e]) for n in ("failed", "jitter"))
        state = "failed: prior" if failed else f"jitter {jitter:.1e}" if jitter else "ok"
        name = f"{k}.{e}" if summary.kernels > 1 else str(e)
        table.add_row(name, str(own), str(total - own), " ".join(near) or "-", *numbers, state)
    return table


def _choice(value: Any) -> str:
    """An object of the fit, or a setting of it, as it was written in Python; of long lists the ends."""
    if isinstance(value, Mapping) and "kind" in value:
        settings = ", ".join(f"{name}={_choice(setting)}" for name, setting in value["settings"].items())
        return f"{value['kind']}({settings})"
    if isinstance(value, list) and len(value) > 3:
        return f"[{value[0]!r}, ... {len(value) - 2} more, {value[-1]!r}]"
    return repr(value)


def _threshold(summary: Summary) -> str:
    limit, share = (summary.tensors.get(f"novelty.{name}") for name in ("threshold", "false_alarm"))
    if limit is None or share is None:
        return "not fitted"
    return f"{float(limit):.4g}, for {100 * float(share):.3g} % false alarms"
