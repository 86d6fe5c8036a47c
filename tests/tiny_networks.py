"""What makes and trains a tiny network, as the scikit-learn estimators take it."""

from dataclasses import dataclass

import torch
from draws import Draws
from torch import Tensor, nn


class Scaled(nn.Module):
    """x -> (x - shift) / spread, of each column; with `back` the way back."""

    def __init__(self, values: Tensor, *, back: bool = False) -> None:
        super().__init__()
        spread = values.std(dim=0, unbiased=False)
        self.register_buffer("shift", values.mean(dim=0))
        self.register_buffer("spread", torch.where(spread > 0, spread, 1.0))
        self.back = back

    def forward(self, values: Tensor) -> Tensor:
        return values * self.spread + self.shift if self.back else (values - self.shift) / self.spread


def tiny(X: Tensor, outputs: int, *after: nn.Module) -> nn.Sequential:
    """Untrained, in float64, with weights that depend on nothing."""
    body = nn.Sequential(nn.Linear(X.shape[1], 8), nn.Tanh(), nn.Linear(8, outputs)).double()
    return nn.Sequential(Scaled(X), *seeded(body, dtype=torch.float64), *after)


def seeded(network: nn.Module, seed: int = 0, *, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The same network with weights that depend on the seed alone, drawn in a precision."""
    draws = Draws(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(draws.normal(parameter.shape, dtype=dtype) / parameter.shape[-1] ** 0.5)
    return network


def adam(network: nn.Module, loss, steps: int, rate: float) -> nn.Module:
    """Full-batch steps; `loss` is a function of the network, as below."""
    optimiser = torch.optim.Adam(network.parameters(), rate)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(network).backward()
        optimiser.step()
    optimiser.zero_grad()
    return network.eval()


def train(network: nn.Module, loss, steps: int = 20) -> nn.Module:
    """Full-batch LBFGS."""
    weights = list(network.parameters())
    optimiser = torch.optim.LBFGS(weights, max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss(network)
        value.backward()
        return value

    optimiser.step(closure)
    optimiser.zero_grad()
    return network.eval()


@dataclass(frozen=True)
class Trainer:
    """Makes and trains a network of (X, y); unlike a function it has the same name in every process."""

    classes: bool = False  # whether y are class numbers

    def __call__(self, X: Tensor, y: Tensor) -> nn.Module:
        return _classifier(X.double(), y) if self.classes else _regressor(X.double(), y.double())


def _regressor(X: Tensor, y: Tensor) -> nn.Module:
    """Least squares."""
    targets = y.reshape(len(y), -1)
    back = Scaled(targets, back=True)
    network = tiny(X, targets.shape[1], back)
    return train(network, lambda net: ((net(X) - targets) / back.spread).square().mean())


def _classifier(X: Tensor, y: Tensor) -> nn.Module:
    """Cross entropy, with a little weight decay: classes that can be told apart would never end."""

    def loss(net: nn.Module) -> Tensor:
        decay = sum(p.square().sum() for p in net.parameters())
        return nn.functional.cross_entropy(net(X), y) + 1e-3 * decay

    return train(tiny(X, int(y.max()) + 1), loss)
