"""The Kronecker-factored Laplace posterior over a network's weights, computed by laplace-torch."""

import copy
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset
from typing_extensions import Self

from trustgp.data.chunking import chunks
from trustgp.data.rows import read_rows
from trustgp.data.trees import Inputs, as_inputs, count, take, to_device
from trustgp.tangents.jacobian.accumulators import products
from trustgp.tangents.jacobian.per_sample import Gradients
from trustgp.tangents.network import as_matrix, choose_parameters, prepare

from ..training.train import errors, own_randomness, run_network

BATCH = 1024  # rows of a step of the curvature
CHUNK = 512  # rows whose signals are computed at a time
PRODUCT_BYTES = {"cpu": 2**25, "cuda": 2**28}  # of gradients written out at a time
# relative, from our variance to laplace-torch's; else 0.1: convolutions on a GPU keep three digits
TOLERANCE = {torch.float64: 1e-8}
MISSING = (
    "the Laplace peers need laplace-torch, which cannot be imported ({error}): pip install "
    "'./experiments[peers]', then pip install --no-deps laplace-torch backpack-for-pytorch "
    "curvlinops-for-pytorch (--no-deps, for they name torchvision, which nothing here needs and which may "
    "bring another torch)."
)


@dataclass(frozen=True)
class KronPosterior:
    """N(theta, P^-1) with P = H / noise + prior, H a Kronecker product for each layer. Made by `fit`."""

    network: nn.Module  # a private copy in eval mode
    names: tuple[str, ...]  # of the parameters that vary
    laplace: Any  # laplace-torch's object, around a second copy
    noise: float  # sigma^2, the mean squared residual of the validation rows; 1 for classes
    prior: float  # the prior precision of the largest evidence at that noise
    gradients: Gradients  # of the outputs

    @classmethod
    def fit(cls, network: nn.Module, train: Any, validation: Any, *, last_layer: bool = False) -> Self:
        """Fit KFAC to the training rows, for all weights or the last layer's, with the evidence's prior."""
        rows, held_out = read_rows(train, name="train"), read_rows(validation, name="validation")
        still = copy.deepcopy(network).eval()
        noise = float(errors(run_network(still, held_out.inputs), held_out).square().mean())
        targets = rows.targets.to(next(still.parameters()).dtype)
        return cls.of(still, rows.inputs, targets, noise=noise, last_layer=last_layer)

    @classmethod
    def of(
        cls, network: nn.Module, inputs: Inputs, targets: Tensor, *, noise: float | None, last_layer: bool
    ) -> Self:
        """Fit to a network that is a private copy; without `noise`, targets are class numbers [n]."""
        kind = "classification" if noise is None else "regression"
        laplace, names = _curvature(network, inputs, targets, kind, last_layer=last_layer)
        if noise is not None:
            laplace.sigma_noise = math.sqrt(noise)
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="By default `link_approx` is `probit`")  # so it is
            laplace.optimize_prior_precision(pred_type="glm", method="marglik")
        prior, sigma2 = float(laplace.prior_precision), 1.0 if noise is None else noise
        mix = torch.eye(laplace.n_outputs, dtype=torch.float64)
        posterior = cls(network, names, laplace, sigma2, prior, Gradients(prepare(network, names, None), mix))
        posterior._check(inputs[:3].to(laplace.mean.device))
        return posterior

    def _check(self, rows: Tensor) -> None:
        """Raise ValueError unless the variance of `rows` agrees with that by laplace-torch's Jacobians."""
        backend, precision = self.laplace.backend, self.laplace.posterior_precision
        jacobians, _ = (backend.last_layer_jacobians if backend.last_layer else backend.jacobians)(rows)
        expected = precision.inv_square_form(jacobians).diagonal(dim1=1, dim2=2)
        difference = (self.variances(rows, precision)[..., 0] - expected).norm()
        if not bool(difference <= TOLERANCE.get(expected.dtype, 0.1) * expected.norm()):
            advice = "use one whose layers are each called with inputs of one size, or last_layer=True"
            raise ValueError(f"the network's layers do not match their Kronecker factors; {advice}.")

    def precision(self, prior: float, noise: float) -> Any:
        """P = H / noise + prior, as laplace-torch's `KronDecomposed`."""
        self.laplace.sigma_noise = math.sqrt(noise)
        self.laplace.prior_precision = prior
        return self.laplace.posterior_precision

    def deviations(self, prior: float, noise: float, samples: int, seed: int) -> Tensor:
        """Draws of theta' - theta, shape [samples, P]; the same seed gives the same underlying normals."""
        self.precision(prior, noise)
        generator = torch.Generator(self.laplace.mean.device).manual_seed(seed)
        return self.laplace.sample(samples, generator) - self.laplace.mean

    @torch.no_grad()
    def variances(self, inputs: Inputs, precision: Any, priors: Sequence[float] = (0.0,)) -> Tensor:
        r"""Diagonal of :math:`J (P + \delta)^{-1} J^\top`, chunk by chunk, shape [n, C, D].

        P comes from `precision`; D prior precisions are added to it, all in one pass.
        """
        mean = self.laplace.mean
        rows = to_device(as_inputs(inputs), mean.device)
        rows = torch.nan_to_num(rows)  # in a joint backward pass a broken row would break its neighbours
        blocks, parts = blocks_of(precision, self.names, priors), []
        for index in chunks(count(rows), CHUNK):
            parts.append(mean.new_zeros(len(index), self.laplace.n_outputs, len(priors)))
            self.gradients(take(rows, index), KronCollector(blocks, parts[-1]))
        return torch.cat(parts)


