"""An error bar for a recurrent network: from a window of joint positions to the torques of an arm.

    python examples/gru_torques.py [--trajectories 40] [--hidden 48] [--epochs 30]

The network sees positions only and must work out velocities and accelerations. Windows of one trajectory are
far from independent, so the error bar is fitted to other trajectories, the validation rows.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import trustgp
from trustgp_experiments.datasets import simulate

LENGTH = 12  # positions in a window
STRIDE = 25  # rows of the recording between two windows


class Torques(nn.Module):
    """A GRU over the window, and the torques from its last state. Standardises by itself."""

    def __init__(self, hidden: int, positions: Tensor, torques: Tensor) -> None:
        super().__init__()
        self.gru = nn.GRU(positions.shape[-1], hidden, batch_first=True)
        self.last = nn.Linear(hidden, torques.shape[-1])
        self.register_buffer("centre", positions.mean(dim=(0, 1)))
        self.register_buffer("spread", positions.std(dim=(0, 1)))

    def forward(self, window: Tensor) -> Tensor:
        outputs, _ = self.gru((window - self.centre) / self.spread)
        return self.last(outputs[:, -1])


def recording(trajectories: int, style: str, seed: int) -> tuple[Tensor, Tensor]:
    """Positions [n, joints] and torques [n, joints] of trajectories of 500 rows, one after another."""
    made = simulate(rows=500 * trajectories, style=style, seed=seed)
    return made.inputs[:, :7], made.targets


def windows(trajectories: int, style: str, seed: int) -> tuple[Tensor, Tensor]:
    """Windows [n, LENGTH, joints] that lie within a trajectory, and the torques at their ends [n, joints]."""
    positions, torques = (
        part.unflatten(0, (trajectories, 500)) for part in recording(trajectories, style, seed)
    )
    ends = range(LENGTH - 1, 500, STRIDE)
    inputs = torch.stack([positions[:, end - LENGTH + 1 : end + 1] for end in ends], dim=1)
    return inputs.flatten(0, 1), torques[:, list(ends)].flatten(0, 1)


def trained(network: nn.Module, inputs: Tensor, targets: Tensor, epochs: int) -> nn.Module:
    """Adam on batches of 64 windows."""
    optimiser = torch.optim.Adam(network.parameters(), 3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for index in torch.randperm(len(inputs), generator=generator).split(64):
            loss = (network(inputs[index]) - targets[index]).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return network.eval()


def main(arguments: list[str] | None = None) -> trustgp.UncertaintyModel:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trajectories", type=int, default=40)
    parser.add_argument("--hidden", type=int, default=48)
    parser.add_argument("--epochs", type=int, default=30)
    options = parser.parse_args(arguments)

    inputs, targets = windows(options.trajectories, "slow", seed=0)
    centre, spread = targets.mean(dim=0), targets.std(dim=0)
    held_inputs, held_targets = windows(max(2, options.trajectories // 5), "slow", seed=1)
    torch.manual_seed(0)
    network = Torques(options.hidden, inputs, targets)
    trained(network, inputs, (targets - centre) / spread, options.epochs)

    model = trustgp.fit(
        network,
        (inputs, (targets - centre) / spread),
        validation=(held_inputs, (held_targets - centre) / spread),
    )
    print(f"tangents: {model.origin.tangents}, {model.num_experts} experts")
    for style in ("slow", "fast"):
        test_inputs, test_targets = windows(4, style, seed=2)
        p = model.predict(test_inputs)
        lower, upper = p.interval(0.95)
        truth = (test_targets - centre) / spread
        inside = float(((lower <= truth) & (truth <= upper)).double().mean())
        print(
            f"{style} motions: novelty {float(p.novelty.mean()):.2f}, {inside:.0%} within the 95 % interval"
        )
    return model


if __name__ == "__main__":
    main()
