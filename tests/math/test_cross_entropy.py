"""Pseudo-targets of the cross entropy, against dense algebra and autograd in float64."""

import pytest
import torch
from draws import Draws

from trustgp.math.cross_entropy import FLOOR, loss_gradient, newton_step, two_sided


def drawn(n: int, classes: int, size: float = 3.0, seed: int = 0):
    draws = Draws(seed)
    return size * draws.normal(n, classes), draws.whole(0, max(2, classes), n)


@pytest.mark.parametrize("classes", [2, 3, 10, 200])
@pytest.mark.parametrize("floor", [FLOOR, 0.1])
def test_the_step_is_newtons_on_the_loss(classes, floor):
    logits, labels = drawn(20, classes)
    loss = torch.nn.functional.cross_entropy
    gradient = torch.vmap(torch.func.grad(loss))(logits, labels)
    torch.testing.assert_close(loss_gradient(logits, labels), gradient, rtol=0, atol=1e-12)
    hessian = torch.vmap(torch.func.hessian(loss))(logits, labels) + floor * torch.eye(classes).double()
    found = newton_step(logits, labels, floor=floor)
    torch.testing.assert_close(found, -torch.linalg.solve(hessian, gradient), rtol=1e-10, atol=1e-10)


def test_one_logit_is_the_binary_cross_entropy():
    logits, labels = drawn(30, 1)

    def loss(z, y):
        return torch.nn.functional.binary_cross_entropy_with_logits(z, y.double())

    first = torch.vmap(torch.func.grad(loss))(logits[:, 0], labels)
    second = torch.vmap(torch.func.grad(torch.func.grad(loss)))(logits[:, 0], labels)
    torch.testing.assert_close(loss_gradient(logits, labels)[:, 0], first, rtol=0, atol=1e-12)
    torch.testing.assert_close(newton_step(logits, labels)[:, 0], -first / (second + FLOOR))


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_sure_mistakes_have_bounded_steps(classes):
    logits = torch.zeros(1, classes, dtype=torch.float64)
    logits[0, -1] = 1000.0  # sure of the last class; the label is the first
    found = newton_step(logits, torch.tensor([0]))
    assert bool(torch.isfinite(found).all())
    assert 0.5 / FLOOR < float(found.abs().max()) <= 1.0 / FLOOR


def test_one_logit_is_a_pair_with_zero():
    z = torch.tensor([[0.3], [-2.0]], dtype=torch.float64)
    torch.testing.assert_close(two_sided(z).softmax(1)[:, 1], z[:, 0].sigmoid())
    assert two_sided(torch.ones(2, 3)).shape == (2, 3)
