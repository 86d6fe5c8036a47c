"""The file of a model: no pickle; it loads only with the network that the model was fitted to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import likelihoods, tangents
from ..data.fingerprint import network_fingerprint, same_weights, weights_fingerprints
from ..data.frames import precision_of
from ..data.tensor_file import MAX_HEADER_BYTES, ArtifactError, Reader, write
from ..data.torch_modes import cpu_default
from ..data.trees import Inputs
from ..data.user_warnings import warn_user
from ..data.version import __version__
from ..experts.mixture import Mixture
from ..experts.witness import Witness
from ..likelihoods import Shape
from ..likelihoods.base import novelty_tensors, read_novelty
from ..tangents.base import TangentMap
from ..tangents.called import blank_row, called_predictor, is_called
from ..tangents.modules import check_mode
from ..tangents.network import TangentNetwork
from ..tangents.outputs import Output, as_network, has_output_selector, members_of, named_output, with_output
from ..tangents.probes import Probes, gradient_dtype
from .expert_tensors import mixture_tensors, most_tensors, read_mixture, read_witness, witness_tensors
from .model_state import ModelState, Provenance

KIND = "trustgp-model"
KIND_OF_ROW = re.compile(r"[a-z0-9]+\[[0-9, ]*\]")  # as `data.rows.kinds` writes it
DETECTOR = "trustgp-detector"  # see `detection.state`
ENTRY_BYTES, MAX_OTHER_TENSORS = 130, 100  # header bytes per tensor; most tensors outside of kernels
OTHER_TEXTS = ("trustgp", "picked", "named", "probes", "dense")  # not read as fields of `Provenance`
LISTS = ("names", "lend", "split", "kinds")  # values that are tuples, which JSON does not have


@cpu_default()
def save_state(state: ModelState, path: str | Path) -> None:
    """Write a model completely or not at all. The network is not in the file."""
    write(Path(path), kind=KIND, text=model_text(state), tensors=model_tensors(state))


def check_savable(maps: Sequence[TangentMap], row: Inputs) -> None:
    """Raise where a file could not hold a model with these kernels, before it is fitted."""
    each, names = most_tensors(maps[0], row), maps[0].network.names
    room = (MAX_HEADER_BYTES - sum(map(len, names)) - 4 * len(names)) // ENTRY_BYTES - MAX_OTHER_TENSORS
    if len(maps) * each > room:
        raise ValueError(
            f"kernels: {len(maps)}, of {each} tensors each; a file holds about {room} tensors, so this model "
            "could not be saved. outputs='shared' and 'pseudo' have one kernel for all outputs; fewer "
            "parameters= have fewer tensors."
        )


def model_tensors(state: ModelState) -> dict[str, Tensor]:
    """Tensors of a model, by name, that its file holds besides the text."""
    table: dict[str, Tensor] = {}
    for k, mixture in enumerate(state.mixtures):
        table |= {f"mixture.{k}.{name}": value for name, value in mixture_tensors(mixture).items()}
    if state.witness is not None:
        table |= {f"witness.{name}": value for name, value in witness_tensors(state.witness).items()}
    for k, calibration in enumerate(state.calibrations):
        table |= {f"calibration.{k}.{f.name}": getattr(calibration, f.name) for f in fields(calibration)}
    table |= {} if state.probes is None else state.probes.tensors()
    return table | novelty_tensors(state.held_scores, state.threshold)


def read_model(
    text: dict[str, Any],
    table: Mapping[str, Tensor],
    network: Any,
    *,
    where: str,
    select: Output | None = None,
) -> ModelState:
    """The state from the results of `model_text` and `model_tensors`, every tensor checked. Raise unless
    `network` is the one that it was fitted to; `where` names the file in an error."""
    origin, names, count = _read_origin(text, where)
    if is_called(network):
        network = called_predictor(network, blank_row(origin.kinds))
    network = as_network(network, origin.likelihood.combined)
    same_print = network_fingerprint(network) == origin.network
    if not same_print and not ("probes" in text and same_weights(network, origin.weights)):
        raise ArtifactError(
            f"{where}: was fitted to another network; classes, names or weights differ. Load it with the "
            "network it was fitted to, or fit again."
        )
    check_mode(network)
    selected = named_output if text.get("named") is True else select
    module = with_output(network, selected).requires_grad_(False)
    if not names or not set(names) <= dict(members_of(module)[0].named_parameters()).keys():
        raise ArtifactError(f"{where}: names parameters that the network does not have.")
    prepared = TangentNetwork(module, names, origin.stated)
    prepared.head = origin.head
    if origin.head and prepared.head_weight is None:
        raise ArtifactError(f"{where}: names a layer that the network does not have.")
    reader, probes = Reader(table, where=where), None
    if "probes" in text:
        probes = Probes.read(reader, text["probes"], origin.structure, names, where)
        _check_behaviour(probes, prepared, where, same_print)
    if probes is not None and probes.dtype != (now := precision_of(module)):  # the network was converted
        reader.recast = {gradient_dtype(now): gradient_dtype(probes.dtype)}
        prints = {"network": network_fingerprint(network), "weights": weights_fingerprints(network)}
        origin, probes = replace(origin, **prints), Probes.on(prepared, probes.as_taken(now))
    mixtures = tuple(_read_one(reader, k, origin, prepared) for k in range(count))
    shape = _checked_shape(reader, mixtures, origin)
    calibrations = origin.likelihood.read_calibrations(reader, "calibration.", shape)
    held_scores, threshold = read_novelty(reader)
    witness = None
    if origin.witness is not None and reader.matching("witness."):
        witness = read_witness(reader, "witness.", shape.outputs, origin.rows)
    reader.finish()
    return ModelState(module, mixtures, origin, calibrations, witness, None, held_scores, threshold, probes)


def _check_behaviour(probes: Probes, network: TangentNetwork, where: str, same_print: bool) -> None:
    """Raise where the network's outputs or gradients on the probes are not those of the fit."""
    if difference := probes.difference(network):
        raise ArtifactError(
            f"{where}: was fitted to another network; the weights are the same, but {difference}. Load it "
            "with that network (its settings, attributes, buffers and hooks count), or fit again."
        )
    if not same_print and probes.dtype == precision_of(network.module):
        warn_user(
            f"{where}: the network's layers are not printed as they were in the fit (another class or "
            "setting, or another release of torch). Its weights are the same, and so are its outputs and "
            "gradients on a few rows: it is taken for the same."
        )


