"""Slow float64 twins of every fast path: dense Jacobians, explicit inverses, loops."""

import copy
import itertools
import math
from typing import Any

import numpy as np
import torch
from scipy import spatial
from torch import Tensor, nn


def dense_jacobian(network: nn.Module, inputs: Any, names: list[str] | None = None) -> Tensor:
    """Gradient of every output with respect to the named parameters, by a loop, shape [n, C, P].

    Works on a float64 copy, in which every parameter may be differentiated. `inputs` may be a tensor, a
    tuple or a dict of tensors.
    """
    network = copy.deepcopy(network).double().requires_grad_(True)
    chosen = dict(network.named_parameters())
    parameters = [chosen[name] for name in (names or chosen)]
    rows = []
    for i in range(_count(inputs)):
        outputs = _call(network, _row(inputs, i)).reshape(-1)
        rows.append(torch.stack([_gradient(value, parameters) for value in outputs]))
    return torch.stack(rows).detach()


def _gradient(value: Tensor, parameters: list[Tensor]) -> Tensor:
    gradients = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
    pairs = zip(parameters, gradients, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in pairs])


def _count(inputs: Any) -> int:
    if isinstance(inputs, dict):
        return _count(next(iter(inputs.values())))
    return _count(inputs[0]) if isinstance(inputs, (tuple, list)) else len(inputs)


