"""A fitted model as an AOTInductor package: machine code, for C++ programs and for Python."""

from __future__ import annotations

import datetime
import json
import os
import platform
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..data.tensor_file import PART, ArtifactError
from ..data.trees import Inputs, count, leaves, take, to_device
from ..model import UncertaintyModel
from .metadata import PREFIX, describe, rows_like
from .trace.trace import traced
from .verify import require_equal

SUFFIX = ".pt2"
TRACED_ROWS = 3  # torch takes a size of 0 or 1 for a constant


def compile(
    model: UncertaintyModel,
    path: str | Path,
    example_inputs: Inputs | None = None,
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    input_units: Sequence[str] | None = None,
    output_units: Sequence[str] | None = None,
    calibration_date: str | datetime.date | None = None,
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Write the network and its error bar as one AOTInductor package, for any number of rows.

    It is compiled for this kind of machine and for the model's device, compared with `model.predict` at
    several batch sizes, and only then kept; whole, or not at all. It takes a C++ compiler and a minute. The
    path is returned.

    Args:
        path: Ends in ".pt2".
        example_inputs: A few rows, as the network takes them. None: training rows, if it still has them.
        options: Settings of inductor, such as {"max_autotune": True}.
        model, input_names, output_names, input_units, output_units, calibration_date: As of `export_onnx`.

    Raises:
        ExportError: When the model cannot be exported, or the package does not say what `model.predict` says.
    """
    path = Path(path)
    if path.suffix != SUFFIX:
        raise ValueError(f"path={str(path)!r}; a package's name must end in {SUFFIX}.")
    if example_inputs is not None:
        rows = rows_like(example_inputs, model.origin.structure)
    elif model.memory is not None:
        held = model.memory.rows
        rows = held.take(torch.arange(min(32, len(held))))
    else:
        raise ValueError(
            "this model holds no rows; pass example_inputs=, some rows as the network takes them."
        )
    rows = to_device(rows, model.device)
    columns = (input_names, input_units, output_names, output_units)
    facts = describe(model, rows, columns, calibration_date)
    module = traced(model, rows)
    flat = [leaf.contiguous() for leaf in leaves(take(rows, torch.arange(TRACED_ROWS) % count(rows)))]
    facts |= _layout(model, rows, list(module(*flat)))
    beside = {"dir": path.parent, "prefix": f".{path.name}.", "suffix": PART}
    # a folder, gone afterwards whatever happens: a package must have its own name in it
    with tempfile.TemporaryDirectory(**beside, ignore_cleanup_errors=True) as folder:
        made = Path(folder) / path.name
        _package(module, flat, made, {"aot_inductor.metadata": facts, **(options or {})})
        require_equal(model, open_compiled(made), rows, what="package")
        os.replace(made, path)
    return path


def open_compiled(path: str | Path) -> Compiled:
    """Open a package that `trustgp.compile` has made.

    It holds machine code, which runs when it is opened: open only files that you trust. Damaged files, other
    packages, and those for another kind of machine are refused before that.
    """
    from torch._inductor import aoti_load_package

    facts = read_facts(Path(path))
    machine, here = facts.get("AOTI_MACHINE", ""), platform.machine()
    able = torch.backends.cpu.get_cpu_capability()
    wide = "AVX512" in facts.get("AOTI_CPU_ISA", "") and "AVX512" not in able
    if machine not in ("", here) or wide:  # its instructions are not those of this processor
        raise ArtifactError(
            f"{path}: compiled for {machine} with {facts.get('AOTI_CPU_ISA')}; this is {here} with {able}. "
            "Compile it on this kind of machine."
        )
    if facts["device"] == "cuda" and not torch.cuda.is_available():
        raise ArtifactError(f"{path}: compiled for a GPU, and there is none here.")
    return Compiled(aoti_load_package(str(path)), facts)


class Compiled:
    """An opened package: called with some rows, it gives a dict of tensors; see `Graph.forward`."""

    def __init__(self, run: Any, metadata: Mapping[str, str]) -> None:
        self._run = run
        self.metadata = MappingProxyType(dict(metadata))
        self.output_names = tuple(metadata["answers"].split(","))
        self._structure = metadata["structure"]
        self._types = [getattr(torch, name) for name in metadata["input_types"].split(",")]
        self._shapes = [tuple(shape) for shape in json.loads(metadata["input_shapes"])]
        self._device = torch.device(metadata["device"])

    def __call__(self, inputs: Inputs) -> dict[str, Tensor]:
        """The answers for these rows, by name. The machine code does not look at what it is given, so that is
        done here: structure, shapes, at least one row; numbers of another precision are converted."""
        inputs = rows_like(inputs, self._structure)
        flat = []
        for leaf, shape, dtype in zip(leaves(inputs), self._shapes, self._types, strict=True):
            if tuple(leaf.shape[1:]) != shape:
                raise ValueError(f"rows have the shape {tuple(leaf.shape[1:])}; this takes {shape}.")
            flat.append(leaf.to(self._device, dtype).contiguous())
        return dict(self._run(*flat))

    def __repr__(self) -> str:
        inputs, answers = f"{self._structure} {self._shapes}", ", ".join(self.output_names)
        return f"Compiled({inputs} on {self._device} to {answers})"


def read_facts(path: Path) -> dict[str, str]:
    """The metadata of a package; none of its code is run."""
    try:
        with zipfile.ZipFile(path) as package:
            damaged = package.testzip()
            names = [n for n in package.namelist() if n.endswith("wrapper_metadata.json")]
            facts = json.loads(package.read(names[0])) if len(names) == 1 else {}
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError) as error:
        raise ArtifactError(f"{path}: no package, or damaged: {error}") from error
    if damaged is not None:
        raise ArtifactError(f"{path}: damaged in '{damaged}'.")
    if PREFIX + "answers" not in facts:
        raise ArtifactError(f"{path}: a package, but not one of trustgp's.")
    return {name.removeprefix(PREFIX): value for name, value in facts.items()}


def _package(module: torch.fx.GraphModule, flat: list[Tensor], path: Path, settings: dict[str, Any]) -> None:
    """Export the graph for any number of rows, and compile it."""
    from torch._inductor import aoti_compile_and_package

    dynamic = tuple({0: torch.export.Dim.DYNAMIC} for _ in flat)
    program = torch.export.export(module, tuple(flat), dynamic_shapes=dynamic, strict=False)
    aoti_compile_and_package(program, package_path=str(path), inductor_configs=settings)


def _layout(model: UncertaintyModel, rows: Inputs, answers: list[str]) -> dict[str, str]:
    """What who calls the machine code must know: it does not look at what it is given."""
    tensors = leaves(rows)
    layout = {
        "answers": ",".join(answers),
        "input_types": ",".join(str(leaf.dtype).removeprefix("torch.") for leaf in tensors),
        "input_sizes": ",".join(str(leaf[0].numel()) for leaf in tensors),
        "input_shapes": json.dumps([list(leaf.shape[1:]) for leaf in tensors]),
        "device": model.device.type,
        "torch": torch.__version__,
    }
    return {PREFIX + name: value for name, value in layout.items()}
