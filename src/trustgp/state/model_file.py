"""The file of a model: no pickle, refused with any other network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import likelihoods, tangents
from ..data.fingerprint import network_fingerprint
from ..data.tensor_file import ArtifactError, Reader, write, written_bytes
from ..data.version import __version__
from ..experts.mixture import Mixture
from ..experts.witness import Witness
from ..likelihoods import Shape
from ..likelihoods.base import novelty_tensors, read_novelty
from ..tangents.modules import Output, check_mode, has_output_selector, with_output
from ..tangents.network import TangentNetwork
from .expert_tensors import mixture_tensors, read_mixture, read_witness, witness_tensors
from .model_state import ModelState, Provenance

KIND = "trustgp-model"
DETECTOR = "trustgp-detector"  # see `detection.state`
LISTS = ("names", "lend", "split")  # of an origin: tuples, which JSON does not know


def save_state(state: ModelState, path: str | Path) -> None:
    """Write a model whole or not at all. The network is not in the file."""
    write(Path(path), kind=KIND, text=model_text(state), tensors=model_tensors(state))


def file_bytes(state: ModelState) -> int:
    """How long the file would be that `save_state` writes."""
    return written_bytes(kind=KIND, text=model_text(state), tensors=model_tensors(state))


def model_tensors(state: ModelState) -> dict[str, Tensor]:
    """What a file holds of a model beside its text."""
    table: dict[str, Tensor] = {}
    for k, mixture in enumerate(state.mixtures):
        table |= {f"mixture.{k}.{name}": value for name, value in mixture_tensors(mixture).items()}
    if state.witness is not None:
        table |= {f"witness.{name}": value for name, value in witness_tensors(state.witness).items()}
    for k, calibration in enumerate(state.calibrations):
        for field in fields(calibration):
            table[f"calibration.{k}.{field.name}"] = getattr(calibration, field.name)
    return table | novelty_tensors(state.held_scores, state.threshold)


def read_model(
    text: dict[str, Any],
    table: Mapping[str, Tensor],
    network: nn.Module,
    *,
    where: str,
    output: Output | None = None,
) -> ModelState:
    """The state of what `model_text` and `model_tensors` gave, every tensor checked. Any other network than
    the one it was fitted to is refused; `where` names the file in an error."""
    origin, count = _read_origin(text, where)
    if network_fingerprint(network) != origin.network:
        raise ArtifactError(
            f"{where}: was fitted to another network; classes, names or weights differ. Load it with the "
            "network it was fitted to, or fit again."
        )
    check_mode(network)
    module = with_output(network, output).requires_grad_(False)
    known = dict(module.named_parameters())
    if not origin.names or any(name not in known for name in origin.names):
        raise ArtifactError(f"{where}: names parameters that the network does not have.")
    prepared = TangentNetwork(module, origin.names)
    reader = Reader(table, where=where)
    mixtures = tuple(_read_one(reader, k, origin, prepared) for k in range(count))
    shape = _checked_shape(reader, mixtures, origin)
    calibrations = origin.likelihood.read_calibrations(reader, "calibration.", shape)
    held_scores, threshold = read_novelty(reader)
    witness = None
    if origin.witness is not None and reader.matching("witness."):
        witness = read_witness(reader, "witness.", shape.outputs, origin.rows)
    reader.finish()
    return ModelState(module, mixtures, origin, calibrations, witness, None, held_scores, threshold)


def _checked_shape(reader: Reader, mixtures: tuple[Mixture, ...], origin: Provenance) -> Shape:
    """The sizes of mixtures that fit together."""
    outputs = mixtures[0].tangents.mix.shape[1]
    for k, mixture in enumerate(mixtures):
        mixed = mixture.tangents.mix.shape[1] == outputs
        reader.require(mixed, f"mixture.{k}.tangents.mix", f"does not mix {outputs} outputs")
        below = all(bool((expert.rows < origin.rows).all()) for expert in mixture.experts)
        reader.require(below, f"mixture.{k}.experts.rows", f"names rows beyond 0..{origin.rows - 1}")
    served = torch.cat([mixture.outputs for mixture in mixtures])
    each = torch.equal(served, torch.arange(outputs))
    reader.require(each, "mixture.*.outputs", f"do not serve each of {outputs} outputs once")
    return Shape(outputs, tuple(len(mixture.experts) for mixture in mixtures))


def check_output(picked: Any, output: Output | None, where: str) -> None:
    """A model that was fitted with a function for its output needs one, another must not have one."""
    if not isinstance(picked, bool):
        raise ArtifactError(f"{where}: its description does not fit together.")
    if picked and output is None:
        raise ArtifactError(
            f"{where}: was fitted with output=, a function that picks the network's output; a file does not "
            "hold functions. Pass the same one: trustgp.load(path, network, output=...)."
        )
    if output is not None and not picked:
        raise ArtifactError(f"{where}: was fitted without output=; load it without.")


def model_text(state: ModelState) -> dict[str, Any]:
    """Where a model comes from, as plain values."""
    origin = state.provenance
    plain = {field.name: getattr(origin, field.name) for field in fields(origin)}
    for name in ("tangents", "likelihood"):
        plain[name] = {"kind": type(plain[name]).__name__, "settings": plain[name].settings()}
    plain["witness"] = None if origin.witness is None else origin.witness.settings()
    plain |= {name: list(plain[name]) for name in LISTS}
    plain["picked"] = has_output_selector(state.network)
    return plain | {"mixtures": len(state.mixtures), "trustgp": __version__}


def _read_origin(text: dict[str, Any], where: str) -> tuple[Provenance, int]:
    """The origin, and how many mixtures there are."""
    plain = dict(text)
    plain.pop("trustgp", None)
    plain.pop("picked", None)
    try:
        count = plain.pop("mixtures")
        for name, kinds in (("tangents", tangents.KINDS), ("likelihood", likelihoods.KINDS)):
            plain[name] = kinds[plain[name]["kind"]](**plain[name]["settings"])
        for name in LISTS:
            plain[name] = tuple(plain[name])
        plain["witness"] = None if plain["witness"] is None else Witness.from_settings(plain["witness"])
        origin = Provenance(**plain)
        sane = type(count) is int and len(origin.lend) == count > 0
        sane = sane and _plain_values(origin)
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{where}: its description is damaged or unknown ({error}).") from error
    if not sane:
        raise ArtifactError(f"{where}: its description does not fit together.")
    return origin, count


def _plain_values(origin: Provenance) -> bool:
    """Whether each value is of the type it must have."""
    texts = (origin.network, origin.data, origin.structure, origin.compressed, *origin.names)
    formed = () if origin.witness is None else tuple(origin.witness.settings().values())
    numbers = (origin.rows, origin.seed, *origin.lend, *origin.split, *formed)
    return (
        all(isinstance(text, str) for text in texts)
        and all(most is None or (type(most) is int and most > 0) for most in (origin.rank, origin.size))
        and all(type(number) is int for number in numbers)
        and origin.outputs in ("shared", "separate", "pseudo")
        and len(set(origin.names)) == len(origin.names)
        and origin.rows > 0
        and min(origin.lend) >= 0
        and len(origin.split) == 2
        and 0 <= origin.split[1] <= origin.split[0]
    )


def _read_one(reader: Reader, index: int, origin: Provenance, network: TangentNetwork) -> Mixture:
    prefix = f"mixture.{index}."
    mix = reader.take(f"{prefix}tangents.mix", torch.float64, None, None)
    reader.require(0 not in mix.shape, f"{prefix}tangents.mix", "mixes nothing")
    state, last = {"mix": mix}, network.num_parameters - 1
    for name in reader.matching(f"{prefix}tangents."):
        full = f"{prefix}tangents.{name}"
        if name.startswith(("left.", "right.")):  # a projection
            value = state[name] = reader.take(full, network.dtype, None, None)
            reader.require(0 not in value.shape and torch.isfinite(value), full, "projects nothing")
        elif name in ("row_bytes", "working_bytes"):  # a size
            value = state[name] = reader.take(full, torch.int64)
            reader.require(value >= 1, full, f"is {int(value)}; a row takes memory")
        else:  # places in the vector of the chosen parameters
            value = state[name] = reader.take(full, torch.int64, None)
            known = len(value) > 0 and (value >= 0) & (value <= last)
            reader.require(known, full, f"names parameters beyond 0..{last}")
    try:
        tangent_map = origin.tangents.restore(network, state)
    except KeyError as error:
        raise reader.fail(f"{prefix}tangents.{error.args[0]}", "is missing") from error
    except (TypeError, ValueError, RuntimeError) as error:
        raise reader.fail(f"{prefix}tangents.*", f"cannot be restored: {error}") from error
    for unknown in sorted(state.keys() - tangent_map.state().keys()):
        raise reader.fail(f"{prefix}tangents.{unknown}", "is unknown")
    blended = origin.likelihood.output_combination(mix, torch.Generator().manual_seed(origin.seed))
    return read_mixture(reader, prefix, tangent_map, None if blended is None else blended.shape[1])
