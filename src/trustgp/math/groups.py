"""Which points belong together, so that every group is large enough?"""

from __future__ import annotations

import torch
from torch import Tensor


def merge_groups(points: Tensor, weights: Tensor, *, least: float) -> Tensor:
    """The smallest group joins the one nearest to it, until none weighs less than `least`.

    Args:
        points: Shape [M, q].
        weights: Shape [M].
        least: That a group must weigh, unless it is the only one.

    Returns:
        The group of each point, numbered from 0 in the order of their first points, int64, shape [M].
    """
    groups = torch.arange(len(points))
    while True:
        names = groups.unique()
        mass = torch.stack([weights[groups == g].sum() for g in names])
        small = int(mass.argmin())
        if len(names) == 1 or float(mass[small]) >= least:
            break
        shares = torch.stack([(groups == g).to(points.dtype) for g in names])
        centres = shares @ points / shares.sum(dim=1, keepdim=True)
        apart = (centres - centres[small]).square().sum(dim=1)
        apart[small] = torch.inf
        groups[groups == names[small]] = names[int(apart.argmin())]
    first = {int(g): i for i, g in enumerate(dict.fromkeys(groups.tolist()))}
    return torch.tensor([first[g] for g in groups.tolist()])
