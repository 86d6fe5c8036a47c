"""Predictions of many positions: sequences, images, masks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from ..tangents.positions import ChannelLayout, observed, target_columns
from .batch import Batch, row_index
from .prediction import ClassPrediction, Prediction

ABSENT: dict[str, float] = dict.fromkeys(("variance", "std", "epistemic", "covariance", "score"), torch.inf)


@dataclass(frozen=True, repr=False)
class DensePrediction(Batch):
    """A prediction for each position, in the shape of the network's output.

    It has the tensors of `Prediction`, or of `ClassPrediction`: those with one number per output have
    the shape of the output ([n, C, H, W], [n, T, C]; `probabilities` [n, K, H, W]), all others one number per
    position ([n, H, W]; `classes`, `novelty`, `score`, `valid`). Outputs that were flattened, because
    the last layer has no positions, have one `novelty`, `score` and `valid` a row, [n]. `score_of_inputs` has
    one number a row.

    Batches of different lengths are padded: in the padding `valid` is False and the variance infinite.

    Examples:
        >>> strange = dense.predict(images).score_of_inputs.argmax()
    """

    rows: Prediction  # of all positions one after another, [N, ...]
    index: Tensor  # the row of each position, int64 [n, *positions]; -1: there is none
    layout: ChannelLayout

    def __len__(self) -> int:
        return len(self.index)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self.rows, name)
        if isinstance(value, Prediction):
            return replace(self, rows=value)
        return self._shaped(value, ABSENT.get(name, 0)) if isinstance(value, Tensor) else value

    def _shaped(self, values: Tensor, absent: float = 0) -> Tensor:
        """Values of each row [N] or [N, C], in the shape of the outputs; `absent` where there is no row."""
        whole = values.ndim > 0 and len(values) == len(self.rows)
        values = values if whole else values.expand_as(self.rows.mean)
        placed = values[self.index.clamp_min(0)]
        if bool((self.index < 0).any()):
            placed[self.index < 0] = absent
        kept = values.ndim == 2 and (self.layout.tail is None or values.shape[1] == self.rows.mean[0].numel())
        return self.layout.restored(placed) if kept else placed

    @property
    def score_of_inputs(self) -> Tensor:
        """Mean novelty score over the valid positions of each input, float64 [n]; infinite without any."""
        score, valid = (value.reshape(len(self), -1) for value in (self.score, self.valid))
        mean = torch.where(valid, score, 0.0).sum(dim=1) / valid.sum(dim=1)
        return torch.where(valid.any(dim=1), mean, torch.inf)

    @property
    def distribution(self) -> Any:
        """Unavailable attribute: `rows.distribution` has the distributions of all positions."""
        raise AttributeError("positions have one distribution each: use p.rows.distribution.")

    def log_prob(self, targets: Tensor) -> Tensor:
        """Log probability of each class number or output, in nats, for targets in the form that `fit` takes;
        0 where a target is ignored (-100 or 255, NaN) or there is no position."""
        return self._scored(targets, self.rows.log_prob)

    def crps(self, targets: Tensor) -> Tensor:
        """Continuous ranked probability score of each output, 0 where there is no target."""
        return self._scored(targets, self.rows.crps)

    def _scored(self, targets: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        classes = isinstance(self.rows, ClassPrediction)
        columns = target_columns(self.layout, self.mean, targets, classes=classes).to(self.rows.mean.device)
        seen = observed(columns, self.rows.mean[0].numel()) & (self.index >= 0)
        every = columns.new_zeros(len(self.rows), columns.shape[-1])
        every[self.index[seen]] = columns[seen]
        rows = score(every.flatten() if classes or self.rows.mean.ndim == 1 else every)
        unseen = torch.ones(len(self.rows), dtype=torch.bool, device=rows.device)
        unseen[self.index[seen]] = False
        rows = torch.where(unseen.reshape(-1, *[1] * (rows.ndim - 1)), 0.0, rows)
        return self._shaped(rows)

    def interval(
        self, level: float | Sequence[float] = 0.95, *, alpha: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """Lower and upper ends, in the shape of the outputs; [k, ...] for several levels."""
        lower, upper = (self._stacked(end) for end in self.rows.interval(level, alpha=alpha))
        return lower, upper

    def quantile(self, q: float | Tensor) -> Tensor:
        """The q-quantile of each output."""
        return self._shaped(self.rows.quantile(q))

    def sample(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw k samples of each output or class, [k, ...]; positions are drawn independently."""
        return torch.stack([self._shaped(draw) for draw in self.rows.sample(k, generator)])

    def _stacked(self, values: Tensor) -> Tensor:
        several = values.ndim > self.rows.mean.ndim
        return torch.stack([*map(self._shaped, values)]) if several else self._shaped(values)

    def __getitem__(self, index: Any) -> Self:
        """A subset of the inputs: an integer, a slice, a mask [n] of booleans, or integers [k]."""
        chosen = row_index(index, len(self))
        index_of = self.index[chosen.to(self.index.device) if isinstance(chosen, Tensor) else chosen]
        needed, order = index_of[index_of >= 0].unique(return_inverse=True)
        fresh = torch.full_like(index_of, -1)
        fresh[index_of >= 0] = order
        return replace(self, rows=self.rows[needed], index=fresh)

    def to(self, device: Any = None, dtype: torch.dtype | None = None) -> Self:
        """The prediction on another device, in another precision, or both; see `Prediction.to`."""
        rows = self.rows.to(device, dtype)
        return replace(self, rows=rows, index=self.index.to(rows.valid.device))

    @property
    def ARRAYS(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Names of the arrays of `numpy`."""
        return self.rows.ARRAYS

    @staticmethod
    def cat(parts: Sequence["DensePrediction"]) -> "DensePrediction":
        """Concatenate predictions; positions are padded to the largest size of each dimension."""
        most = [max(sizes) for sizes in zip(*(part.index.shape[1:] for part in parts), strict=True)]
        before, index_of = 0, []
        for part in parts:
            missing = [(0, size - own) for size, own in zip(most, part.index.shape[1:], strict=True)]
            shifted = torch.where(part.index < 0, -1, part.index + before)
            padding = [side for pair in reversed(missing) for side in pair]
            index_of.append(torch.nn.functional.pad(shifted, padding, value=-1) if padding else shifted)
            before += len(part.rows)
        rows = Prediction.cat([part.rows for part in parts])
        return replace(parts[0], rows=rows, index=torch.cat(index_of))

    @property
    def _title(self) -> str:
        inputs = "1 input" if len(self) == 1 else f"{len(self):,} inputs"
        return f"{type(self).__name__} of {inputs}, outputs {list(self.mean.shape[1:])}"

    def _lines(self) -> list[list[str]]:
        classes = isinstance(self.rows, ClassPrediction)
        header = [["", "mean probability" if classes else "mean std", "valid", "novelty"]]
        for i, one in enumerate(self):
            value = float((one.rows.probabilities.amax(dim=1) if classes else one.rows.std).mean())
            valid, novelty = float(one.rows.valid.float().mean()), float(one.rows.novelty.mean())
            header.append([str(i), f"{value:.4g}", f"{valid:.0%}", f"{novelty:.3f}"])
        return header
