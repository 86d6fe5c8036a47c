r"""The joint distribution of several rows, for Bayesian optimisation and active learning.

The variances are those of `predict`; the experts correlate the rows. An expert k has the posterior
covariance s S_k of the weights, with :math:`S_k = (I + \Phi_k^\top \Phi_k / \tau_k)^{-1}`. Between rows of
one expert the correlation is that of :math:`\phi(x)^\top S_k \phi(x')`, which is exact. Experts k and l are
independent models of the same weights; draws of both from the same standard normal vector give

.. math:: \phi(x)^\top S_k^{1/2} S_l^{1/2} \phi(x') ,

which has these blocks on its diagonal, is positive semidefinite, and does not depend on the other rows.
Experts whose features are not explicit, or that keep columns of their own, are independent of each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..data.rows import Rows
from ..data.torch_modes import cpu_default, without_autocast
from ..data.trees import Inputs, count, to_device
from ..experts.features import NO_COLUMNS, features_at
from ..experts.mixture import Mixture
from ..likelihoods.prediction import Prediction
from .model_state import ModelState, inputs_of, predict

MAX_JOINT_ROWS = 2_000  # the matrix of each output has the square of this number of entries


@dataclass(frozen=True)
class JointPrediction:
    """Several rows together: their covariance, and samples. Made by `UncertaintyModel.joint`.

    Outputs are independent of each other given the rows; `Prediction.covariance` has their covariance at each
    row.

    Examples:
        >>> draws = model.joint(inputs[:5]).sample(100)
    """

    prediction: Prediction  # of each row
    correlation: Tensor  # of the latent function between rows, for each output, float64 [C, n, n]

    @property
    def mean(self) -> Tensor:
        """The network's own output, [n] or [n, C]."""
        return self.prediction.mean

    @property
    def corrected(self) -> JointPrediction:
        """The joint prediction about the corrected mean."""
        return JointPrediction(self.prediction.corrected, self.correlation)

    @property
    def epistemic(self) -> Tensor:
        """Covariance of the latent function, float64 [n, n]; [C, n, n] for several outputs."""
        deviation = self._by_output(self.prediction.epistemic).sqrt()
        return self._shaped(self.correlation * deviation[:, :, None] * deviation[:, None])

    @property
    def covariance(self) -> Tensor:
        """Covariance of the targets, with independent noise: its diagonal is `prediction.variance`."""
        p = self.prediction
        return self.epistemic + self._shaped(torch.diag_embed(self._by_output(p.variance - p.epistemic)))

    def sample(self, k: int, *, generator: torch.Generator | None = None, noise: bool = True) -> Tensor:
        """Draw k Gaussian samples of all rows together, with this covariance, shape [k, n] or [k, n, C].

        Args:
            k: Number of samples.
            generator: Source of the random numbers, on the device of the prediction.
            noise: True: samples of the targets; False: samples of the latent function.
        """
        p = self.prediction
        values, vectors = torch.linalg.eigh(self.correlation)
        root = vectors * values.clamp_min(0.0).sqrt()[:, None]
        draw = {"generator": generator, "dtype": torch.float64, "device": p.mean.device}
        latent = torch.einsum("cij,kcj->kic", root, torch.randn(k, *values.shape, **draw))
        centre, deviation, added = (
            self._by_output(v).T for v in (p.mean, p.epistemic.sqrt(), (p.variance - p.epistemic).sqrt())
        )
        drawn = centre + latent * deviation
        drawn = drawn + torch.randn(drawn.shape, **draw) * added if noise else drawn
        return drawn.reshape(k, *p.mean.shape).to(p.epistemic.dtype)

    def _by_output(self, values: Tensor) -> Tensor:
        """Values [n] or [n, C] as [C, n], float64."""
        return values.double().reshape(len(values), -1).T

    def _shaped(self, matrices: Tensor) -> Tensor:
        return matrices[0] if self.prediction.mean.ndim == 1 else matrices


@torch.no_grad()
@cpu_default()
def joint(state: ModelState, inputs: Inputs) -> JointPrediction:
    """The joint distribution of rows; see `UncertaintyModel.joint`."""
    if refusal := state.likelihood.joint_refusal:
        raise ValueError(f"model.joint is for regression: {refusal}.")
    inputs = inputs_of(state, inputs)
    if (n := count(inputs)) > MAX_JOINT_ROWS:
        raise ValueError(f"joint of {n:,} rows; at most {MAX_JOINT_ROWS:,} are possible: pass fewer.")
    prediction = predict(state, inputs)
    if not bool(prediction.valid.all()):
        row = int((~prediction.valid).nonzero()[0])
        raise ValueError(f"row {row} of {n} has no finite prediction; leave out rows whose `valid` is False.")
    rows = Rows(to_device(inputs, state.device), torch.zeros(n, 1))
    with without_autocast(state.device.type):
        each = [(mixture.outputs, _correlation(mixture, rows)) for mixture in state.mixtures]
    order = torch.cat([outputs for outputs, _ in each]).argsort()
    matrices = [matrix.expand(len(outputs), n, n) for outputs, matrix in each]
    return JointPrediction(prediction, matrices[0] if len(each) == 1 else torch.cat(matrices)[order])


def _correlation(mixture: Mixture, rows: Rows) -> Tensor:
    """Correlation between the latent functions of rows, for one kernel, float64 [n, n]."""
    features = features_at(mixture.tangents, rows, torch.arange(len(rows)), NO_COLUMNS, None)
    labels, blocks, roots = mixture.labels(features), [], []
    for number in labels.unique().tolist():
        index = (labels == number).nonzero().flatten()
        posterior, own = mixture.experts[number].posterior, features.take(index)
        if (root := posterior.root_features(own)) is None:
            blocks.append((index, posterior.covariance(own)))
        else:
            roots.append((index, root))
    covariance = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=labels.device)
    if roots:
        index, root = (torch.cat(parts) for parts in zip(*roots, strict=True))
        covariance[index[:, None], index] = root @ root.T
    for index, block in blocks:
        covariance[index[:, None], index] = block
    unit = covariance.diagonal().clamp_min(0.0).sqrt()
    scaled = covariance / (unit[:, None] * unit)
    correlation = torch.where(torch.isfinite(scaled), scaled, 0.0).clamp(-1.0, 1.0)  # 0: without a gradient
    return correlation.fill_diagonal_(1.0)