def _checked_shape(reader: Reader, mixtures: tuple[Mixture, ...], origin: Provenance) -> Shape:
    """Sizes on which calibrations depend; raise unless the mixtures fit together."""
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


def check_output(picked: Any, select: Output | None, where: str) -> None:
    """Raise where `select` is missing though the model was fitted with one, or given though it was not."""
    if not isinstance(picked, bool):
        raise ArtifactError(f"{where}: its description does not fit together.")
    if picked and select is None:
        raise ArtifactError(
            f"{where}: was fitted with select=, a function of what the network returns; a file holds no "
            "functions. Pass the same one: trustgp.load(path, network, select=...)."
        )
    if select is not None and not picked:
        raise ArtifactError(f"{where}: was fitted without select=; load it without.")


def model_text(state: ModelState) -> dict[str, Any]:
    """Origin of a model, as plain values for the text of its file."""
    origin = state.provenance
    plain = {field.name: getattr(origin, field.name) for field in fields(origin)}
    for name in ("tangents", "likelihood"):
        plain[name] = {"kind": type(plain[name]).__name__, "settings": plain[name].settings()}
    plain["witness"] = None if origin.witness is None else origin.witness.settings()
    plain["names"] = state.mixtures[0].tangents.network.names
    plain |= {name: list(plain[name]) for name in LISTS}
    plain["weights"] = dict(origin.weights)
    if state.probes is not None:
        plain["probes"] = state.probes.text()
    plain["picked"] = has_output_selector(state.network)
    plain["named"] = has_output_selector(state.network, named=True)
    return plain | {"mixtures": len(state.mixtures), "trustgp": __version__}


