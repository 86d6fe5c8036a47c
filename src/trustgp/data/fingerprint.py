"""Fingerprints that identify a network and its data."""

import hashlib
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from .chunking import CHUNK_BYTES, byte_chunks, chunks
from .frames import precision_of
from .rows import Rows
from .trees import leaves, raw_bytes, structure


def network_fingerprint(network: nn.Module) -> str:
    """SHA-256 over the modules' classes and printed settings and every parameter and buffer that is saved.

    The printed settings (`extra_repr`) hold what no tensor holds, such as the slope of a LeakyReLU; they are
    made equal for all releases of torch, since 2.13 began to print the bias of norms. A renamed class of
    ours keeps its old name in `FINGERPRINT`, so that files written before still load.
    """
    digest = hashlib.sha256()
    for name, module in network.named_modules():
        kind = getattr(type(module), "FINGERPRINT", type(module).__name__)
        digest.update(f"{name}:{kind}({_printed(module)});".encode())
    return _add_weights(digest, network, None)


def _add_weights(digest: Any, network: nn.Module, precision: torch.dtype | None) -> str:
    """Hex digest after adding every saved parameter and buffer, in this precision (None: its own)."""
    for name, value in sorted(network.state_dict().items()):
        digest.update(name.encode())
        if isinstance(value, Tensor):
            update(digest, value.to(precision) if precision and value.is_floating_point() else value)
    return digest.hexdigest()


NORMALISATIONS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)


def _printed(module: nn.Module) -> str:
    """The settings of a module, as torch 2.13 prints them."""
    printed = module.extra_repr()
    if not isinstance(module, NORMALISATIONS) or "bias=" in printed:
        return printed
    return re.sub(r"affine=(True|False)", rf"\g<0>, bias={module.bias is not None}", printed)


PRECISIONS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)  # from fine to coarse


def weights_fingerprints(network: nn.Module) -> dict[str, str]:
    """SHA-256 over names and values of every saved parameter and buffer, by precision: the network's own and
    each coarser one, so that a converted network is recognised."""
    names = PRECISIONS[PRECISIONS.index(precision_of(network)) :]
    with ThreadPoolExecutor(len(names)) as pool:  # hashing releases the interpreter
        prints = pool.map(lambda one: _add_weights(hashlib.sha256(), network, one), names)
        return dict(zip(map(str, names), prints, strict=True))


def same_weights(network: nn.Module, prints: Mapping[str, str]) -> bool:
    """Whether the network has the weights of `prints`, compared in the coarser of both precisions."""
    if not (stored := [one for one in PRECISIONS if str(one) in prints]):
        return False
    coarser = PRECISIONS[max(PRECISIONS.index(stored[0]), PRECISIONS.index(precision_of(network)))]
    return _add_weights(hashlib.sha256(), network, coarser) == prints.get(str(coarser))


def rows_fingerprint(rows: Rows, extra: Tensor | None) -> str:
    """SHA-256 over inputs, targets and, if given, one more tensor (the groups) and the weights."""
    digest: Any = hashlib.sha256(structure(rows.first).encode())
    for number, leaf in enumerate(leaves(rows.first)):
        digest.update(f"{leaf.dtype}{(len(rows), *leaf.shape[1:])}".encode())
        # a few rows at a time: rows on a disk or on a GPU are never copied as a whole
        for index in chunks(len(rows), max(1, CHUNK_BYTES // max(1, leaf.nbytes))):
            digest.update(raw_bytes(leaves(rows.take(index))[number]))
    for tensor in (rows.targets, extra, rows.weights):
        if tensor is not None:
            update(digest, tensor)
    return digest.hexdigest()


def tensor_fingerprint(*tensors: Tensor, text: str = "") -> str:
    """SHA-256 over a text and some tensors."""
    digest = hashlib.sha256(text.encode())
    for tensor in tensors:
        update(digest, tensor)
    return digest.hexdigest()


def update(digest: Any, tensor: Tensor) -> None:
    """Add a tensor's dtype, shape and bytes to a digest."""
    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    for part in byte_chunks(tensor) if tensor.ndim and tensor.numel() else [tensor]:
        digest.update(raw_bytes(part))