def _row(inputs: Any, i: int) -> Any:
    if isinstance(inputs, dict):
        return {key: _row(value, i) for key, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(_row(value, i) for value in inputs)
    return inputs[i : i + 1].double() if inputs.is_floating_point() else inputs[i : i + 1]


def _call(network: nn.Module, inputs: Any) -> Tensor:
    if isinstance(inputs, dict):
        return network(**inputs)
    return network(*inputs) if isinstance(inputs, tuple) else network(inputs)


def flat_parameters(network: nn.Module, names: list[str] | None = None) -> Tensor:
    """theta as one float64 vector, shape [P]."""
    chosen = dict(network.named_parameters())
    return torch.cat([chosen[name].detach().double().flatten() for name in (names or chosen)])


def dense_rows(jacobian: Tensor, mix: Tensor) -> Tensor:
    """Explicit features of a mix: for each mixed output in turn its P gradients, shape [n, K * P]."""
    return torch.einsum("kc,ncp->nkp", mix, jacobian).flatten(1)


def dense_gram(jacobian: Tensor, mix: Tensor, other: Tensor | None = None) -> Tensor:
    """Kernel of mixed outputs: sum over k of (W J)(x) . (W J)(x'), shape [n, n']."""
    left = dense_rows(jacobian, mix)
    return left @ (left if other is None else dense_rows(other, mix)).T


def relative_sizes(jacobian: Tensor) -> Tensor:
    """|J_c(x)|^2 over its mean over the outputs, by loops, shape [n, C]."""
    sizes = [[sum(float(g) ** 2 for g in output) for output in row] for row in jacobian]
    return torch.tensor([[s * len(row) / sum(row) for s in row] for row in sizes], dtype=torch.float64)


def largest_columns(rows: Tensor, count: int, outputs: int) -> Tensor:
    """Stage (ii) by loops: the `count` parameters of largest sum over outputs of |sum over rows of J|,
    ascending, from gradient rows [n, K * P] of K outputs."""
    per_output = rows.reshape(len(rows), outputs, -1)
    score = [
        sum(abs(sum(float(row[k, p]) for row in per_output)) for k in range(outputs))
        for p in range(per_output.shape[2])
    ]
    return torch.tensor(sorted(sorted(range(len(score)), key=lambda p: -score[p])[:count]))


def inverse_of(gram: Tensor, tau: float) -> Tensor:
    """(K + tau I)^-1, explicitly."""
    return torch.linalg.inv(gram + tau * torch.eye(len(gram), dtype=gram.dtype))


def posterior_variance(gram: Tensor, cross: Tensor, prior: Tensor, tau: float) -> Tensor:
    """k(x,x) - k(x)^T (K + tau I)^-1 k(x) by an explicit inverse, shape [n]."""
    return prior - torch.einsum("ni,ij,nj->n", cross, inverse_of(gram, tau), cross)


def posterior_mean(gram: Tensor, cross: Tensor, residual: Tensor, tau: float) -> Tensor:
    """k(x)^T (K + tau I)^-1 r by an explicit inverse, shape [n, C]."""
    return cross @ inverse_of(gram, tau) @ residual


def log_marginal_likelihood(gram: Tensor, target: Tensor, scale: float, tau: float) -> Tensor:
    """Of one output under N(0, s (K + tau I)), by torch.distributions."""
    covariance = scale * (gram + tau * torch.eye(len(gram), dtype=gram.dtype))
    return torch.distributions.MultivariateNormal(torch.zeros_like(target), covariance).log_prob(target)


def scale_from_eigenpairs(gram: Tensor, targets: Tensor, tau: float) -> Tensor:
    """s_c = mean over eigenpairs of (u_i . t_c)^2 / (lambda_i + tau), DESIGN 1.6, shape [C]."""
    values, vectors = torch.linalg.eigh(gram)
    return ((vectors.T @ targets).square() / (values + tau)[:, None]).mean(dim=0)


def profile_likelihood(gram: Tensor, targets: Tensor, tau: float) -> float:
    """Log marginal likelihood of all outputs, each at its best scale for this tau."""
    scales = scale_from_eigenpairs(gram, targets, tau)
    pairs = zip(targets.T, scales, strict=True)
    return sum(float(log_marginal_likelihood(gram, t, float(s), tau)) for t, s in pairs)


def leave_out(gram: Tensor, residual: Tensor, groups: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Really leave each group out and solve again: errors [m, C] and variances with noise over s [m]."""
    errors, variances = torch.empty_like(residual), torch.empty_like(gram[:, 0])
    for group in groups.unique():
        out, rest = groups == group, groups != group
        inner, cross = gram[rest][:, rest], gram[out][:, rest]
        shares = cross @ inverse_of(inner, tau)
        errors[out] = residual[out] - shares @ residual[rest]
        variances[out] = gram.diagonal()[out] - (shares * cross).sum(dim=1) + tau
    return errors, variances


def stationary_gram(first: Tensor, second: Tensor, length: float) -> Tensor:
    """exp(-|x - x'|^2 / (2 l^2)), shape [n, m]."""
    distances = spatial.distance.cdist(first.double().numpy(), second.double().numpy(), "sqeuclidean")
    return torch.from_numpy(np.exp(-distances / (2 * float(length) ** 2)))


def greedy_by_refit(gram: Tensor, count: int, noise: float, candidates: Tensor, given: Tensor) -> list[int]:
    """Most uncertain candidate first, each choice by a whole new GP on everything chosen so far.

    Args:
        gram: Kernel on all rows, shape [n, n].
        candidates, given: Rows to choose from, and rows that are already there, by index.
    """
    there, left, chosen = given.tolist(), candidates.tolist(), []
    for _ in range(min(count, len(left))):
        inner, cross = gram[there][:, there], gram[left][:, there]
        variance = posterior_variance(inner, cross, gram.diagonal()[left], noise)
        best = left[int(variance.argmax())]
        chosen.append(best)
        there.append(best)
        left.remove(best)
    return chosen


def mass_between_by_loops(gram: Tensor, labels: Tensor) -> float:
    """Share of squared kernel mass between experts."""
    between = total = 0.0
    names = labels.tolist()
    for name, row in zip(names, gram.tolist(), strict=True):
        for other, value in zip(names, row, strict=True):
            total += value**2
            between += value**2 if name != other else 0.0
    return between / total


def vague_share(near):
    """Of the distribution of the training targets, with twice the odds of 1 - u."""
    odds = 2.0 * (1.0 - near) / near
    return odds / (1.0 + odds)


def nearness(table, measures) -> float:
    """u of a row, from the tails of the novelty measures [3, K, Q], in plain Python."""
    exponents = []
    for steps, measure in zip(np.moveaxis(np.asarray(table), 1, 0), measures, strict=True):
        exponents.append(sum(min(max((measure - q) * slope, 0.0), height) for q, slope, height in steps.T))
    return 1.0 / (1.0 + 0.005 * math.exp(min(sum(exponents) / len(exponents), 60.0)))


def pooled_scale(near, bias, weights, statistics, variance, growth) -> float:
    """V / E as products of powers: near the data a pool of variances, far away the evidence times e^A."""
    powers = (value**weight for value, weight in zip(statistics, weights, strict=True))
    pool = math.exp(bias) * math.prod(powers)
    return pool**near * (variance * math.exp(growth)) ** (1.0 - near) / variance


def tail_exponent(rows: list[float], value: float) -> float:
    """Minus the log of the share of rows beyond a value: linear between quantiles, then exponential. Steps
    are at least 1e-3 wide: less is rounding of the logarithm of a measure."""
    rows, levels = sorted(rows), (0.0, 0.25, 0.5, 0.75, 0.9, 0.95)
    places = [(rows[min(len(rows) - 1, int(level * len(rows)))], -math.log(1 - level)) for level in levels]
    total = 0.0
    for (low, before), (high, after) in itertools.pairwise(places):
        total += (after - before) * min(1.0, max(0.0, (value - low) / max(high - low, 1e-3)))
    last, beyond = places[-1][0], [row - places[-1][0] for row in rows if row > places[-1][0]]
    slope = (last - places[2][0]) / math.log(10)  # from the median on: a half to a twentieth
    tail = sum(beyond) / len(beyond) if beyond else slope
    return total + max(0.0, value - last) / max(tail, 1e-3)


def two_opinions(variance, shift, weight, second, precision, trust) -> tuple[float, float]:
    """What experts (m, V) and witness (h, p) expect together, and the variance of it, in plain Python.

    The means are weighted by the precisions 1 / V and t p; so are the precisions themselves, which are not
    added: both have seen the same rows.
    """
    ours, theirs = 1.0 / variance, trust * precision
    share = ours / (ours + theirs)
    expected = share * weight * shift + (1.0 - share) * second
    return expected, 1.0 / (share * ours + (1.0 - share) * theirs)


def gaussian_nll(mean: Tensor, variance: Tensor, targets: Tensor) -> float:
    """Mean negative log likelihood per entry."""
    return -float(torch.distributions.Normal(mean, variance.sqrt()).log_prob(targets).mean())
