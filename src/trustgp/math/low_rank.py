r"""Many rows through few: which rows are kept, and components and posterior in terms of them.

With the kernel :math:`K_{zz} = L L^\top` of the r landmarks, and :math:`\Phi = K_{nz} L^{-\top}`, shape
[m, r], the kernel of the rows is taken as

.. math:: \tilde K = \Phi \Phi^\top = K_{nz} K_{zz}^{-1} K_{zn},

never more than the kernel itself; where features are explicit and fewer than the rows, their own Phi gives
the kernel itself. With :math:`\Phi^\top \Phi = V \Lambda V^\top` the evidence, the left-out
rows and the posterior have closed forms in the noise ratio tau. What the landmarks do not span counts as
unknown:

.. math:: \tfrac{\mathrm{var}(x)}{s} = k(x, x)
          - k_z(x)^\top \big( K_{zz}^{-1} - \tau (\tau K_{zz} + K_{zn} K_{nz})^{-1} \big) k_z(x) .

The matrix in the middle is the inverse of :math:`K_{zz} + \tau K_{zz} (K_{zn} K_{nz})^{-1} K_{zz}`: the
landmarks answer like rows of their own with correlated noise, the less the more rows lie near them. Where
all rows are landmarks that is :math:`K + \tau I`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from ..data.chunking import byte_chunks, evenly
from .calibration import by_group
from .evidence import FactorisationError, factorise, least_on_grid, log_bounds

# Of the mean diagonal: rows that repeat each other may all be landmarks.
NUGGET = 1e-10
# What a direction that no row shows may count, as noise over signal.
FAINTEST = 1e12
# Noise ratio assumed while rows are chosen, before the evidence has spoken, over the mean diagonal.
SELECTION_NOISE = 1e-4
CONTENDERS = 128  # rows among which the next ones are chosen together
# Where more than so many are chosen among many, the first come from a few evenly spread: the most uncertain
# ones of the beginning resemble each other, and few of them would be chosen at a time.
MANY, SPREAD, FIRST = 128, 512, 0.5
AT_ONCE = {"cuda": 2**28}  # bytes of rows that a device takes in one step, where steps take longer than work


@dataclass(frozen=True)
class LowRank:
    """The kernel of m rows with r columns, in sums over the rows: of these only few at a time are float64."""

    phi: Tensor  # Phi [m, r], in any precision, on any device, or in a mapped file
    rotation: Tensor  # V [r, r], float64
    values: Tensor  # Lambda, ascending [r], float64

    @classmethod
    def of(cls, phi: Tensor, sums: Tensor, *more: Tensor) -> Self:
        """From Phi and Phi^T Phi [r, r], float64."""
        if not math.isfinite(float(sums.sum())):
            raise FactorisationError("the kernel is not finite: the network's gradients overflow here.")
        values, rotation = torch.linalg.eigh(sums)
        return cls(phi, rotation, values.clamp_min(0.0), *more)

    def weights(self, tau: Tensor, residual: Tensor) -> Tensor:
        """(Phi^T Phi + tau I)^-1 Phi^T r, shape [r, B]."""
        white = self.rotation / (self.values + tau).sqrt()
        return white @ (white.T @ column_sums(self.phi, white.device, residual))

    def solve(self, tau: Tensor, residual: Tensor) -> Tensor:
        """(K~ + tau I)^-1 r, shape [m, B]."""
        weights = self.weights(tau, residual)
        return (residual - torch.cat([part @ weights for part in _parts(self.phi, weights)])) / tau

    def leave_one_out(self, tau: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        r"""Errors [m, B], and variances over s with the noise [m], of rows predicted from the others.

        .. math:: \tau Q_{ii} = 1 - \phi_i^\top (\Phi^\top \Phi + \tau I)^{-1} \phi_i
        """
        white = self.rotation / (self.values + tau).sqrt()
        leverage = torch.cat([(part @ white).square().sum(dim=1) for part in _parts(self.phi, white)])
        free = (1.0 - leverage).clamp_min(torch.finfo(white.dtype).eps)
        return tau * self.solve(tau, residual) / free[:, None], tau / free

    def leave_groups_out(self, tau: Tensor, residual: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
        r"""The same with whole groups, of each row [m], left out together.

        .. math:: Q_{BB}^{-1} = \tau (I - W W^\top)^{-1} = \tau (I + W (I - W^\top W)^{-1} W^\top), \quad
                  W = \Phi_B V (\Lambda + \tau I)^{-1/2}
        """
        weights, white = self.solve(tau, residual), self.rotation / (self.values + tau).sqrt()

        def left(rows: Tensor) -> tuple[Tensor, Tensor]:
            phi, known = self.phi[rows.to(self.phi.device)], weights[rows]
            eye = torch.eye(min(phi.shape), dtype=white.dtype, device=white.device)
            if len(phi) <= len(white):
                some = phi.to(white) @ white
                spread = torch.linalg.inv(eye - some @ some.T)
                return tau * spread @ known, tau * spread.diagonal()
            inner = eye - white.T @ column_sums(phi, white.device) @ white
            core = white @ torch.linalg.solve(inner, white.T)
            inside = core @ column_sums(phi, white.device, known)
            errors = torch.cat([part @ inside for part in _parts(phi, core)])
            variances = torch.cat([(part @ core * part).sum(dim=1) for part in _parts(phi, core)])
            return tau * (known + errors), tau * (1.0 + variances)

        return by_group(left, residual, groups)


@dataclass(frozen=True)
class LandmarkKernel(LowRank):
    """Of which the columns come from r landmarks."""

    factor: Tensor  # L [r, r]

    def posterior(self, tau: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The factor of K_zz + tau K_zz (K_zn K_nz)^-1 K_zz, shape [r, r], and the weights [r, B].

        The weights give the residual mean k_z(x)^T (tau K_zz + K_zn K_nz)^-1 K_zn r.
        """
        noise = tau / torch.maximum(self.values, tau / FAINTEST)
        inner = (self.rotation * noise) @ self.rotation.T
        inner.diagonal().add_(1.0)
        factor = self.factor @ torch.linalg.cholesky(inner)
        return factor, torch.linalg.solve_triangular(self.factor.T, self.weights(tau, residual), upper=True)


