"""Elimination by panels, against a dense solver."""

import torch
from many import each
from reference import stationary_gram

from trustgp.export.module.elimination import PANEL, inverse_products, panels_of


def system(p: int, tau: float):
    """Kernels of p rows with tau on their diagonal [3, p, p], and k and T beside them [3, p, 3], float64."""
    generator = torch.Generator().manual_seed(p)
    rows = torch.rand(3, p + 1, 2, generator=generator, dtype=torch.float64)
    kernel = torch.stack([stationary_gram(one, one, 1.0) for one in rows])
    targets = torch.randn(3, p, 2, generator=generator, dtype=torch.float64)
    gram = kernel[:, :p, :p] + tau * torch.eye(p, dtype=torch.float64)
    return gram, torch.cat([kernel[:, :p, p:], targets], dim=2)


@each(
    ("p", "tau", "rtol"),
    [
        (1, 1e-2, 1e-12),
        (PANEL, 1e-2, 1e-12),
        (PANEL + 1, 1e-2, 1e-12),
        (64, 1e-2, 1e-12),
        (64, 1e-8, 1e-6),  # the condition number is 1e10
    ],
)
def test_products_with_the_inverse_equal_those_of_a_dense_solver(p, tau, rtol):
    gram, sides = system(p, tau)
    expected = sides[:, :, :1].mT @ torch.linalg.solve(gram, sides)
    whole = torch.cat([gram, sides], dim=2)
    products = inverse_products([whole[:, a:b, a:] for a, b in panels_of(p)])
    torch.testing.assert_close(products, expected, rtol=rtol, atol=rtol)
