"""Where a function of a few numbers is least."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

FARTHEST = 12.0  # that a logarithm may go: a line search tries steps without measure


Sloped = Callable[[np.ndarray], tuple[float, np.ndarray]]  # a loss of a few numbers [k], and its slope [k]


def sloped(loss: Callable[[Tensor], Tensor]) -> Sloped:
    """With its slope, by automatic differentiation."""

    def both(place: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.enable_grad():
            free = torch.tensor(place, dtype=torch.float64, requires_grad=True)
            value = loss(free)
            (slope,) = torch.autograd.grad(value, free)
        return float(value.detach()), slope.numpy()

    return both


def least_from_zero(
    loss: Sloped,
    size: int,
    *,
    max_iter: int,
    tolerance: float = 1e-10,
    bounds: Sequence[Sequence[float]] | None = None,
) -> np.ndarray | None:
    """Where a loss of `size` numbers is least, by L-BFGS from 0, within the bounds of each; None if that is
    worse, or no number."""
    from scipy import optimize  # it takes a while to import

    before = loss(np.zeros(size))[0]  # what is added to the loss makes no difference to when it stops

    def less(place: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = loss(place)
        return value - before, slope

    options = {"maxiter": max_iter, "maxcor": 50, "ftol": tolerance, "gtol": 1e-7}
    found = optimize.minimize(
        less, np.zeros(size), jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    return found.x if found.fun <= 0.0 else None
