"""Optional packages of the studies: asked for before any long work, by the name of their extra."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

PEERS = "pip install --no-deps laplace-torch backpack-for-pytorch curvlinops-for-pytorch"
MODULES = {
    "plots": ("matplotlib",),
    "detection": ("transformers", "PIL"),
    "hf": ("transformers",),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "ray": ("ray",),
    "peers": ("laplace",),
}
"""By extra of the distribution, the modules that tell whether it is there."""


def require_extras(what: str, extras: Iterable[str]) -> None:
    """An ImportError that names what is missing and the command that brings it; else nothing.

    Args:
        what: Needs them, in words: "The study toy".
        extras: Names of `MODULES`.
    """
    missing = {extra: gone for extra in extras if (gone := [m for m in MODULES[extra] if not _there(m)])}
    if missing:
        modules = ", ".join(dict.fromkeys(name for gone in missing.values() for name in gone))
        commands = [
            f'pip install "trustgp[{",".join(missing)}]"',
            *([PEERS] if "peers" in missing else []),
        ]
        raise ImportError(f"{what} needs {modules}, which is not installed: {'; then '.join(commands)}")


def _there(module: str) -> bool:
    return find_spec(module) is not None
