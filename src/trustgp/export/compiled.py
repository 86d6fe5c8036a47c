"""A fitted model as an AOTInductor package: compiled code, for C++ programs and for Python."""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import os
import platform
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..data.atomic_file import atomic_file
from ..data.tensor_file import ArtifactError, require_plain
from ..data.torch_modes import cpu_default
from ..data.trees import Inputs, count, leaves, take, to_device
from ..model import UncertaintyModel
from .detector_file import as_served
from .metadata import PREFIX, rows_like
from .trace.trace import traced
from .verify import export_source

SUFFIX = ".pt2"
TRACED_ROWS = 3  # torch treats a size of 0 or 1 as a constant
SEAL = b"trustgp sha256 "  # the comment at the end of the archive; then the digest of all bytes before it
DIGITS = 64  # length of the digest
NEEDED = ("answers", "structure", "input_types", "input_shapes", "device")
MAX_METADATA_BYTES = 2**20  # bytes of metadata that are unpacked, at most


@cpu_default()
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

    It is compiled for this kind of machine and for the model's device, and written only if it equals
    `model.predict` at several batch sizes. It needs a C++ compiler and a minute. Returns the path.

    Args:
        path: The file to write; its name ends in ".pt2".
        example_inputs: A few rows, or pictures, as the network takes them. None: training rows, if the model
            still has them.
        options: Settings of inductor, such as {"max_autotune": True}.
        model, input_names, output_names, input_units, output_units, calibration_date: As for `export_onnx`.

    Raises:
        ExportError: When the model cannot be exported, or the package differs from `model.predict`.

    Examples:
        >>> path = trustgp.compile(model, "arm.pt2", inputs[:2])
    """
    path = Path(path)
    if path.suffix != SUFFIX:
        raise ValueError(f"path={str(path)!r}; a package's name must end in {SUFFIX}.")
    source = export_source(model)
    rows = to_device(source.inputs(example_inputs), device := next(model.network.parameters()).device)
    facts = source.facts(rows, (input_names, input_units, output_names, output_units), calibration_date)
    # under its final name, which a package must have; first, so that a bad folder is refused before the work
    with atomic_file(path, named=True) as temporary:
        module = traced(model, rows)
        flat = [leaf.contiguous() for leaf in leaves(take(rows, torch.arange(TRACED_ROWS) % count(rows)))]
        layout = {  # for callers; the compiled code does not validate its inputs
            "answers": ",".join(module(*flat)),
            "input_types": ",".join(str(leaf.dtype).removeprefix("torch.") for leaf in flat),
            "input_sizes": ",".join(str(leaf[0].numel()) for leaf in flat),
            "input_shapes": json.dumps([list(leaf.shape[1:]) for leaf in flat]),
            "device": device.type,
            "torch": torch.__version__,
        }
        facts |= {PREFIX + name: value for name, value in layout.items()}
        facts["AOTI_MACHINE"] = platform.machine()  # torch after 2.6 writes it, too
        _package(module, flat, temporary, {"aot_inductor.metadata": facts, **(options or {})})
        seal(temporary)
        source.check(load_package(temporary), rows, what="package")
    return path


def open_compiled(path: str | Path) -> Compiled | Any:
    """Open a package of `trustgp.compile`; a detector's package opens as an `ExportedDetector`.

    Opening it runs compiled code: open only files that you trust. Damaged files, other packages, and packages
    for another kind of machine are refused before any code runs.

    Examples:
        >>> variance = trustgp.export.open_compiled(path)(inputs)["variance"]
    """
    return as_served(load_package(path), str(path))


def load_package(path: str | Path) -> Compiled:
    """Open the package of any model; it returns tensors by name."""
    from torch._inductor import aoti_load_package

    facts = read_facts(Path(path))
    machine, here = facts.get("AOTI_MACHINE", ""), platform.machine()
    capability = torch.backends.cpu.get_cpu_capability()
    unsupported = "AVX512" in facts.get("AOTI_CPU_ISA", "") and "AVX512" not in capability
    if machine not in ("", here) or unsupported:
        other = f"{machine} with {facts.get('AOTI_CPU_ISA')}; this is {here} with {capability}"
        raise ArtifactError(f"{path}: compiled for {other}. Compile it on this kind of machine.")
    if facts["device"] == "cuda" and not torch.cuda.is_available():
        raise ArtifactError(f"{path}: compiled for a GPU, and this machine has none.")
    try:
        shapes = [tuple(int(size) for size in shape) for shape in json.loads(facts["input_shapes"])]
        types = [getattr(torch, name) for name in facts["input_types"].split(",")]
        if len(shapes) != len(types) or not all(isinstance(dtype, torch.dtype) for dtype in types):
            raise ValueError(f"{len(shapes)} shapes, types {types}")
        layout = shapes, types, torch.device(facts["device"])
    except (AttributeError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise ArtifactError(f"{path}: its metadata are damaged or unknown ({error!r}).") from error
    try:
        return Compiled(aoti_load_package(str(path)), facts, layout)
    except RuntimeError as error:  # torch has no error class of its own for it
        raise ArtifactError(f"{path}: torch cannot load its code: {error}") from error


class Compiled:
    """An opened package: a function of rows that returns a dict of tensors; see `Graph.forward`."""

    def __init__(self, run: Any, metadata: Mapping[str, str], layout: tuple[Any, ...]) -> None:
        self._run, self._structure = run, metadata["structure"]
        self._shapes, self._types, self._device = layout  # shapes are those of one row
        self.metadata = MappingProxyType(dict(metadata))
        self.output_names = tuple(metadata["answers"].split(","))

    def __call__(self, inputs: Inputs) -> dict[str, Tensor]:
        """The outputs for these rows, by name; shapes are validated here, as the compiled code does not."""
        flat, tensors = [], leaves(rows_like(inputs, self._structure))
        for leaf, shape, dtype in zip(tensors, self._shapes, self._types, strict=True):
            if tuple(leaf.shape[1:]) != shape:
                raise ValueError(f"rows have the shape {tuple(leaf.shape[1:])}; this takes {shape}.")
            flat.append(leaf.to(self._device, dtype).contiguous())
        return dict(self._run(*flat))

    def __repr__(self) -> str:
        outputs = ", ".join(self.output_names)
        return f"Compiled({self._structure} {self._shapes} on {self._device} to {outputs})"


def seal(path: Path) -> None:
    """Append the SHA-256 of all bytes to a package: it detects damage, not attackers."""
    with open(path, "r+b") as file:
        file.seek(-2, os.SEEK_END)  # the length of the comment, which is 0 in torch's archives
        file.write((len(SEAL) + DIGITS).to_bytes(2, "little") + SEAL)
        file.seek(0)
        file.write(hashlib.sha256(file.read()).hexdigest().encode())


def read_facts(path: Path) -> dict[str, str]:
    """Metadata of an undamaged package; none of its code is run."""
    require_plain(path)
    content = path.read_bytes()
    if content[-DIGITS - len(SEAL) : -DIGITS] != SEAL:
        old = "Those of releases up to 0.2 have no checksum: compile the model again."
        raise ArtifactError(f"{path}: not a package of trustgp, or truncated. {old}")
    if hashlib.sha256(content[:-DIGITS]).hexdigest().encode() != content[-DIGITS:]:
        raise ArtifactError(f"{path}: damaged: its SHA-256 is not the one it was written with.")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as package:
            names = [n for n in package.namelist() if n.endswith("_metadata.json")]
            (name,) = [n for n in names if "kernel_metadata" not in n]  # torch 2.6 has one, newer ones two
            facts = json.loads(package.open(name).read(MAX_METADATA_BYTES))
    except Exception as error:  # zipfile has no common class for the errors of forged archives
        raise ArtifactError(f"{path}: not a package of trustgp ({error!r}).") from error
    texts = isinstance(facts, dict) and all(isinstance(value, str) for value in facts.values())
    if not texts or not {PREFIX + fact for fact in NEEDED} <= facts.keys():
        raise ArtifactError(f"{path}: a package, but not one of trustgp.")
    return {name.removeprefix(PREFIX): value for name, value in facts.items()}


def _package(module: torch.fx.GraphModule, flat: list[Tensor], path: Path, settings: dict[str, Any]) -> None:
    """Export the graph for any number of rows, and compile it."""
    from torch._inductor import aoti_compile_and_package

    dynamic = tuple({0: torch.export.Dim.DYNAMIC} for _ in flat)
    program = torch.export.export(module, tuple(flat), dynamic_shapes=dynamic, strict=False)
    aoti_compile_and_package(program, package_path=str(path), inductor_configs=settings)
