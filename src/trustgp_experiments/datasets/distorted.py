"""Images that are no longer quite what a network was trained on: turned, noisy, or nothing but noise."""

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample


def rotate(images: Tensor, degrees: float) -> Tensor:
    """The images turned against the clock about their centre; what comes in from outside is 0.

    Args:
        images: Shape [n, channels, height, width].
        degrees: Of the turn; pixels in between are interpolated linearly.
    """
    _check(images)
    angle = math.radians(degrees)
    height, width = images.shape[2:]
    # where each pixel comes from, in coordinates from -1 to 1 along either side
    turn = [
        [math.cos(angle), -math.sin(angle) * height / width, 0.0],
        [math.sin(angle) * width / height, math.cos(angle), 0.0],
    ]
    theta = torch.tensor(turn, dtype=images.dtype, device=images.device)
    grid = affine_grid(theta[None], [1, 1, height, width], align_corners=False)
    return grid_sample(images, grid.expand(len(images), -1, -1, -1), align_corners=False)


def add_noise(images: Tensor, std: float, *, seed: int = 0) -> Tensor:
    """The images plus Gaussian noise, cut to [0, 1].

    Args:
        images: From 0 to 1, shape [n, channels, height, width].
        std: Of the noise in every pixel.
        seed: Of the noise, which is the same on every device.
    """
    _check(images)
    if std < 0:
        raise ValueError(f"std={std}; it must not be negative.")
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(images.shape, generator=generator).to(images)
    return (images + std * noise).clamp(0.0, 1.0)


def uniform_noise(n: int, shape: tuple[int, int, int] = (1, 28, 28), *, seed: int = 0) -> Tensor:
    """Images of nothing: every pixel uniform on [0, 1], float32, shape [n, *shape].

    Args:
        n: How many.
        shape: Channels, height and width.
        seed: Of the noise.
    """
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed))


def _check(images: Tensor) -> None:
    if images.ndim != 4 or not images.is_floating_point():
        raise ValueError(
            f"images are {images.dtype} of shape {tuple(images.shape)}; floating-point numbers of shape "
            "[n, channels, height, width] are needed."
        )