def _curvature(
    network: nn.Module, inputs: Inputs, targets: Tensor, likelihood: str, *, last_layer: bool
) -> tuple[Any, tuple[str, ...]]:
    """laplace-torch's posterior on a copy of the network, and the names of the parameters that vary."""
    if not isinstance(inputs, Tensor):
        raise ValueError("laplace-torch takes one tensor of inputs; these are a tuple or a dict.")
    try:
        from laplace import KronLaplace, KronLLLaplace
    except ImportError as error:
        raise ImportError(MISSING.format(error=error)) from error
    own = copy.deepcopy(network)  # laplace-torch modifies the network
    if run_network(own, inputs[:1]).ndim == 1:
        own = _AsMatrix(own)
    place = next(own.parameters()).device
    data = TensorDataset(inputs.to(place), targets.to(place))
    batches = BatchSampler(SequentialSampler(data), BATCH, drop_last=False)  # whole batches, not row by row
    laplace = (KronLLLaplace if last_layer else KronLaplace)(own, likelihood)
    with torch.enable_grad(), own_randomness(0, place):  # a loader draws a random number, even in order
        laplace.fit(DataLoader(data, sampler=batches, batch_size=None))
    if not last_layer:
        return laplace, tuple(choose_parameters(network, "all"))
    last: Any = laplace.model  # what it adds to a module has no types
    layer = last._last_layer_name
    if isinstance(own, _AsMatrix):
        layer = layer.removeprefix("network.")
    return laplace, tuple(f"{layer}.{name}" for name, _ in last.last_layer.named_parameters())


class _AsMatrix(nn.Module):
    """A network with outputs [n] as one with outputs [n, 1]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        return as_matrix(self.network(inputs))


@dataclass(frozen=True)
class KronBlock:
    """One parameter's share of the precision."""

    left: Tensor  # Q1                                              [o, o]
    right: Tensor | None  # Q2; None: a bias, or a vector, which has one factor  [i, i]
    inverse: Tensor  # 1 / (l1 l2 + delta) for each of D priors     [D, o, i] or [D, o]


def blocks_of(precision: Any, names: Sequence[str], priors: Sequence[float]) -> dict[str, KronBlock]:
    """Blocks of a `KronDecomposed` by parameter, with D priors added; `names` are in its order."""
    blocks = {}
    parts = zip(names, precision.eigenvalues, precision.eigenvectors, precision.deltas, strict=True)
    for name, values, (left, *right), delta in parts:
        product = values[0] if len(values) == 1 else torch.outer(*values)
        inverses = [(product + delta + prior).reciprocal() for prior in priors]
        blocks[name] = KronBlock(left, right[0] if right else None, torch.stack(inverses))
    return blocks


@dataclass
class KronCollector:
    r"""Collector of the gradients of n rows and C outputs, which adds variances [n, C, D] to a total.

    A layer's precision is :math:`(Q_1 \otimes Q_2)(\ell_1 \otimes \ell_2 + \delta)(Q_1 \otimes Q_2)^\top`.
    With an output's gradient :math:`G = \sum_t g_t a_t^\top` (over a convolution's positions), its share is

    .. math:: \sum_{ij} \frac{(Q_1^\top G Q_2)_{ij}^2}{\ell_{1i} \ell_{2j} + \delta} ,

    which for a single position does not need G. Several prior precisions share one pass. The gradient of a
    parameter must arrive whole: two parts of it for the same row would be squared separately.
    """

    blocks: dict[str, KronBlock]
    total: Tensor
    together: bool = False  # a single position needs no product

    def part(self, rows: slice, mixed: slice) -> Self:
        return type(self)(self.blocks, self.total[rows, mixed])

    def room(self, size: int) -> int:
        """No numbers: `outer` splits its products to bound their memory."""
        return 0

    def outer(self, name: str, left: Tensor, right: Tensor) -> None:
        """Gradients sum_t left_t right_t^T, from [n, C, 1, t, o] and [n, 1, 1, t, i]."""
        block = self.blocks[name]
        if left.shape[2] != 1 or block.right is None:
            raise ValueError(f"'{name}' has no two Kronecker factors of its own.")
        left, right = left @ block.left, right @ block.right
        if left.shape[3] == 1 and right.shape[1] == 1:
            weights = torch.einsum("ni,doi->nod", right[:, 0, 0, 0].square(), block.inverse)
            self.total += torch.einsum("nco,nod->ncd", left[:, :, 0, 0].square(), weights)
            return
        flat = block.inverse.flatten(1).T  # [o * i, D]
        size = left.shape[1] * len(flat) * left.element_size()
        step = max(1, PRODUCT_BYTES.get(left.device.type, 2**25) // size)
        for start in range(0, len(left), step):
            rows = slice(start, start + step)
            self.total[rows] += products(left[rows], right[rows]).flatten(2).square() @ flat

    def thin(self, name: str, side: str, values: Tensor, axis: int, groups: int) -> Tensor:
        return values

    def lookup(self, name: str, index: Tensor, value: Tensor) -> None:
        raise ValueError(f"'{name}' is an embedding, which has no Kronecker factors.")

    def plain(self, name: str, value: Tensor) -> None:
        """Gradients written out, [n, C, *shape of the parameter]."""
        block = self.blocks[name]
        if block.right is None:
            self.total += (value.flatten(2) @ block.left).square() @ block.inverse.T
            return
        whole = value.reshape(*value.shape[:2], len(block.left), len(block.right))
        rotated = block.left.T @ whole @ block.right
        self.total += rotated.flatten(2).square() @ block.inverse.flatten(1).T

    add = plain  # nothing is thinned
