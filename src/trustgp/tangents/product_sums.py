"""Signed sums of products of gathered numbers, in one kernel of a GPU. Triton comes with torch for CUDA."""

from __future__ import annotations

from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

FEATURES, WARPS = 128, 4  # per program


@triton.jit(do_not_specialize=["n", "width", "numbers", "lines"])
def _kernel(
    given,
    back,
    right,
    left,
    signs,
    result,
    n,
    width,
    numbers,
    dim,
    lines,
    mixed: tl.constexpr,
    padded: tl.constexpr,
    features: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * features + tl.arange(0, features)
    signal = tl.arange(0, padded)[:, None]
    inside = feature < dim
    both = (signal < mixed) & inside[None, :]
    total = tl.zeros([padded, features], dtype=result.dtype.element_ty)
    for line in range(lines):
        place = line * dim + feature
        column = tl.load(right + place, mask=inside, other=0)
        entry = tl.load(given + row * width + column, mask=inside, other=0.0)
        entry = entry * tl.load(signs + place, mask=inside, other=0.0)
        number = tl.load(left + place, mask=inside, other=0)
        other = tl.load(back + (signal * n + row) * numbers + number[None, :], mask=both, other=0.0)
        total += entry[None, :] * other
    tl.store(result + (row * mixed + signal) * dim + feature[None, :], total, mask=both)


def product_sums(given: Tensor, back: Tensor, right: Tensor, left: Tensor, signs: Tensor) -> Tensor:
    r"""Features [n, K, D] from inputs a [n, A] and signals g [K, n, G]:

    .. math:: \phi_{i k d} = \sum_l s_{l d} \, a_{i, r_{l d}} \, g_{k, i, j_{l d}} ,

    with the tables r, j (int32) and s, [L, D] each; all tensors are contiguous, on one GPU.
    """
    (lines, dim), mixed, n = right.shape, back.shape[0], given.shape[0]
    result = given.new_empty(n, mixed, dim)
    grid, padded = (n, triton.cdiv(dim, FEATURES)), triton.next_power_of_2(mixed)
    sizes = n, given.shape[1], back.shape[2], dim, lines, mixed, padded, FEATURES
    launch: Any = _kernel
    with torch.cuda.device(given.device):
        launch[grid](given, back, right, left, signs, result, *sizes, num_warps=WARPS)
    return result
