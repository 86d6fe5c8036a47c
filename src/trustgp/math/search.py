"""Where a function of a few numbers is least."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def least_from_zero(
    loss: Callable[[Tensor], Tensor], size: int, *, max_iter: int, tolerance: float = 1e-10
) -> Tensor | None:
    """Where a loss of `size` numbers is least, by L-BFGS from 0; None if that is worse, or no number."""
    from scipy import optimize  # it takes a while to import

    def at(place: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.enable_grad():
            free = torch.tensor(place, dtype=torch.float64, requires_grad=True)
            value = loss(free)
            (slope,) = torch.autograd.grad(value, free)
        return float(value.detach()) - before, slope.numpy()

    before = 0.0
    before = at(np.zeros(size))[0]  # what is added to the loss makes no difference to when it stops
    options = {"maxiter": max_iter, "maxcor": 50, "ftol": tolerance, "gtol": 1e-7}
    found = optimize.minimize(at, np.zeros(size), jac=True, method="L-BFGS-B", options=options)
    return torch.from_numpy(found.x) if found.fun <= 0.0 else None
