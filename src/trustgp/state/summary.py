"""What is inside a saved model? Tables for `trustgp inspect`, made without the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from ..data.quantities import size_text
from ..data.tensor_file import ArtifactError, inside, kind_of
from ..likelihoods import KINDS
from .model_file import DETECTOR, describe

PARTS = {  # how a tensor's name goes on after "mixture.<k>.": what it holds; the first that fits counts
    "gate.": "gate",
    "witness.": "witness",
    "experts.factor": "experts: Cholesky factors",
    "experts.basis": "experts: bases",
    "experts.root": "experts: directions",
    "experts.features.": "experts: features of their rows",
    "experts.": "experts: the rest",
    "": "the rest",
}


@dataclass(frozen=True)
class Summary:
    """A saved model, as far as it can be read without its network.

    Args:
        path: The file.
        text: Its description: plain values.
        tensors: By name.
    """

    path: Path
    text: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @property
    def kernels(self) -> int:
        return int(self.field("mixtures"))

    def field(self, name: str) -> Any:
        if name not in self.text:
            raise ArtifactError(f"{self.path}: its description lacks '{name}'.")
        return self.text[name]

    def tensor(self, kernel: int, name: str) -> Tensor:
        full = f"mixture.{kernel}.{name}"
        if full not in self.tensors:
            raise ArtifactError(f"{self.path}: tensor '{full}' is missing.")
        return self.tensors[full]


def is_detector(path: str | Path) -> bool:
    """Whether a file holds the error bars of a detector."""
    return kind_of(Path(path)) == DETECTOR


def detector_tables(path: str | Path) -> list[Table]:
    """What a file holds of a detector's error bars: the settings, and where the model comes from."""
    text, tensors = describe(path, DETECTOR)
    whole = Summary(Path(path), text, tensors)
    table = Table(title=str(path), title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("detector", str(whole.field("detector")))
    table.add_row("pictures", "{} x {} pixels, height x width".format(*whole.field("size")))
    settings = {name: value for name, value in whole.field("settings").items() if value is not None}
    table.add_row("settings", _choice({"kind": "Detection", "settings": settings}))
    table.add_row("novelty threshold", _threshold(whole))
    table.add_row("network", str(whole.field("network")))
    table.add_row("file", size_text(whole.path.stat().st_size))
    part = "finding"
    return [table, origin_table(Summary(Path(part), whole.field(part), inside(tensors, f"{part}.")))]


def summarise(path: str | Path) -> Summary:
    """Read a saved model; raises `ArtifactError` when it is damaged or something else."""
    return Summary(Path(path), *describe(path))


def origin_table(summary: Summary) -> Table:
    """Where the model comes from."""
    table = Table(title=str(summary.path), title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    names = summary.field("names")
    bounds = torch.stack([summary.tensor(k, "bound") for k in range(summary.kernels)])
    table.add_row("trustgp", str(summary.text.get("trustgp", "unknown")))
    table.add_row("training rows", str(summary.field("rows")))
    table.add_row("inputs", str(summary.field("structure")))
    table.add_row("outputs", f"{_outputs(summary)}, {summary.field('outputs')}")
    table.add_row("tangents", _choice(summary.field("tangents")))
    table.add_row("parameters", f"{len(names)} tensors: {names[0]} ... {names[-1]}" if names else "none")
    table.add_row("compressed", str(summary.text.get("compressed") or "no"))
    table.add_row("likelihood", _choice(summary.field("likelihood")))
    table.add_row("bound", f"{float(bounds.mean()):.3f} of the squared kernel mass lies between experts")
    for index, about in enumerate(_titles(summary)):
        table.add_row(about, _calibration(summary, index))
    table.add_row("novelty threshold", _threshold(summary))
    table.add_row("seed", str(summary.field("seed")))
    table.add_row("network", str(summary.field("network")))
    table.add_row("data", str(summary.field("data")))
    return table


def size_table(summary: Summary) -> Table:
    """What takes how much of the file."""
    sizes: dict[str, int] = {}
    for name, tensor in summary.tensors.items():
        rest = name.split(".", 2)[-1] if name.startswith("mixture.") else ""
        if name.startswith("witness."):
            rest = name
        part = next(title for start, title in PARTS.items() if rest.startswith(start))
        sizes[part] = sizes.get(part, 0) + tensor.numel() * tensor.element_size()
    table = Table(title="Sizes", title_justify="left")
    table.add_column("part")
    table.add_column("size", justify="right")
    for part, size in sorted(sizes.items(), key=lambda item: -item[1]):
        table.add_row(part, size_text(size))
    table.add_section()
    table.add_row("file", size_text(summary.path.stat().st_size))
    return table


def expert_table(summary: Summary, *, most: int | None = 32) -> Table:
    """One line for each expert, the largest first where not all are shown.

    Args:
        summary: Of the model.
        most: The most lines; None: all experts.
    """
    experts = [(k, e) for k in range(summary.kernels) for e in range(len(summary.tensor(k, "experts.sizes")))]
    shown = experts
    if most is not None and len(experts) > most:
        largest = sorted(experts, key=lambda at: -int(summary.tensor(at[0], "experts.sizes")[at[1]]))
        shown = sorted(largest[:most])
    title = "Experts" if shown is experts else f"Experts: the {most} largest of {len(experts)} (--all: all)"
    table = Table(title=title, title_justify="left", caption_justify="left")
    if _outputs(summary) > 1:
        table.caption = "scale, noise and kappa: geometric means over the outputs"
    table.add_column("expert", justify="right")
    for name in ("own rows", "lent rows", "neighbours", "scale s", "noise", "kappa"):
        table.add_column(name, justify="left" if name == "neighbours" else "right")
    table.add_column("state")
    for kernel, expert in shown:
        name = f"{kernel}.{expert}" if summary.kernels > 1 else str(expert)
        table.add_row(name, *_expert_cells(summary, kernel, expert))
    return table


def _expert_cells(summary: Summary, kernel: int, expert: int) -> list[str]:
    def of(name: str) -> Tensor:
        return summary.tensor(kernel, name)[expert]

    own, total = int(of("experts.own")), int(of("experts.sizes"))
    near = [j for j in of("neighbours").tolist() if j >= 0]
    numbers = [f"{float(of(f'experts.{n}').log().mean().exp()):.3g}" for n in ("scale", "noise", "kappa")]
    jitter = float(of("experts.jitter"))
    state = "failed: prior" if bool(of("experts.failed")) else f"jitter {jitter:.1e}" if jitter else "ok"
    return [str(own), str(total - own), " ".join(map(str, near)) or "-", *numbers, state]


def _outputs(summary: Summary) -> int:
    return sum(len(summary.tensor(k, "outputs")) for k in range(summary.kernels))


def _choice(value: Mapping[str, Any]) -> str:
    """An object of the fit as it was written in Python."""
    settings = ", ".join(f"{name}={_short(setting)}" for name, setting in value["settings"].items())
    return f"{value['kind']}({settings})"


def _short(setting: Any) -> str:
    """A setting in Python; of long lists the ends, of objects their call."""
    if isinstance(setting, Mapping) and "kind" in setting:
        return _choice(setting)
    if isinstance(setting, list) and len(setting) > 3:
        return f"[{setting[0]!r}, ... {len(setting) - 2} more, {setting[-1]!r}]"
    return repr(setting)


def _titles(summary: Summary) -> tuple[str, ...]:
    """What the likelihood calls its calibrations."""
    kind = summary.field("likelihood")["kind"]
    if kind not in KINDS:
        raise ArtifactError(f"{summary.path}: its likelihood, {kind!r}, is unknown.")
    return KINDS[kind].titles


def _threshold(summary: Summary) -> str:
    found = [summary.tensors.get(f"novelty.{name}") for name in ("threshold", "false_alarm")]
    if found[0] is None or found[1] is None:
        return "not fitted"
    return f"{float(found[0]):.4g}, for {100 * float(found[1]):.3g} % false alarms"


def _calibration(summary: Summary, index: int) -> str:
    prefix = f"calibration.{index}."
    found = {n[len(prefix) :]: t for n, t in summary.tensors.items() if n.startswith(prefix)}
    return ", ".join(f"{name} {float(value.double().mean()):.3g}" for name, value in sorted(found.items()))
