r"""Gaussian processes by GPyTorch, not our code: on the inputs alone, and RIO on a network's residuals.

The outside peer is a GP with a squared exponential kernel and a length for each input: exact up to
`EXACT_ROWS` rows, beyond that sparse and variational (Hensman et al. 2015) with `POINTS` inducing points. RIO
(Qiu, Meyerson and Miikkulainen, ICLR 2020) is a GP of the residuals y - f(x), with the sum of a kernel on
the inputs and one on the network's outputs,

.. math:: k\big((x, f), (x', f')\big) = k_{in}(x, x') + k_{out}(f, f') ,

and predicts f(x) plus the residual's mean. Each output has a process of its own. Both learn their
hyperparameters and noise by the evidence, or its bound, on the training rows alone; the validation rows give
tails, and if it is likelier a scale and a noise, as for every peer. RIO's published figures are of other
networks, and were not checked.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from trustgp.data.rows import Rows, read_rows
from trustgp.data.trees import Inputs
from trustgp.tangents.network import as_matrix

from ..training.train import errors, own_randomness, run_network
from .bundle import Bundle
from .fmgp import centre_and_spread, centres, vectors
from .tuning import Diverged, NoisyPeer

EXACT_ROWS, POINTS = 1000, 256
EXACT_STEPS, STEPS = 80, 300
BATCH, CHUNK = 512, 1024
RATE, EXACT_RATE = 5e-2, 1e-1


@dataclass(frozen=True)
class InputGP(NoisyPeer):
    """A process of scaled targets for each output, and the scaling. Made by `fit`."""

    process: nn.Module  # a model of GPyTorch in eval mode
    network: nn.Module  # RIO adds its outputs; the GP on inputs uses its dtype and device only
    residual: bool  # whether this is RIO
    single: bool  # whether outputs are [n], not [n, C]
    scaling: tuple[Tensor, Tensor, Tensor, Tensor]  # mean and deviation of the inputs, and of the targets

    @classmethod
    def fit(cls, bundle: Bundle, *, residual: bool = False, steps: int | None = None) -> Self:
        """Fit to the training rows; then fit tails, with the learnt noise or a new scale and noise."""
        rows, network = read_rows(bundle.train, name="train"), bundle.network
        inputs, targets = _columns(network, rows.inputs, residual), _targets(network, rows, residual)
        scaling = (*centre_and_spread(inputs), *centre_and_spread(targets))
        scaled = (inputs - scaling[0]) / scaling[1], ((targets - scaling[2]) / scaling[3]).T.contiguous()
        first = inputs.shape[1] - (targets.shape[1] if residual else 0)
        with own_randomness(bundle.seed, inputs.device), torch.enable_grad():
            process = _fitted(*scaled, first, bundle.seed, steps)
        noise = process.likelihood.noise.detach().reshape(-1).double() * scaling[3].square()
        parts = network, residual, bundle.single, scaling
        return cls(process.requires_grad_(False), *parts, noise=noise).likelier(*bundle.held)

    @torch.no_grad()
    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        offset, spread, centre, size = self.scaling
        columns = torch.nan_to_num(_columns(self.network, inputs, self.residual))
        means, variances = [], []
        for part in ((columns - offset) / spread).split(CHUNK):
            with _library().settings.max_cholesky_size(2 * EXACT_ROWS):  # no conjugate gradients
                latent = self.process(part)
                means.append(latent.mean.T * size + centre)
                variances.append(latent.variance.T * size.square())
        mean, variance = torch.cat(means), torch.cat(variances)
        plain = run_network(self.network, inputs) if self.residual else torch.zeros_like(mean)
        dtype = next(self.network.parameters()).dtype
        mean, variance = (mean + as_matrix(plain)).to(dtype), variance.to(dtype)
        return (mean[:, 0], variance[:, 0]) if self.single else (mean, variance)

    def shipped(self) -> Any:
        return (self.process, self.network if self.residual else None, self.noise, self.tails)


def _columns(network: nn.Module, inputs: Inputs, residual: bool) -> Tensor:
    """Inputs as vectors, float64, for RIO followed by the network's outputs."""
    rows = vectors(inputs, next(network.parameters()).device).double()
    return torch.cat([rows, as_matrix(run_network(network, inputs)).double()], dim=1) if residual else rows


def _targets(network: nn.Module, rows: Rows, residual: bool) -> Tensor:
    """Targets of the processes, for RIO the residuals, [n, C], float64."""
    place = next(network.parameters()).device
    return errors(run_network(network, rows.inputs), rows) if residual else rows.targets.to(place).double()


def _library() -> Any:
    try:
        import gpytorch
    except ImportError as error:
        raise ImportError("this peer needs GPyTorch: pip install gpytorch") from error
    return gpytorch


def _fitted(inputs: Tensor, targets: Tensor, first: int, seed: int, steps: int | None) -> Any:
    """A trained model of inputs [n, d] and targets [C, n]; RIO's second kernel begins at column `first`."""
    gpytorch = _library()
    batch, width = torch.Size([len(targets)]), inputs.shape[1]
    exact = len(inputs) <= EXACT_ROWS

    def kernel(start: int, stop: int) -> Any:
        columns = {"ard_num_dims": stop - start, "active_dims": tuple(range(start, stop))}
        inner = gpytorch.kernels.RBFKernel(batch_shape=batch, **columns)
        inner.lengthscale = (stop - start) ** 0.5
        return gpytorch.kernels.ScaleKernel(inner, batch_shape=batch)

    parts = kernel(0, first) if first == width else kernel(0, first) + kernel(first, width)
    likelihood = gpytorch.likelihoods.GaussianLikelihood(batch_shape=batch)
    process = _process(parts, likelihood, inputs, targets, seed).train()
    if exact:
        loss = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, process)
    else:
        loss = gpytorch.mlls.VariationalELBO(likelihood, process, num_data=len(inputs))
    steps = steps or (EXACT_STEPS if exact else STEPS)
    optimiser = torch.optim.Adam(process.parameters(), lr=EXACT_RATE if exact else RATE)
    cycle = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    generator = torch.Generator().manual_seed(seed)
    try:
        for _ in range(steps):
            chosen = slice(None) if exact else torch.randint(len(inputs), (BATCH,), generator=generator)
            optimiser.zero_grad()
            with gpytorch.settings.max_cholesky_size(2 * EXACT_ROWS):
                (-loss(process(inputs[chosen]), targets[:, chosen])).sum().backward()
            optimiser.step()
            cycle.step()
    except Exception as error:  # GPyTorch has no common class of its numerical errors
        raise Diverged(f"GPyTorch: {str(error).splitlines()[0]}") from error
    return process.eval()


def _process(kernel: Any, likelihood: Any, inputs: Tensor, targets: Tensor, seed: int) -> Any:
    """An untrained model, exact or sparse by the number of rows."""
    gpytorch, exact, batch = _library(), len(inputs) <= EXACT_ROWS, torch.Size([len(targets)])

    class Process(gpytorch.models.ExactGP if exact else gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            if exact:
                super().__init__(inputs, targets, likelihood)
            else:
                points, kinds = centres(inputs, POINTS, seed), gpytorch.variational
                own = kinds.CholeskyVariationalDistribution(len(points), batch_shape=batch)
                super().__init__(kinds.VariationalStrategy(self, points.repeat(len(targets), 1, 1), own))
                self.likelihood = likelihood
            self.mean, self.kernel = gpytorch.means.ConstantMean(batch_shape=batch), kernel

        def forward(self, rows: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(rows), self.kernel(rows))

    return Process().to(inputs)
