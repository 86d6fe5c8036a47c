"""Any method with heavy tails: a scale and degrees of freedom for each output, fitted on validation rows."""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from trustgp.data.rows import read_rows
from trustgp.data.trees import Inputs
from trustgp.likelihoods.prediction import Prediction
from trustgp.math.calibration_fit import FIRST_DF, LEAST_DF
from trustgp.math.predictive import log_density
from trustgp.math.search import least_from_zero, sloped
from trustgp.tangents.network import as_matrix

STEPS = 100


@dataclass(frozen=True)
class Tailed:
    """What a method says, with Student-t tails. Made by `fit`."""

    method: Any
    factor: Tensor  # of the variance of each output [C]
    df: Tensor  # of each output [C]

    @classmethod
    def fit(cls, method: Any, validation: Any) -> Self:
        """Both by maximum likelihood, all outputs at once."""
        rows = read_rows(validation, name="validation")
        said = method.predict(rows.inputs)
        mean, variance = (as_matrix(each).double().cpu() for each in (said.mean, said.variance))
        error, outputs = rows.targets.double().cpu() - mean, mean.shape[1]
        nothing = torch.zeros((), dtype=torch.float64)

        def at(free: Tensor) -> tuple[Tensor, Tensor]:
            grown = free.clamp(-12.0, 12.0).exp()
            return grown[:outputs], LEAST_DF + (FIRST_DF - LEAST_DF) * grown[outputs:]

        def loss(free: Tensor) -> Tensor:
            factor, df = at(free)
            scale = variance * factor * (df - 2.0) / df
            pull = 0.5 * free.square().sum() / len(error)
            return pull - log_density(error, None, scale, df, nothing, nothing).sum(dim=1).mean()

        found = least_from_zero(sloped(loss), 2 * outputs, max_iter=STEPS)
        return cls(
            method,
            *at(torch.zeros(2 * outputs, dtype=torch.float64) if found is None else torch.from_numpy(found)),
        )

    def predict(self, inputs: Inputs) -> Prediction:
        """The same mean; the variance scaled."""
        said = self.method.predict(inputs)
        factor, df = (each.to(said.epistemic) for each in (self.factor, self.df))
        factor, df = (each if said.mean.ndim == 2 else each[0] for each in (factor, df))
        parts = {name: getattr(said, name) * factor for name in ("epistemic", "aleatoric", "excess")}
        return replace(said, **parts, df=df.expand_as(said.epistemic))