def _parts(phi: Tensor, like: Tensor) -> Iterator[Tensor]:
    """Rows [m, d], a few at a time, in the precision and on the device of another tensor."""
    whole = phi.nbytes <= AT_ONCE.get(phi.device.type, 0)
    return (part.to(like) for part in ((phi,) if whole else byte_chunks(phi)))


def column_sums(phi: Tensor, device: torch.device, values: Tensor | None = None) -> Tensor:
    """Phi^T Phi [d, d] of rows [m, d], or Phi^T y [d, B] of values [m, B], float64."""
    total, start = torch.zeros((), dtype=torch.float64, device=device), 0
    for part in _parts(phi, total):
        total = total + part.T @ (part if values is None else values[start : start + len(part)])
        start += len(part)
    return total


def low_rank(gram: Tensor, cross: Tensor) -> LandmarkKernel:
    """The kernel of m rows through r landmarks, from K_zz [r, r], float64, and K_zn [r, m]."""
    factor, _ = factorise(gram, NUGGET * gram.diagonal().mean())
    phi = torch.linalg.solve_triangular(factor, cross, upper=False).T
    return LandmarkKernel.of(phi, phi.T @ phi, factor)


def low_rank_evidence(kernel: LowRank, targets: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    r"""tau and the scales s_c [B] of the largest marginal likelihood under :math:`\tilde K`.

    .. math:: s_c = \tfrac1m \Big( \sum_i \frac{(u_i^\top t_c)^2}{\lambda_i + \tau}
              + \frac{|t_c|^2 - \sum_i (u_i^\top t_c)^2}{\tau} \Big), \quad
              \tfrac12 \Big( m \sum_c \log s_c + B \big( \sum_i \log(\lambda_i + \tau)
              + (m - r) \log \tau \big) \Big) \to \min

    with pseudo-targets t [m, B]; tau is searched over `level`, the kernel's mean diagonal, a scalar.
    """
    m, r = kernel.phi.shape
    seen = kernel.values > kernel.values[-1:] * r * torch.finfo(targets.dtype).eps
    divisor = torch.where(seen, kernel.values, 1.0)[:, None]
    turned = kernel.rotation.T @ column_sums(kernel.phi, targets.device, targets)
    energy = torch.where(seen[:, None], turned.square() / divisor, 0.0)
    rest = (targets.square().sum(dim=0) - energy.sum(dim=0)).clamp_min(0.0)
    # what is left of the targets has the eigenvalue 0
    table = torch.column_stack([nn.functional.pad(kernel.values, (0, 1)), torch.cat([energy, rest[None]])])
    # few numbers, looked at many times: a GPU would take longer to be asked than to answer
    spectrum, shares = np.split(table.cpu().numpy(), [1], axis=1)

    def scales(taus: np.ndarray) -> np.ndarray:  # [B, k]
        scale = shares.T @ (1.0 / (spectrum + taus)) / m
        return np.maximum(scale, 1e-12 * scale.mean(axis=0) + np.finfo(scale.dtype).tiny)

    def losses(log_taus: np.ndarray) -> np.ndarray:
        taus = np.exp(log_taus)
        log_determinant = np.log(spectrum + taus).sum(axis=0) + (m - r - 1) * log_taus
        return 0.5 * (m * np.log(scales(taus)).sum(axis=0) + len(rest) * log_determinant)

    tau = np.exp([least_on_grid(losses, *map(float, log_bounds(level.cpu())), arrays=np)])
    found = torch.from_numpy(np.concatenate([tau, scales(tau)[:, 0]])).to(targets)
    return found[0], found[1:]


def selection_noise(gram: Tensor) -> float:
    """The noise tau that is assumed while rows of the kernel K [m, m] are chosen."""
    return SELECTION_NOISE * float(gram.diagonal().mean())


def condition(gram: Tensor, cross: Tensor, given: Tensor, noise: float) -> Tensor:
    r"""Posterior covariance of n candidates, given noisy observations of m other rows.

    .. math:: K_{cc} - K_{co} (K_{oo} + \tau I)^{-1} K_{oc}, \quad
        \text{from } K_{cc} [n, n], K_{oc} [m, n], K_{oo} [m, m], \tau
    """
    factor, _ = factorise(given, noise)
    white = torch.linalg.solve_triangular(factor, cross, upper=False)
    return gram - white.T @ white


def pivoted_cholesky_rows(covariance: Tensor, count: int, noise: float) -> Tensor:
    r"""Rows in the order of largest posterior variance given the rows chosen before.

    A pivoted Cholesky factorisation of K + tau I: choosing row p with pivot
    :math:`\pi = v_p + \tau` lowers every variance by the square of
    :math:`\ell = (K_{\cdot p} - L L_p^\top) / \sqrt\pi`. No row is taken twice; ties go to the first. Of many
    rows, the first ones are the most uncertain among a few that are evenly spread.

    Variances only fall, so among the most uncertain rows of the moment the next ones can be chosen without
    a look at the others, until one of these may be more uncertain. They are taken together, which makes
    large products of many small ones. From the candidates' covariance [n, n] and tau come the chosen indices,
    shape [min(count, n)], int64, on the CPU.
    """
    n, done, chosen = len(covariance), 0, [torch.empty(0, dtype=torch.int64, device=covariance.device)]
    count = min(count, n)
    variance = covariance.diagonal().clone()
    columns = covariance.new_empty(n, count)  # L

    def block(rows: Tensor) -> Tensor:
        known = columns.index_select(0, rows)[:, :done]
        return torch.addmm(covariance.index_select(0, rows).index_select(1, rows), known, known.T, alpha=-1.0)

    while done < count:
        taken, lower = _leaders(variance, block, n - done, count - done, noise)
        known = columns.index_select(0, taken)[:, :done]
        fresh = torch.addmm(covariance.index_select(0, taken), known, columns[:, :done].T, alpha=-1.0)
        fresh = torch.linalg.solve_triangular(lower, fresh, upper=False)
        columns[:, done : done + len(taken)] = fresh.T
        variance -= torch.linalg.vector_norm(fresh, dim=0).square_()
        variance[taken] = -math.inf
        chosen.append(taken)
        done += len(taken)
    return torch.cat(chosen).cpu()


def pivoted_root_rows(root: Tensor, count: int, noise: float) -> Tensor:
    r"""The same from R [d, n] with the covariance :math:`R^\top R`, which is never made.

    .. math:: R \leftarrow (I - P (P^\top P + \tau I)^{-1} P^\top)^{1/2} R
                = R - P E \frac{1}{(G + \tau) (1 + \sqrt{\tau / (G + \tau)})} E^\top P^\top R

    once the rows of the columns P of R are chosen, with :math:`P^\top P = E G E^\top`.
    """
    chosen = torch.empty(0, dtype=torch.int64, device=root.device)

    def block(rows: Tensor) -> Tensor:
        return root[:, rows].T @ root[:, rows]

    while len(chosen) < min(count, root.shape[1]):
        variance = root.square().sum(dim=0)
        variance[chosen] = -math.inf
        left, wanted = root.shape[1] - len(chosen), count - len(chosen)
        taken, _ = _leaders(variance, block, left, wanted, noise)
        some = root[:, taken]
        values, vectors = torch.linalg.eigh(some.T @ some)
        noisy, turned = values.clamp_min(0.0) + noise, some @ vectors
        root = root - (turned / (noisy + (noise * noisy).sqrt())) @ (turned.T @ root)
        chosen = torch.cat([chosen, taken])
    return chosen


def _leaders(
    variance: Tensor, block: Callable[[Tensor], Tensor], left: int, count: int, noise: float
) -> tuple[Tensor, Tensor]:
    """The next rows, at most `count` of those that are left, and their factor of K + tau I; `block` gives the
    covariance of some rows."""
    contenders = CONTENDERS * (4 if variance.is_cuda else 1)  # a GPU is waited for in each round
    if left == len(variance) > 2 * SPREAD and count > MANY:
        rows, count = evenly(left, SPREAD).to(variance.device), min(int(FIRST * count), SPREAD // 2)
        few, bound = block(rows).cpu().numpy(), -math.inf
    else:
        top = variance.topk(min(left, contenders + 1))
        rows = top.indices[:contenders].sort().values  # ties go to the first
        few = torch.cat([block(rows), top.values[-1:].expand(1, len(rows))]).cpu().numpy()
        few, bound = few[:-1], few[-1, 0] if left > contenders else -math.inf
    winners, corner = _contest(few, min(count, len(rows)), noise, bound)
    both = torch.from_numpy(np.column_stack([winners, corner])).to(variance)  # in one copy
    return rows[both[:, 0].long()], both[:, 1:]


def _contest(block: np.ndarray, count: int, noise: float, bound: float) -> tuple[np.ndarray, np.ndarray]:
    """The next rows among a few, while none elsewhere can have a variance above theirs; at least one.

    From the few's posterior covariance [k, k], the most to choose, tau, and the largest variance elsewhere
    come the chosen rows [p], and their factor of K + tau I, lower [p, p].
    """
    variance = block.diagonal().copy()
    columns = np.zeros((count, len(block)))
    chosen: list[int] = []
    for step in range(count):
        pivot = int(variance.argmax())
        if step and variance[pivot] < bound:
            break
        root = math.sqrt(max(float(variance[pivot]), 0.0) + noise)
        columns[step] = (block[pivot] - columns[:step, pivot] @ columns[:step]) / root
        variance -= columns[step] ** 2
        variance[pivot] = -math.inf
        columns[step, pivot] = root
        chosen.append(pivot)
    return np.array(chosen), np.tril(columns[: len(chosen), chosen].T)


def principal_components(gram: Tensor, components: int) -> tuple[Tensor, Tensor]:
    r"""Coefficients A and offset o such that a row's components are :math:`z(x) = k(x, S) A - o`.

    A holds the leading eigenvectors of the centred Gram matrix over the roots of their eigenvalues; its
    columns sum to zero, so centring a new row reduces to the constant offset o. From the kernel on S [m, m]
    come A [m, q] and o [q]; fewer than q `components` where the kernel has fewer directions.
    """
    column_mean = gram.mean(dim=0)
    centred = gram - column_mean - column_mean[:, None] + gram.mean()
    values, vectors = torch.linalg.eigh(centred)
    values, vectors = values.flip(0)[:components], vectors.flip(1)[:, :components]
    # against the kernel itself: the centred kernel of identical rows is nothing but rounding
    keep = values > gram.diagonal().max() * len(gram) * torch.finfo(gram.dtype).eps
    vectors = vectors[:, keep]
    # The sign of an eigenvector is arbitrary: fix it, so that the same kernel gives the same gate.
    top = vectors.gather(0, vectors.abs().argmax(dim=0, keepdim=True)) if keep.any() else vectors[:1]
    coefficients = vectors * torch.sign(top) / values[keep].sqrt()
    coefficients = coefficients - coefficients.mean(dim=0)
    return coefficients, column_mean @ coefficients


def mass_between(gram: Tensor, labels: Tensor) -> Tensor:
    r"""Share of the squared kernel mass K [n, n] between experts, given by row [n]: the paper's bound.

    .. math:: \|K - \mathrm{blockdiag}(K)\|_F^2 / \|K\|_F^2 \in [0, 1]
    """
    squared = gram.square()
    within = labels[:, None] == labels[None, :]
    total = squared.sum()
    return torch.where(total > 0, (squared * ~within).sum() / total, torch.zeros_like(total))
