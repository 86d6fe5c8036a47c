"""A fitted model as an AOTInductor package: machine code, for C++ programs and for Python."""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import os
import platform
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..data.atomic_file import atomic_file
from ..data.tensor_file import ArtifactError, require_plain
from ..data.trees import Inputs, count, leaves, take, to_device
from ..model import UncertaintyModel
from .detector_file import as_served
from .metadata import PREFIX, rows_like
from .source import export_source
from .trace.trace import traced

SUFFIX = ".pt2"
TRACED_ROWS = 3  # torch takes a size of 0 or 1 for a constant
SEAL = b"trustgp sha256 "  # the comment that ends the archive; then the digest of all bytes before it
DIGITS = 64  # of the digest
NEEDED = ("answers", "structure", "input_types", "input_shapes", "device")
LONGEST_FACTS = 2**20  # bytes of the metadata that are unpacked


def compile(
    model: UncertaintyModel | Any,
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
        example_inputs: A few rows, or pictures, as the network takes them. None: training rows, if it still
            has them.
        options: Settings of inductor, such as {"max_autotune": True}.
        model, input_names, output_names, input_units, output_units, calibration_date: As of `export_onnx`.

    Raises:
        ExportError: When the model cannot be exported, or the package does not say what `model.predict` says.
    """
    path = Path(path)
    if path.suffix != SUFFIX:
        raise ValueError(f"path={str(path)!r}; a package's name must end in {SUFFIX}.")
    source = export_source(model)
    device = next(source.network.parameters()).device
    rows = to_device(source.inputs(example_inputs), device)
    columns = (input_names, input_units, output_names, output_units)
    facts = source.facts(rows, columns, calibration_date)
    # under its own name, which a package must have; first, so that a folder is refused before the work
    with atomic_file(path, named=True) as made:
        module = traced(model, rows)
        flat = [leaf.contiguous() for leaf in leaves(take(rows, torch.arange(TRACED_ROWS) % count(rows)))]
        facts |= _layout(device, rows, list(module(*flat)))
        _package(module, flat, made, {"aot_inductor.metadata": facts, **(options or {})})
        seal(made)
        source.check(opened(made), rows, what="package")
    return path


def open_compiled(path: str | Path) -> Compiled | Any:
    """Open a package that `trustgp.compile` has made; of a detector it is an `ExportedDetector`.

    It holds machine code, which runs when it is opened: open only files that you trust. Damaged files, other
    packages, and those for another kind of machine are refused before that.
    """
    return as_served(opened(path), str(path))


def opened(path: str | Path) -> Compiled:
    """The same, which gives arrays whatever the model is."""
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
    layout = _read_layout(facts, str(path))
    try:
        return Compiled(aoti_load_package(str(path)), facts, layout)
    except RuntimeError as error:  # of torch, which has no kind of its own for it
        raise ArtifactError(f"{path}: torch cannot load its code: {error}") from error


@dataclass(frozen=True)
class InputLayout:
    """What the machine code takes, leaf by leaf."""

    shapes: list[tuple[int, ...]]  # of one row
    types: list[torch.dtype]
    device: torch.device


def _read_layout(facts: Mapping[str, str], where: str) -> InputLayout:
    try:
        shapes = [tuple(int(size) for size in shape) for shape in json.loads(facts["input_shapes"])]
        types = [getattr(torch, name) for name in facts["input_types"].split(",")]
        layout = InputLayout(shapes, types, torch.device(facts["device"]))
        sane = len(shapes) == len(types) and all(isinstance(one, torch.dtype) for one in types)
    except (AttributeError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise ArtifactError(f"{where}: its metadata are damaged or unknown ({error!r}).") from error
    if not sane:
        raise ArtifactError(f"{where}: its metadata do not fit together.")
    return layout


class Compiled:
    """An opened package: called with some rows, it gives a dict of tensors; see `Graph.forward`."""

    def __init__(self, run: Any, metadata: Mapping[str, str], layout: InputLayout) -> None:
        self._run = run
        self.metadata = MappingProxyType(dict(metadata))
        self.output_names = tuple(metadata["answers"].split(","))
        self._structure = metadata["structure"]
        self._layout = layout

    def __call__(self, inputs: Inputs) -> dict[str, Tensor]:
        """The answers for these rows, by name. The machine code does not look at what it is given, so that is
        done here: structure, shapes, at least one row; numbers of another precision are converted."""
        inputs = rows_like(inputs, self._structure)
        flat = []
        for leaf, shape, dtype in zip(leaves(inputs), self._layout.shapes, self._layout.types, strict=True):
            if tuple(leaf.shape[1:]) != shape:
                raise ValueError(f"rows have the shape {tuple(leaf.shape[1:])}; this takes {shape}.")
            flat.append(leaf.to(self._layout.device, dtype).contiguous())
        return dict(self._run(*flat))

    def __repr__(self) -> str:
        inputs, answers = f"{self._structure} {self._layout.shapes}", ", ".join(self.output_names)
        return f"Compiled({inputs} on {self._layout.device} to {answers})"


def seal(path: Path) -> None:
    """End a package with the SHA-256 of all its bytes: it finds damage, not attackers."""
    with open(path, "r+b") as file:
        file.seek(-2, os.SEEK_END)  # the length of the comment, which an archive of torch's has not
        file.write((len(SEAL) + DIGITS).to_bytes(2, "little") + SEAL)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.write(digest.encode())


def read_facts(path: Path) -> dict[str, str]:
    """The metadata of a package that is whole; none of its code is run."""
    require_plain(path)
    whole = path.read_bytes()
    if whole[-DIGITS - len(SEAL) : -DIGITS] != SEAL:
        raise ArtifactError(
            f"{path}: no package of trustgp's, or cut short. Those of releases up to 0.2 have no checksum: "
            "compile the model again."
        )
    if hashlib.sha256(whole[:-DIGITS]).hexdigest().encode() != whole[-DIGITS:]:
        raise ArtifactError(f"{path}: damaged: its SHA-256 is not the one it was written with.")
    try:
        with zipfile.ZipFile(io.BytesIO(whole)) as package:
            (name,) = [n for n in package.namelist() if n.endswith("wrapper_metadata.json")]
            with package.open(name) as file:
                facts = json.loads(file.read(LONGEST_FACTS))
    except Exception as error:  # zipfile has no common class for what it meets in a forged archive
        raise ArtifactError(f"{path}: no package of trustgp's ({error!r}).") from error
    texts = isinstance(facts, dict) and all(isinstance(value, str) for value in facts.values())
    if not texts or not {PREFIX + fact for fact in NEEDED} <= facts.keys():
        raise ArtifactError(f"{path}: a package, but not one of trustgp's.")
    return {name.removeprefix(PREFIX): value for name, value in facts.items()}


def _package(module: torch.fx.GraphModule, flat: list[Tensor], path: Path, settings: dict[str, Any]) -> None:
    """Export the graph for any number of rows, and compile it."""
    from torch._inductor import aoti_compile_and_package

    dynamic = tuple({0: torch.export.Dim.DYNAMIC} for _ in flat)
    program = torch.export.export(module, tuple(flat), dynamic_shapes=dynamic, strict=False)
    aoti_compile_and_package(program, package_path=str(path), inductor_configs=settings)


def _layout(device: torch.device, rows: Inputs, answers: list[str]) -> dict[str, str]:
    """What who calls the machine code must know: it does not look at what it is given."""
    tensors = leaves(rows)
    layout = {
        "answers": ",".join(answers),
        "input_types": ",".join(str(leaf.dtype).removeprefix("torch.") for leaf in tensors),
        "input_sizes": ",".join(str(leaf[0].numel()) for leaf in tensors),
        "input_shapes": json.dumps([list(leaf.shape[1:]) for leaf in tensors]),
        "device": device.type,
        "torch": torch.__version__,
    }
    return {PREFIX + name: value for name, value in layout.items()}
