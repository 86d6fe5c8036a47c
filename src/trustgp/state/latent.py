"""The network, experts and witness of a model, before calibration."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..data.trees import Inputs, copied, count, leaves, to_device
from ..experts.features import chunk_rows
from ..experts.mixture import LatentPrediction
from ..experts.witness import WitnessPrediction
from ..tangents.base import Features, TangentMap
from ..tangents.network import as_matrix, call
from ..tangents.outputs import StatedOutputs, log_variance

MAX_CACHED_SHAPES = 64
MAX_SHARED_BYTES = 2**24  # of explicit features computed together with the outputs


class SharedForward:
    """The network's outputs, to the bit, and the features of the rows where one pass gives both. A network
    may round differently while hooks watch its layers, for example in fused attention: for inputs of a new
    shape both passes are run and compared."""

    def __init__(self) -> None:
        self._dimensions: dict[tuple, int] = {}  # of the outputs, by input shapes; 0: the passes differ

    def __call__(
        self, network: nn.Module, tangents: TangentMap, inputs: Inputs
    ) -> tuple[Any, Features | None]:
        """Outputs for inputs on the network's device, and features where the same pass gave them."""
        shapes = tuple((tuple(leaf.shape), leaf.dtype, leaf.device) for leaf in leaves(inputs))
        ndim = self._dimensions.get(shapes)
        if ndim == 0 or ((n := count(inputs)) > 1 and n > _most_shared(tangents)):
            return call(network, copied(inputs)), None
        try:
            features, watched = tangents.with_outputs(inputs)
        except torch.OutOfMemoryError:  # on a GPU: the features are then computed in smaller chunks
            return call(network, copied(inputs)), None
        if ndim and watched is not None:
            return (watched if ndim == 2 else watched[:, 0]), features
        outputs = call(network, copied(inputs))
        one_pass = ndim is None and tangents.network.one_pass
        if one_pass and bool(torch.isfinite(outputs).all()):  # NaN equals nothing
            if len(self._dimensions) >= MAX_CACHED_SHAPES:
                self._dimensions.clear()
            matrix = as_matrix(outputs)
            same = watched is not None and watched.dtype == matrix.dtype and torch.equal(watched, matrix)
            self._dimensions[shapes] = outputs.ndim if same else 0
        return outputs, features


def _most_shared(tangents: TangentMap) -> int:
    """Largest number of rows whose features are computed together with the outputs."""
    explicit = tangents.num_columns(expert=False) is not None  # such features may be short
    short = MAX_SHARED_BYTES // max(1, tangents.row_bytes()) if explicit else 0
    return max(chunk_rows(tangents), short)


def predict_latent(
    state: Any,
    inputs: Inputs,
    outputs: Tensor | StatedOutputs,
    features: Features | None = None,
    witness: WitnessPrediction | None = None,
) -> LatentPrediction:
    """Prediction of experts and witness before calibration, for finite inputs and the network's outputs for
    them; `features` of the first kernel and the `witness` prediction are computed unless given."""
    first, *others = state.mixtures
    parts = [first.raw(inputs, features), *(mixture.raw(inputs) for mixture in others)]
    raw, stated = LatentPrediction.cat(parts, dim=1), log_variance(outputs)
    raw = raw if stated is None else raw.with_fields({"log_stated": stated})
    if state.witness is None:
        return raw
    second: Any = state.witness(to_device(inputs, state.device)) if witness is None else witness
    return raw.with_fields(second.opinion(as_matrix(outputs).double()))