def _read_origin(text: dict[str, Any], where: str) -> tuple[Provenance, tuple[str, ...], int]:
    """Origin of a model, names of its chosen parameters, and number of mixtures."""
    plain: dict[str, Any] = {"kinds": ()}  # files of 0.2.0 have none
    plain |= {name: text[name] for name in text if name not in OTHER_TEXTS}
    try:
        for name, kinds in (("tangents", tangents.KINDS), ("likelihood", likelihoods.KINDS)):
            if (kind := plain[name]["kind"]) not in kinds:
                place = f"trustgp.{name.removesuffix('s')}s.KINDS"
                raise ValueError(f"{str(kind)[:40]!r} is not in {place}: if it is yours, add it there first")
            plain[name] = kinds[kind](**plain[name]["settings"])
        plain |= {name: tuple(plain[name]) for name in LISTS}
        plain["witness"] = None if plain["witness"] is None else Witness.from_settings(plain["witness"])
        count, names = plain.pop("mixtures"), plain.pop("names")
        origin = Provenance(**plain)
        sane = type(count) is int and len(origin.lend) == count > 0 and _plain_values(origin, names)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{where}: its description is damaged or unknown ({error}).") from error
    if not sane:
        raise ArtifactError(f"{where}: its description does not fit together.")
    return origin, names, count


def _plain_values(origin: Provenance, names: tuple[Any, ...]) -> bool:
    """Whether each value has the required type and range."""
    texts = [origin.network, origin.data, origin.structure, origin.compressed, origin.thinned, *names]
    texts += [origin.head, *origin.kinds, *origin.weights, *origin.weights.values()]
    settings = () if origin.witness is None else tuple(origin.witness.settings().values())
    numbers = (origin.rows, origin.seed, origin.stride, *origin.lend, *origin.split, *settings)
    given, held_out = origin.split
    return (
        all(isinstance(text, str) for text in texts)
        and all(most is None or (type(most) is int and most > 0) for most in (origin.rank, origin.size))
        and all(type(number) is int and -(2**63) <= number < 2**64 for number in numbers)
        and origin.outputs in ("shared", "separate", "pseudo")
        and len(set(names)) == len(names)
        and isinstance(origin.stated, bool)
        and origin.rows > 0
        and origin.stride > 0
        and min(origin.lend) >= 0
        and all(KIND_OF_ROW.fullmatch(kind) for kind in origin.kinds)
        and 0 <= held_out <= given
    )


def _read_one(reader: Reader, index: int, origin: Provenance, network: TangentNetwork) -> Mixture:
    prefix = f"mixture.{index}."
    mix = reader.take(f"{prefix}tangents.mix", torch.float64, None, None)
    reader.require(0 not in mix.shape, f"{prefix}tangents.mix", "mixes nothing")
    state = {"mix": mix}
    for name in reader.matching(f"{prefix}tangents."):
        state[name] = origin.tangents.read_tensor(reader, name, f"{prefix}tangents.{name}", network)
    try:
        tangent_map = origin.tangents.restore(network, state)
    except KeyError as error:
        raise reader.fail(f"{prefix}tangents.{error.args[0]}", "is missing") from error
    except (TypeError, ValueError, RuntimeError) as error:
        raise reader.fail(f"{prefix}tangents.*", f"cannot be restored: {error}") from error
    for unknown in sorted(state.keys() - tangent_map.state().keys()):
        raise reader.fail(f"{prefix}tangents.{unknown}", "is unknown")
    combination = origin.likelihood.output_combination(mix, torch.Generator().manual_seed(origin.seed))
    learnt = None if combination is None else combination.shape[1]
    return read_mixture(reader, prefix, tangent_map, origin.likelihood, learnt)
