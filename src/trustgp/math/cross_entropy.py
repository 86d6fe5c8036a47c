r"""Cross entropy as squared error: the pseudo-target of a row is where one Newton step on its loss leads.

With p = softmax(z), the loss of a row with label y has the gradient R = p - e_y and the curvature
:math:`H = \mathrm{diag}(p) - p p^\top` in its logits z.
"""

from __future__ import annotations

import torch
from torch import Tensor

# H is singular along (1, ..., 1), and nearly so wherever the network is sure. What is added to its diagonal
# bounds the step of a row that the network gets wholly wrong to about 1 / FLOOR.
FLOOR = 0.01


def newton_step(logits: Tensor, labels: Tensor, *, floor: float = FLOOR) -> Tensor:
    r"""The step :math:`-(H + \epsilon I)^{-1} R` in the logits, shape [n, C], float64.

    With D = diag(p) + epsilon I it is, by Sherman and Morrison,

    .. math:: -D^{-1} R - D^{-1} p \, \frac{p^\top D^{-1} R}{1 - p^\top D^{-1} p}, \qquad
        1 - p^\top D^{-1} p = \epsilon \sum_c \frac{p_c}{p_c + \epsilon} ,

    so a row costs C numbers, never C x C. Its entries add up to 0. With a single logit, p = sigmoid(z) and
    the step is :math:`(y - p) / (p (1 - p) + \epsilon)`.

    Args:
        logits: z, shape [n, C]; C = 1: of the second of two classes.
        labels: y, class numbers, shape [n].
        floor: epsilon.
    """
    z, gradient = logits.double(), loss_gradient(logits, labels)
    if z.shape[1] == 1:
        p = z.sigmoid()
        return -gradient / (p * (1 - p) + floor)
    p = z.softmax(dim=1)
    inside, direction = gradient / (p + floor), p / (p + floor)
    share = (p * inside).sum(dim=1) / (floor * direction.sum(dim=1))
    return -(inside + direction * share[:, None])


def loss_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    """R = p - e_y, shape [n, C], float64; with a single logit p - y."""
    z = logits.double()
    if z.shape[1] == 1:
        return z.sigmoid() - labels[:, None].double()
    gradient = z.softmax(dim=1)
    gradient[torch.arange(len(z), device=z.device), labels] -= 1.0
    return gradient


def two_sided(logits: Tensor) -> Tensor:
    """Logits of at least two classes: a single one, z, is the pair (0, z), which means the same."""
    return torch.cat([torch.zeros_like(logits), logits], dim=1) if logits.shape[1] == 1 else logits
