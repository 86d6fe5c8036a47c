"""Tangent features as per-sample gradient rows: any network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from typing_extensions import Self

from ..data.chunking import chunks
from ..data.trees import Inputs, count, take, to_device
from .base import Features, TangentMap, Tangents, gram_blocks, mirrored
from .chain import MAX_GATHERED, ChainRows, LayerChain
from .jacobian.accumulators import DenseAccumulator
from .jacobian.layer_io import hidden_rows
from .jacobian.per_sample import Gradients
from .network import Choice, TangentNetwork, gradients_of
from .replay import Computed, Replay

METHODS = ("magnitude", "taylor")  # for ranking parameters
LAUNCH_BOUND = 2**25  # parameters up to which a GPU takes as long for a few rows as for one
MAX_REPEATED = 16  # few rows are repeated for each output, so that one backward pass serves all
WORKING_SET = 256 * 2**20  # bytes of the gradients of one chunk of rows


@dataclass(frozen=True)
class JacobianRows(Tangents):
    """Per-sample gradient rows, with the paper's two-stage compression.

    Args:
        parameters: "all", "last", or names of parameters.
        keep: Stage (i): how many parameters to keep for all experts; None keeps every one.
        rank: How stage (i) ranks them: "magnitude" or "taylor".
        keep_per_expert: Stage (ii): how many columns an expert keeps, those with the largest
            |sum over its rows of J|; None keeps every one.

    Examples:
        >>> kept = trustgp.JacobianRows(keep=50)
        >>> model = trustgp.fit(network, train, tangents=kept, progress=False)
    """

    parameters: Choice = "all"
    keep: int | None = None
    rank: str = "magnitude"
    keep_per_expert: int | None = None

    def __post_init__(self) -> None:
        for name in ("keep", "keep_per_expert"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}; at least 1 is needed, or None to keep all.")

    @property
    def wants_targets(self) -> bool:
        return self.keep is not None and self.rank == "taylor"

    def bind(self, network: TangentNetwork, mix: Tensor, sample: Inputs, targets: Tensor) -> RowMap:
        kept = torch.arange(network.num_parameters, device=network.device)
        if self.keep is not None:
            kept = kept_parameters(network, self.rank, self.keep, sample, targets)
        rows = RowMap(network, mix, kept, self.keep_per_expert)
        rows.gradients.plan(sample)  # raises early where the network cannot be differentiated
        return rows

    def restore(self, network: TangentNetwork, state: dict[str, Tensor]) -> RowMap:
        return RowMap(network, state["mix"], state["kept"].to(network.device), self.keep_per_expert)


@dataclass(frozen=True)
class RowFeatures(Features):
    """Gradient rows, shape [n, d]."""

    rows: Tensor
    by_output: Tensor | None = None  # rows of each output [n, C, d], if the map gives them
    hidden: Tensor | None = None  # inputs of the network's head [n, h], where it has one

    @cached_property
    def wide(self) -> Tensor:
        """Rows in float64."""
        return self.rows.double()

    def __len__(self) -> int:
        return len(self.rows)

    def gram(self, other: Self) -> Tensor:
        # in column blocks, to avoid a float64 copy of a wide matrix
        total = torch.zeros(len(self), len(other), dtype=torch.float64, device=self.rows.device)
        blocks = gram_blocks(len(self), len(other), same=self is other)
        for a, b in zip(self.rows.split(8192, dim=1), other.rows.split(8192, dim=1), strict=True):
            a, b = a.double(), b.double()
            for rows, columns in blocks:
                total[rows, columns].addmm_(a[rows], b[columns].T)
        return mirrored(total, blocks) if len(blocks) > 1 else total

    def diag(self) -> Tensor:
        return self.wide.square().sum(dim=1)

    def take(self, rows: Tensor) -> Self:
        return type(self)(self.rows[rows])

    def select(self, columns: Tensor) -> Self:
        return type(self)(self.rows[:, columns.to(self.rows.device)]) if columns.numel() else self

    def scaled(self, factors: Tensor) -> Self:
        return type(self)(self.rows * factors.to(self.rows)[:, None])

    def explicit(self) -> Tensor:
        return self.rows

    def tensors(self) -> dict[str, Tensor]:
        return {"rows": self.rows}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Self:
        return cls(tensors["rows"])

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        return cls(torch.cat([part.rows for part in parts]))


class GradientMap(TangentMap):
    """Computes explicit features: passes the gradients of chunks of rows to a collector."""

    kind = RowFeatures
    each_output = False  # whether rows are the gradients of each output, one after another

    def __init__(self, gradients: Gradients) -> None:
        super().__init__(gradients.network, gradients.mix, gradients)
        self._replay, self._most = Replay(self._work), 0
        self._chain_features: tuple[torch.device, ChainRows | None] | None = None

    @abstractmethod
    def collector(self, n: int, mixed: int | None = None) -> DenseAccumulator:
        """Empty collector for n rows and `mixed` mixed outputs; None: all of them."""

    def chunk_memory(self) -> int:
        """Bytes of working memory for the rows that are computed together."""
        return WORKING_SET

    def row_bytes(self) -> int:
        return (self.num_columns(expert=False) or 0) * self.network.dtype.itemsize

    def with_outputs(self, inputs: Inputs, *, exact: bool = True) -> tuple[RowFeatures, Tensor | None]:
        rows, outputs = zip(*self._chunks(inputs, exact=exact), strict=True)
        whole, hidden = None, None
        if not any(one is None for one in outputs):
            whole, hidden = self.split_outputs(outputs[0] if len(outputs) == 1 else torch.cat(outputs))
        if self.network.head and hidden is None:
            hidden = hidden_rows(self.network, inputs)
        return self.features(rows[0] if len(rows) == 1 else torch.cat(rows), hidden), whole

    def split_outputs(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Outputs [n, C], and the inputs of the network's head or None; reverses `with_hidden`."""
        wide, own = outputs.shape[1], self.mix.shape[1]
        return (outputs, None) if wide == own else (outputs[:, :own].contiguous(), outputs[:, own:])

    def features(self, rows: Tensor, hidden: Tensor | None = None) -> RowFeatures:
        """Features from the numbers of a collector, [n, K * d], or of a chain, [n, K, d]."""
        return RowFeatures(rows.flatten(1), hidden=hidden)

    def features_and_outputs(self, inputs: Inputs) -> tuple[RowFeatures, Tensor | None]:
        features, outputs = self.with_outputs(inputs, exact=False)
        return features, outputs if self.network.one_pass else None

    def release_buffers(self) -> None:
        self._replay = Replay(self._work)

    @torch.inference_mode(False)  # the user may predict in inference mode
    def _chunks(self, inputs: Inputs, *, exact: bool) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Features [n, d] and outputs of the rows, in chunks that fit in memory."""
        n, device = count(inputs), self.network.device
        size = 1 if n == 1 else max(1, self.chunk_memory() // self.working_bytes())
        for chunk in [inputs] if n <= size else (take(inputs, index) for index in chunks(n, size)):
            if device.type != "cuda" or self.separately_differentiated:
                yield self._compute(chunk)
            elif self.network.recording:
                result = self._replay(to_device(chunk, device), self.working_bytes(), exact=exact)
                yield result.tensors[0], result.outputs
            else:
                yield self._padded(chunk)

    def _padded(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Features and outputs; images are padded to the most rows so far, as cuDNN plans each shape anew."""
        n, pictures = count(inputs), isinstance(inputs, Tensor) and inputs.ndim > 3
        self._most = max(self._most, n)
        if not pictures or n == self._most:
            return self._compute(inputs)
        rows, outputs = self._compute(take(inputs, torch.arange(self._most).clamp_max(n - 1)))
        return rows[:n], None if outputs is None else outputs[:n]

    def chain_features(self) -> ChainRows | None:
        """Computation of features by explicit formulas; None where the network is not a chain of layers."""
        device = self.network.device
        if self._chain_features is None or self._chain_features[0] != device:
            # its explicit formulas serve a single mix
            chain = LayerChain.of(self.network) if len(self.mix) == 1 else None
            self._chain_features = device, None if chain is None else self.gathered(chain)
        return self._chain_features[1]

    def gathered(self, chain: LayerChain) -> ChainRows | None:
        """Computation of features for a given chain; None, the default, where it would be slower."""
        return None

    @property
    def _max_repeated(self) -> int:
        """Number of rows up to which one pass of repeated rows beats a backward pass for each signal."""
        if not self.each_output or self.gradients.num_mixed == 1:
            return 0
        contrasts, most = self.gradients.top > 1, MAX_REPEATED // self.gradients.num_mixed
        if self.network.device.type == "cpu":
            return min(1, most) if contrasts else most
        return most if contrasts and self.network.num_parameters <= LAUNCH_BOUND else 0

    def _work(self, inputs: Inputs) -> Computed:
        rows, outputs = self._compute(inputs)
        return Computed((rows,), outputs)

    def _compute(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        if isinstance(inputs, Tensor) and inputs.ndim == 2 and (rows := self.chain_features()) is not None:
            return rows(self.network.cast(inputs))
        if (n := count(inputs)) <= self._max_repeated:
            into = self.collector(n * self.gradients.num_mixed, 1)
            done, outputs = self.gradients.repeated(inputs, into)
            if done:
                return into.rows().view(n, -1), outputs
        into = self.collector(n)
        outputs = self.gradients(inputs, into)
        return into.rows(), outputs


class RowMap(GradientMap):
    """Computes gradient rows in chunks and keeps the selected columns.

    A row holds, for each of the K mixed outputs in turn, the kept parameters: d = K * |kept|.
    """

    def __init__(self, network: TangentNetwork, mix: Tensor, kept: Tensor, per_expert: int | None) -> None:
        super().__init__(Gradients(network, mix))
        self.kept, self.keep_per_expert = kept, per_expert
        if per_expert is not None and per_expert > len(kept):
            raise ValueError(f"keep_per_expert={per_expert} exceeds the {len(kept)} parameters kept.")

    def collector(
        self, n: int, mixed: int | None = None, kind: type[DenseAccumulator] = DenseAccumulator
    ) -> DenseAccumulator:
        every = len(self.kept) == self.network.num_parameters
        return kind(self.network, n, mixed or len(self.mix), None if every else self.kept)

    def gathered(self, chain: LayerChain) -> ChainRows | None:
        if len(self.kept) > MAX_GATHERED:
            return None
        shapes = {name: value.shape for name, value in self.network.parameters.items()}
        mix, signs = self.mix.to(self.network.device, self.network.dtype), torch.ones(1, len(self.kept))
        return ChainRows(chain, mix, shapes, {}, (self.kept[None].to(mix.device), signs))

    def columns(self, inputs: Inputs) -> Tensor:
        """Stage (ii): columns, per mixed output, of the parameters with the largest |sum over rows of J|."""
        if self.keep_per_expert is None:
            return super().columns(inputs)
        total = torch.zeros(len(self.mix), len(self.kept), dtype=torch.float64)
        for rows, _ in self._chunks(inputs, exact=False):
            total += rows.double().sum(dim=0).view_as(total).to(total.device)
        score = total.abs().sum(dim=0)
        best = score.argsort(descending=True, stable=True)[: self.keep_per_expert].sort().values
        offsets = torch.arange(len(self.mix))[:, None] * len(self.kept)
        return (offsets + best).flatten()

    def diag_per_output(self, features: RowFeatures) -> Tensor:
        return features.rows.unflatten(1, (len(self.mix), -1)).double().square().sum(dim=2)

    def direction(self, columns: Tensor) -> dict[str, Tensor]:
        parameters, kept = self.network.parameters, self.kept
        if columns.numel():
            kept = kept[columns[: columns.numel() // len(self.mix)].to(kept.device)]
        flat = torch.cat([value.flatten() for value in parameters.values()])
        masked = torch.zeros_like(flat)
        masked[kept] = flat[kept]
        parts = iter(masked.split([value.numel() for value in parameters.values()]))
        return {name: next(parts).view_as(value) for name, value in parameters.items()}

    def num_columns(self, *, expert: bool) -> int:
        return len(self.mix) * ((expert and self.keep_per_expert) or len(self.kept))

    def working_bytes(self) -> int:
        numbers = len(self.mix) * self.network.num_parameters
        return 2 * numbers * self.network.dtype.itemsize  # twice: by parameter, and as one row

    def state(self) -> dict[str, Tensor]:
        return {"mix": self.mix, "kept": self.kept}


def kept_parameters(net: TangentNetwork, method: str, count: int, inputs: Inputs, targets: Tensor) -> Tensor:
    """Stage (i) of the paper's compression: the `count` parameters that rank highest over all layers.

    Ranks as `torch.nn.utils.prune.global_unstructured` does: by "magnitude", |theta|, or by "taylor",
    |theta * dLoss/dtheta|, the first-order change of the squared error over the rows when the parameter is
    removed. Returns indices into the flat parameter vector, ascending, shape [count].
    """
    if method not in METHODS:
        raise ValueError(f'rank="{method}"; allowed are {", ".join(map(repr, METHODS))}.')
    total = net.num_parameters
    if not 1 <= count <= total:
        raise ValueError(f"keep={count} of {total} parameters; between 1 and {total} are possible.")
    scores = list(net.parameters.values())
    if method == "taylor":
        with torch.enable_grad():
            outputs, parameters = net.traced(inputs, net.names)
            loss = 0.5 * (outputs - targets.to(outputs)).square().sum(dim=1).mean()
            gradients = gradients_of(loss, list(parameters.values()))
        scores = [value * gradient for value, gradient in zip(scores, gradients, strict=True)]
    flat = torch.cat([score.flatten() for score in scores]).abs()
    kept = torch.ones_like(flat, dtype=torch.bool)
    kept[flat.topk(total - count, largest=False).indices] = False
    return kept.nonzero().flatten()
