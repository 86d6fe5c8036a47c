"""Slow float64 twins of every fast path: dense Jacobians, explicit inverses, loops."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def dense_jacobian(network: nn.Module, inputs: Tensor, names: list[str] | None = None) -> Tensor:
    """Gradient of every output with respect to the named parameters, by a loop, shape [n, C, P]."""
    network = network.double()
    chosen = dict(network.named_parameters())
    parameters = [chosen[name] for name in (names or chosen)]
    rows = []
    for row in inputs.double():
        outputs = network(row[None]).reshape(-1)
        rows.append(
            torch.stack(
                [
                    torch.cat(
                        [
                            (torch.zeros_like(p) if g is None else g).flatten()
                            for p, g in zip(
                                parameters,
                                torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True),
                                strict=True,
                            )
                        ]
                    )
                    for value in outputs
                ]
            )
        )
    return torch.stack(rows).detach()


def dense_gram(jacobian: Tensor, mix: Tensor, other: Tensor | None = None) -> Tensor:
    """Kernel of mixed outputs: sum over k of (W J)(x) . (W J)(x'), shape [n, n']."""
    left = torch.einsum("kc,ncp->nkp", mix, jacobian).flatten(1)
    right = left if other is None else torch.einsum("kc,ncp->nkp", mix, other).flatten(1)
    return left @ right.T


def posterior_variance(gram: Tensor, cross: Tensor, prior: Tensor, tau: float) -> Tensor:
    """k(x,x) - k(x)^T (K + tau I)^-1 k(x) by an explicit inverse, shape [n]."""
    inverse = torch.linalg.inv(gram + tau * torch.eye(len(gram), dtype=gram.dtype))
    return prior - torch.einsum("ni,ij,nj->n", cross, inverse, cross)


def log_marginal_likelihood(gram: Tensor, target: Tensor, scale: float, tau: float) -> Tensor:
    """Of one output under N(0, s (K + tau I)), by torch.distributions."""
    covariance = scale * (gram + tau * torch.eye(len(gram), dtype=gram.dtype))
    return torch.distributions.MultivariateNormal(torch.zeros_like(target), covariance).log_prob(target)
