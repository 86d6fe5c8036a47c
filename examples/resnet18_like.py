"""An error bar for a ResNet-18-shaped network: 11 million parameters, images of 3 x 32 x 32.

    python examples/resnet18_like.py [--images 400] [--width 64] [--steps 20]

The network is trained for a few steps to tell how many stripes an image has, and in which direction. Its
layers are convolutions, so `fit` chooses a sketch: each image's gradient, 11 million numbers, becomes 4,096.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trustgp


class Block(nn.Module):
    """Two convolutions and a way round them."""

    def __init__(self, inward: int, outward: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inward, outward, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outward)
        self.conv2 = nn.Conv2d(outward, outward, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outward)
        self.short = nn.Sequential()
        if stride > 1 or inward != outward:
            self.short.append(nn.Conv2d(inward, outward, 1, stride, bias=False))
            self.short.append(nn.BatchNorm2d(outward))

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(inner)) + self.short(x), inplace=True)


class ResNet18(nn.Module):
    """Four stages of two blocks each, as in He et al. (2016), with the stem for small images."""

    def __init__(self, outputs: int, *, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        stages = [
            nn.Sequential(Block(i, o, 1 if k == 0 else 2), Block(o, o, 1))
            for k, (i, o) in enumerate(pairwise(widths))
        ]
        self.stages = nn.Sequential(*stages)
        self.last = nn.Linear(widths[-1], outputs)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.stages(self.stem(images)).mean(dim=(2, 3)))


def stripes(images: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy stripes, [n, 3, 32, 32], and their number and direction, [n, 2]."""
    generator = torch.Generator().manual_seed(seed)
    number, angle = (torch.rand(images, generator=generator) * s for s in (4.0, 1.5))
    grid = torch.linspace(-1, 1, 32)
    along = angle.cos()[:, None, None] * grid + angle.sin()[:, None, None] * grid[:, None]
    pattern = torch.sin(3.14 * (1 + number)[:, None, None] * along)
    noise = 0.3 * torch.randn(images, 3, 32, 32, generator=generator)
    return pattern[:, None] + noise, torch.stack([number, angle], dim=1)


def trained(network: nn.Module, inputs: Tensor, targets: Tensor, steps: int) -> nn.Module:
    """A few steps of Adam: enough for an example."""
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(0)
    network.train()
    for _ in range(steps):
        index = torch.randint(0, len(inputs), (32,), generator=generator)
        loss = (network(inputs[index]) - targets[index]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network.eval()


def main(arguments: list[str] | None = None) -> trustgp.UncertaintyModel:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--steps", type=int, default=20, help="of training")
    options = parser.parse_args(arguments)

    inputs, targets = stripes(options.images, seed=0)
    validation = stripes(max(20, options.images // 5), seed=1)
    torch.manual_seed(0)
    network = trained(ResNet18(2, width=options.width), inputs, targets, options.steps)

    model = trustgp.fit(network, (inputs, targets), validation=validation, outputs="pseudo")
    known, strange = stripes(20, seed=2)[0], 3 * torch.randn(20, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(model.predict(known).mean, network(known))
    print(f"tangents: {model.origin.tangents}")
    for name, images in (("stripes", known), ("noise only", strange)):
        p = model.predict(images)
        print(f"{name:10}: novelty {float(p.novelty.mean()):.2f}, std {p.std.mean(dim=0).tolist()}")
    return model


if __name__ == "__main__":
    main()
