"""PDQ: the quality of boxes with error bars and of their classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# As in the authors' code: what is added to a probability before its logarithm, the probability from which a
# pixel counts, and the quality of a box up to which it is none.
EPSILON, MIN_PROBABILITY, MIN_QUALITY = 1e-14, 0.0027, 1e-8
MIN_STD = 1e-9  # pixels
Sizes = Sequence[tuple[int, int]]  # height and width of each picture


@dataclass(frozen=True)
class DetectionQuality:
    """The score, and its parts."""

    pdq: float  # in [0, 1]
    spatial: float  # mean quality of the boxes of pairs; 0 without any
    label: float  # that of their classes
    pairs: int  # of a detection and a target
    false: int  # detections without a target
    missed: int  # targets without a detection


def detection_quality(detections: Sequence[Any], targets: Sequence[Any], sizes: Sizes) -> DetectionQuality:
    r"""Probability-based detection quality, PDQ (Hall et al. 2020): 1 is perfect, 0 is the worst.

    .. math:: \mathrm{PDQ} = \frac{\sum_{(i, j)} \sqrt{Q_S(i, j) \, p_j(c_i)}}
        {N_{pairs} + N_{false} + N_{missed}}

    over the pairs of a target i and a detection j of the assignment for which the sum is largest, picture by
    picture; :math:`Q_S` is the `spatial_quality`, :math:`p_j(c_i)` the probability of the target's
    class. Pairs of quality 0 are none.

    Unlike in the authors' code, a target covers its box, not a mask; edges are independent (a diagonal
    covariance of the corners); a pixel belongs to a box when its centre does, there when any part does; an
    edge may lie outside the picture, from which their code draws it back; and no target is too small.

    Args:
        detections: Of each of n pictures, with `boxes`, `std` [k, 4] and `probabilities` [k, C or more].
        targets: In the same order, with `boxes` [m, 4] and `labels` [m].
        sizes: Height and width of each picture, in pixels.
    """
    from scipy.optimize import linear_sum_assignment  # half a second to import

    if not len(detections) == len(targets) == len(sizes):
        lengths = f"{len(detections)} detections, {len(targets)} targets and {len(sizes)} sizes"
        raise ValueError(f"{lengths} were given; one of each for every picture is needed.")
    parts, num_detections, num_targets = [torch.zeros(0, 3, dtype=torch.float64)], 0, 0
    for own, there, size in zip(detections, targets, sizes, strict=True):
        num_detections, num_targets = num_detections + len(own.boxes), num_targets + len(there.labels)
        if len(own.boxes) == 0 or len(there.labels) == 0:
            continue
        if int(there.labels.max()) >= own.probabilities.shape[1]:
            number = own.probabilities.shape[1]
            raise ValueError(f"labels are {there.labels.tolist()}, with probabilities of {number} classes.")
        spatial = spatial_quality(own.boxes, own.std, there.boxes, size)
        label = own.probabilities.double()[:, there.labels].clamp(0, 1)
        quality = (spatial * label).sqrt()
        row, column = (torch.from_numpy(part) for part in linear_sum_assignment(quality, maximize=True))
        parts.append(torch.stack([each[row, column] for each in (quality, spatial, label)], dim=1))
    every = torch.cat(parts)
    every = every[every[:, 0] > 0]
    quality, spatial, label = every.sum(dim=0).tolist()
    pairs, false, missed = len(every), num_detections - len(every), num_targets - len(every)
    pdq, own = quality / max(1, pairs + false + missed), max(1, pairs)
    return DetectionQuality(pdq, spatial / own, label / own, pairs, false, missed)


def spatial_quality(boxes: Tensor, std: Tensor, true: Tensor, size: tuple[int, int]) -> Tensor:
    r"""How well boxes with Gaussian edges fit true ones, in [0, 1].

    .. math:: \exp\Bigl(\tfrac{1}{|T|} \sum_{x \in T} \log p(x)
        + \tfrac{1}{|T|} \sum_{x \notin T} \log (1 - p(x))\Bigr)

    over the pixels x of the picture, those of the true box being T. A pixel lies in a box with probability

    .. math:: p(x) = \Phi(\tfrac{x_1 - l}{\sigma_l}) \Phi(\tfrac{r - x_1}{\sigma_r})
        \Phi(\tfrac{x_2 - t}{\sigma_t}) \Phi(\tfrac{b - x_2}{\sigma_b}),

    0 where that is below 0.0027; a quality of 1e-8 at most is 0.

    Args:
        boxes: Left, top, right, bottom in pixels, shape [k, 4].
        std: Deviations of these edges in pixels, shape [k, 4].
        true: Shape [m, 4].
        size: Height and width of the picture in pixels.

    Returns:
        float64, shape [k, m].
    """
    boxes, std, true = boxes.double(), std.double().clamp_min(MIN_STD), true.double()
    height, width = size
    across, down = (torch.arange(n, dtype=torch.float64, device=boxes.device) + 0.5 for n in (width, height))
    inside_x, inside_y = _covered(across, true[:, 0], true[:, 2]), _covered(down, true[:, 1], true[:, 3])
    area = inside_x.sum(dim=1) * inside_y.sum(dim=1)  # |T| [m]
    x, y = _inside(across, boxes[:, 0::2], std[:, 0::2]), _inside(down, boxes[:, 1::2], std[:, 1::2])
    qualities = []
    for own_x, own_y in zip(x, y, strict=True):  # one at a time: each takes a picture
        p = own_y[:, None] * own_x  # [height, width]
        p = torch.where(p < MIN_PROBABILITY, 0.0, p)
        back = (1 - p + EPSILON).log()
        loss = _sums((p + EPSILON).log(), inside_y, inside_x) + back.sum() - _sums(back, inside_y, inside_x)
        qualities.append((loss / area).exp().clamp_max(1.0))
    quality = torch.stack(qualities) if qualities else area.new_zeros(0, len(true))
    return torch.where(quality > MIN_QUALITY, quality, 0.0)


def _inside(centres: Tensor, edges: Tensor, std: Tensor) -> Tensor:
    """Probability that a pixel lies between two edges, [k, n]: centres [n], lower and upper edge [k, 2]."""
    low, high = ((centres - edges[:, i, None]) / std[:, i, None] for i in (0, 1))
    return torch.special.ndtr(low) * torch.special.ndtr(-high)


def _covered(centres: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Which pixels lie between true edges, 0 or 1, float64, [m, n]: at least that nearest to the middle."""
    inside = (centres >= low[:, None]) & (centres < high[:, None])
    nearest = (centres - (low + high)[:, None] / 2).abs().argmin(dim=1, keepdim=True)
    return inside.double().scatter(1, nearest, 1.0)


def _sums(values: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Of a picture [height, width] over each box: its rows [m, height] and columns [m, width]; [m]."""
    return (rows @ values * columns).sum(dim=1)
