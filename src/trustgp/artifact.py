"""`model.save` and `trustgp.load`: one file, no pickle, refused with any other network."""

from __future__ import annotations

import copy
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import likelihoods, tangents
from .fingerprint import network_fingerprint
from .math.calibration import Calibration
from .mixture import Mixture
from .model import Origin, UncertaintyModel
from .safefile import ArtifactError, Reader, read, write
from .state import mixture_tensors, read_mixture
from .tangents.network import TangentNetwork

KIND = "trustgp-model"


def save(model: UncertaintyModel, path: str | Path) -> None:
    """Write a model whole or not at all. Neither the network nor the training targets are in the file."""
    table: dict[str, Tensor] = {}
    for k, mixture in enumerate(model.mixtures):
        table |= {f"mixture.{k}.{name}": value for name, value in mixture_tensors(mixture).items()}
    for k, calibration in enumerate(model.calibrations):
        for field in fields(calibration):
            table[f"calibration.{k}.{field.name}"] = getattr(calibration, field.name)
    write(Path(path), kind=KIND, text=_origin_text(model), tensors=table)


def load(
    path: str | Path, network: nn.Module, *, device: str | torch.device | None = None
) -> UncertaintyModel:
    """Read a model that was saved, for the network it was fitted to.

    Args:
        path: The file.
        network: The same trained network; other weights are refused.
        device: Where to put the model; None: where the network is.
    """
    text, table = read(Path(path), kind=KIND)
    origin, count = _read_origin(text, str(path))
    if network_fingerprint(network) != origin.network:
        raise ArtifactError(
            f"{path}: was fitted to another network; classes, names or weights differ. Load it with the "
            "network it was fitted to, or fit again."
        )
    module = copy.deepcopy(network).requires_grad_(False)
    known = dict(module.named_parameters())
    if not origin.names or any(name not in known for name in origin.names):
        raise ArtifactError(f"{path}: names parameters that the network does not have.")
    prepared = TangentNetwork(module, origin.names)
    reader = Reader(table, where=str(path))
    mixtures = tuple(_read_one(reader, k, origin, prepared) for k in range(count))
    outputs = mixtures[0].tangents.mix.shape[1]
    served = torch.cat([mixture.outputs for mixture in mixtures])
    if not torch.equal(served, torch.arange(outputs)):
        raise reader.fail("mixture.*.outputs", f"do not serve each of {outputs} outputs once")
    calibrations = (_read_calibration(reader, 0, outputs), _read_calibration(reader, 1, outputs))
    reader.finish()
    model = UncertaintyModel(module, mixtures, calibrations, origin)
    target = next(network.parameters()).device if device is None else torch.device(device)
    return model.to(target)


def describe(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The saved text and tensors, without a network: for `trustgp inspect`."""
    return read(Path(path), kind=KIND)


def _origin_text(model: UncertaintyModel) -> dict[str, Any]:
    from . import __version__

    origin = model.origin
    plain = {field.name: getattr(origin, field.name) for field in fields(origin)}
    for name in ("tangents", "likelihood"):
        plain[name] = {"kind": type(plain[name]).__name__, "settings": plain[name].settings()}
    plain |= {name: list(plain[name]) for name in ("names", "cap", "lend")}
    return plain | {"mixtures": len(model.mixtures), "trustgp": __version__}


def _read_origin(text: dict[str, Any], where: str) -> tuple[Origin, int]:
    """The origin, and how many mixtures there are."""
    plain = dict(text)
    plain.pop("trustgp", None)
    try:
        count = plain.pop("mixtures")
        for name, kinds in (("tangents", tangents.KINDS), ("likelihood", likelihoods.KINDS)):
            plain[name] = kinds[plain[name]["kind"]](**plain[name]["settings"])
        for name in ("names", "cap", "lend"):
            plain[name] = tuple(plain[name])
        origin = Origin(**plain)
        sane = isinstance(count, int) and len(origin.cap) == len(origin.lend) == count > 0
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{where}: its description is damaged or unknown ({error}).") from error
    if not sane:
        raise ArtifactError(f"{where}: its description does not fit together.")
    return origin, count


def _read_one(reader: Reader, index: int, origin: Origin, network: TangentNetwork) -> Mixture:
    prefix = f"mixture.{index}."
    mix = reader.take(f"{prefix}tangents.mix", torch.float64, None, None)
    names = reader.matching(f"{prefix}tangents.")
    state = {"mix": mix}
    for name in names:
        shape = () if name == "row_bytes" else (None,)
        state[name] = reader.take(f"{prefix}tangents.{name}", torch.int64, *shape)
    try:
        tangent_map = origin.tangents.restore(network, state)
    except (KeyError, ValueError, RuntimeError) as error:
        raise reader.fail(f"{prefix}tangents", f"cannot be restored: {error}") from error
    return read_mixture(reader, prefix, tangent_map)


def _read_calibration(reader: Reader, index: int, outputs: int) -> Calibration:
    real, prefix = torch.float64, f"calibration.{index}."
    values = {
        field.name: reader.take(prefix + field.name, real, *((outputs,) if field.name == "level" else ()))
        for field in fields(Calibration)
    }
    for name in ("fade", "onset", "level", "excess"):
        if not bool((values[name] >= 0).all()):
            raise reader.fail(prefix + name, "must not be negative")
    return Calibration(**values)
