"""Minima of functions of a few variables."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

MAX_LOG_STEP = 12.0  # bound on logarithms: a line search may try huge steps
LossAndGradient = Callable[[np.ndarray], tuple[float, np.ndarray]]  # of k variables [k]


def with_gradient(loss: Callable[[Tensor], Tensor]) -> LossAndGradient:
    """The loss with its gradient, by automatic differentiation."""

    def evaluate(place: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.enable_grad():
            free = torch.tensor(place, dtype=torch.float64, requires_grad=True)
            value = loss(free)
            (gradient,) = torch.autograd.grad(value, free)
        return float(value.detach()), gradient.numpy()

    return evaluate


def minimise_from_zero(
    loss: LossAndGradient, size: int, *, max_iter: int, tolerance: float = 1e-10, bounds: list | None = None
) -> np.ndarray | None:
    """Place of the minimum of a loss of `size` variables, by L-BFGS from 0 within their bounds; None where
    the search ends above its start, or in NaN."""
    from scipy import optimize  # slow to import

    def relative(place: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = loss(place)
        return value - before, gradient

    options = {"maxiter": max_iter, "maxcor": 50, "ftol": tolerance, "gtol": 1e-7}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small operations wait longer for other threads than they compute
    try:
        before, _ = loss(start := np.zeros(size))  # subtracted: a constant does not change the tolerance
        how = {"jac": True, "method": "L-BFGS-B", "bounds": bounds, "options": options}
        result = optimize.minimize(relative, start, **how)
    finally:
        torch.set_num_threads(threads)
    return result.x if result.fun <= 0.0 else None
