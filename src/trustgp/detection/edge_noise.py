r"""How far off the edges of a box are, from how little is known of what it holds.

The edges share the kernel of the classes, each with a scale of its own: with the novelty :math:`\nu(x)`, the
latent variance over that of the prior, the variance of edge c is

.. math:: \sigma_c^2(x) = a_c^2 + b_c^2 \, \nu(x).

A kernel of the edges' own gradients costs a second pass, and told less about them where it was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..data.tensor_file import Reader

FLOOR = 0.05  # of the root mean square error: the least a
STEPS = 200


@dataclass(frozen=True)
class Edges:
    """Of left, top, right and bottom, in pixels.

    Args:
        noise: a, float64, [4].
        latent: b, float64, [4].
    """

    noise: Tensor
    latent: Tensor

    def std(self, novelty: Tensor) -> Tensor:
        """The standard deviation of each edge, float64, [k, 4].

        Args:
            novelty: In [0, 1], [k], or another number that tells how little is known, [k] or [k, 4].
        """
        noise, latent = self.noise.to(novelty.device), self.latent.to(novelty.device)
        unknown = novelty.double() if novelty.ndim == 2 else novelty.double()[:, None]
        return (noise.square() + latent.square() * unknown).sqrt()

    @classmethod
    def fit(cls, errors: Tensor, novelty: Tensor) -> Edges:
        """The likeliest a and b of normal errors.

        Args:
            errors: Of held-out boxes that have found a thing, in pixels, [m, 4].
            novelty: Of these, [m] or [m, 4].
        """
        errors, novelty = errors.detach().cpu().double(), novelty.detach().cpu().double()
        typical = errors.square().mean(dim=0).sqrt().clamp_min(1e-6)
        floor = FLOOR * typical
        share = novelty.mean().clamp_min(1e-6).sqrt()
        free = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
        searching = torch.optim.LBFGS([free], max_iter=STEPS, line_search_fn="strong_wolfe")

        def scaled() -> Edges:
            return cls(floor + typical * free[0].exp(), typical / share * free[1].exp())

        def loss() -> Tensor:
            searching.zero_grad()
            std = scaled().std(novelty)
            found = (0.5 * (errors / std).square() + std.log()).mean()
            found.backward()
            return found

        with torch.enable_grad():
            searching.step(loss)
        found = scaled()
        return cls(found.noise.detach(), found.latent.detach())

    def tensors(self) -> dict[str, Tensor]:
        """For a file."""
        return {"edges.noise": self.noise, "edges.latent": self.latent}


def read_edges(reader: Reader) -> Edges:
    """From a file; what is no scale is refused."""
    noise, latent = (reader.take(f"edges.{name}", torch.float64, 4) for name in ("noise", "latent"))
    for name, value in (("noise", noise), ("latent", latent)):
        if not bool((value >= 0).all()):
            raise reader.fail(f"edges.{name}", "must not be negative")
    return Edges(noise, latent)
