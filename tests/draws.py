"""Numbers drawn from a seed, in float64 unless another precision is given."""

import torch
from torch import Tensor


class Draws:
    """One draw after another: `draws = Draws(3); x, noise = draws.uniform(9, 2), draws.normal(9, 1)`."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=dtype)

    def uniform(self, *shape, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.rand(*shape, generator=self.generator, dtype=dtype)

    def whole(self, least: int, end: int, *shape: int) -> Tensor:
        """Integers below `end`."""
        return torch.randint(least, end, shape, generator=self.generator)


def normal(*shape, seed: int = 0) -> Tensor:
    """A single draw."""
    return Draws(seed).normal(*shape)
