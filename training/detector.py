"""Trains a detector of `trustgp study detection`; prints AP50, and keeps checkpoints.

    python training/detector.py --on scenes --device cuda --seconds 480 --out scenes.safetensors
    python training/detector.py --on cells --device cuda --seconds 480 --batch 32 --out cells.safetensors

Scenes are rendered; cells are BCCD's training pictures, below TRUSTGP_DATA. Matching is exact: of scenes,
with three things at most, it is done where the network is, by looking at every assignment; of cells by scipy.
Weights are averaged over steps; that average is saved, in float16.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import affine_grid, binary_cross_entropy_with_logits, grid_sample, one_hot

from trustgp.datasets.photographs import load_photographs
from trustgp.datasets.scenes import CLASSES, scenes
from trustgp.metrics.boxes import average_precision, corners, generous_overlaps
from trustgp.studies.detection_network import detector, pixels

FEW = 3  # things in a picture, for which every assignment is looked at
LOT = 250  # pictures rendered at a time
QUERIES = {"scenes": 30, "cells": 60}


def rendered(task: tuple[int, int]) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """Pictures, boxes and labels, as arrays: tensors travel as open files, of which there may be few."""
    first, n = task
    found = scenes(n, "carry", seed=0, first=first)
    return found.images.numpy(), [one.numpy() for one in found.boxes], [one.numpy() for one in found.labels]


@dataclass(frozen=True)
class Pictures:
    """Images uint8 [n, 3, height, width], boxes in pixels and labels of each, and how many classes."""

    images: Tensor
    boxes: list[Tensor]
    labels: list[Tensor]
    classes: int

    def table(self) -> tuple[Tensor, Tensor]:
        """Boxes from 0 to 1 (centre, size), [n, most, 4], and labels, [n, most]; -1: none."""
        most = max(FEW, *(len(one) for one in self.boxes))
        boxes, kinds = torch.zeros(len(self.images), most, 4), torch.full((len(self.images), most), -1)
        size = torch.tensor([self.images.shape[3], self.images.shape[2]])
        for i, (some, labels) in enumerate(zip(self.boxes, self.labels, strict=True)):
            low, high = some[:, :2] / size, some[:, 2:] / size
            boxes[i, : len(some)] = torch.cat([(low + high) / 2, high - low], dim=1)
            kinds[i, : len(some)] = labels
        return boxes, kinds


def rendered_scenes(n: int, held: int, workers: int) -> tuple[Pictures, Pictures]:
    """To train on, and held out."""
    tasks = [(start, min(LOT, n + held - start)) for start in range(0, n + held, LOT)]
    if workers > 1:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            parts = list(pool.map(rendered, tasks))
    else:
        parts = list(map(rendered, tasks))
    images = torch.from_numpy(np.concatenate([pictures for pictures, _, _ in parts]))
    boxes = [torch.from_numpy(one) for _, some, _ in parts for one in some]
    labels = [torch.from_numpy(one) for _, _, some in parts for one in some]
    cut = [slice(None, n), slice(n, None)]
    train, test = (Pictures(images[s], boxes[s], labels[s], len(CLASSES)) for s in cut)
    return train, test


def photographed_cells() -> tuple[Pictures, Pictures]:
    """BCCD's training pictures, and its validation pictures, held out."""
    found = [load_photographs("bccd", part) for part in ("train", "val")]
    train, held = (Pictures(f.images, list(f.boxes), list(f.labels), len(f.kinds)) for f in found)
    return train, held


def varied(images: Tensor, boxes: Tensor, labels: Tensor, *, cells: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures mirrored, with another brightness and contrast; cells also upside down and nearer.

    Args:
        images: uint8, [n, 3, height, width].
        boxes: [n, k, 4].
        labels: [n, k].
        cells: Whether there is no up and down.
    """
    n, device = len(images), images.device
    found = pixels(images)
    sign = torch.where(torch.rand(n, 2, device=device) < 0.5, -1.0, 1.0)
    zoom, shift = torch.ones(n, 1, device=device), torch.zeros(n, 2, device=device)
    if cells:
        zoom = 0.7 + 0.3 * torch.rand(n, 1, device=device)
        shift = (1 - zoom) * (2 * torch.rand(n, 2, device=device) - 1)
    else:
        sign[:, 1] = 1.0
    # a place p of the new picture shows the place zoom * sign * p + shift of the old one, both from -1 to 1
    turn = torch.cat([torch.diag_embed(zoom * sign), shift[..., None]], dim=2)
    grid = affine_grid(turn, list(found.shape), align_corners=False)
    found = grid_sample(found, grid, padding_mode="reflection", align_corners=False)
    centre = ((2 * boxes[..., :2] - 1 - shift[:, None]) * (sign / zoom)[:, None] + 1) / 2
    half = boxes[..., 2:] / zoom[:, None] / 2
    low, high = (centre - half).clamp(0, 1), (centre + half).clamp(0, 1)
    share = (high - low).prod(dim=2) / (4 * half.prod(dim=2)).clamp_min(1e-9)
    labels = torch.where(share > 0.3, labels, -1)
    boxes = torch.where(labels[..., None] >= 0, torch.cat([(low + high) / 2, high - low], dim=2), 0.0)
    gain = 1 + 0.2 * (torch.rand(n, 3, 1, 1, device=device) - 0.5)
    lift = 0.4 * (torch.rand(n, 1, 1, 1, device=device) - 0.5)
    return found * gain + lift, boxes, labels


@torch.no_grad()
def matched(logits: Tensor, boxes: Tensor, true: Tensor, labels: Tensor) -> Tensor:
    """The query of each thing, exact, shape [n, k]; of things that are not there any other.

    Args:
        logits: [n, Q, C].
        boxes: [n, Q, 4].
        true: [n, k, 4].
        labels: [n, k].
    """
    queries = logits.shape[1]
    p = logits.float().sigmoid()
    gain = 0.25 * (1 - p) ** 2 * -(p + 1e-8).log() - 0.75 * p**2 * -(1 - p + 1e-8).log()
    cost = 2 * gain.gather(2, labels.clamp_min(0)[:, None].expand(-1, queries, -1))
    cost = cost + 5 * torch.cdist(boxes.float(), true.float(), p=1)
    cost = cost - 2 * generous_overlaps(corners(boxes.float()), corners(true.float()))
    cost = torch.where(labels[:, None] >= 0, cost, torch.zeros_like(cost))
    if cost.shape[2] > FEW:
        pairs = [linear_sum_assignment(one.T)[1] for one in cost.cpu().numpy()]
        return torch.from_numpy(np.stack(pairs)).to(cost.device)
    total = cost[:, :, None, None, 0] + cost[:, None, :, None, 1] + cost[:, None, None, :, 2]
    same = torch.eye(queries, dtype=torch.bool, device=cost.device)
    clash = same[:, :, None] | same[:, None, :] | same[None, :, :]
    best = total.masked_fill(clash, torch.inf).flatten(1).argmin(dim=1)
    return torch.stack([best // queries**2, best // queries % queries, best % queries], dim=1)


def loss_of(logits: Tensor, boxes: Tensor, true: Tensor, labels: Tensor) -> Tensor:
    """Focal loss of the classes, and the distance and overlap of matched boxes, over the number of things."""
    query = matched(logits, boxes, true, labels)
    there = labels >= 0
    count = there.sum().clamp_min(1)
    wanted = torch.zeros_like(logits, dtype=torch.float32)
    hot = one_hot(labels.clamp_min(0), logits.shape[2]).float() * there[..., None]
    wanted.scatter_add_(1, query[..., None].expand(-1, -1, logits.shape[2]), hot)
    logits = logits.float()
    p = logits.sigmoid()
    sure = torch.where(wanted > 0, p, 1 - p)
    weight = torch.where(wanted > 0, 0.25, 0.75) * (1 - sure) ** 2
    classes = (weight * binary_cross_entropy_with_logits(logits, wanted, reduction="none")).sum() / count
    found = boxes.float().gather(1, query[..., None].expand(-1, -1, 4))
    distance = ((found - true).abs().sum(dim=2) * there).sum() / count
    pairs = generous_overlaps(corners(found)[:, :, None], corners(true)[:, :, None])[..., 0, 0]
    return 2 * classes + 5 * distance + 2 * ((1 - pairs) * there).sum() / count


def every_layer(network, images: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and boxes of all decoder layers, [L * n, Q, ...]."""
    seen = network.model(images)
    # the last layer's is normalised once more in a prediction
    hidden = torch.cat([seen.intermediate_hidden_states[:-1], seen.last_hidden_state[None]])
    start = torch.special.logit(seen.reference_points.float(), eps=1e-5).transpose(0, 1)
    boxes = network.bbox_predictor(hidden).float()
    boxes = torch.cat([boxes[..., :2] + start, boxes[..., 2:]], dim=-1).sigmoid()
    return network.class_labels_classifier(hidden).flatten(0, 1), boxes.flatten(0, 1)


@torch.no_grad()
def quality(network, held: Pictures, device: str) -> list[float]:
    """AP50 of each class."""
    network.eval()
    scores, boxes = [], []
    size = torch.tensor([held.images.shape[3], held.images.shape[2]] * 2)
    for part in held.images.split(500):
        found = network(pixels(part.to(device)))
        scores += list(found.logits.float().sigmoid().cpu())
        boxes += list(corners(found.pred_boxes.float()).cpu() * size)
    values = []
    for kind in range(held.classes):
        truth = [b[label == kind] for b, label in zip(held.boxes, held.labels, strict=True)]
        values.append(average_precision(boxes, [s[:, kind] for s in scores], truth))
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--on", choices=list(QUERIES), required=True)
    parser.add_argument("--seed", type=int, default=0, help="of weights and of the order")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=600, help="of training, after the pictures are made")
    parser.add_argument("--pictures", type=int, default=20_000)
    parser.add_argument("--held", type=int, default=500)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=6e-4)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--every", type=float, default=40, help="seconds between looks at held-out pictures")
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    start = time.perf_counter()
    cells = options.on == "cells"
    if cells:
        train, held = photographed_cells()
    else:
        train, held = rendered_scenes(options.pictures, options.held, options.workers)
    images, true, labels = (part.to(options.device) for part in (train.images, *train.table()))
    print(f"{len(images)} pictures in {time.perf_counter() - start:.0f} s", flush=True)
    network = detector(train.classes, queries=QUERIES[options.on], seed=options.seed)
    if options.resume:
        network.load_state_dict(
            {k: v.float() if v.is_floating_point() else v for k, v in load_file(options.resume).items()}
        )
    network = network.to(options.device).train()
    average = torch.optim.swa_utils.AveragedModel(
        network, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.998), use_buffers=True
    )
    slow = [p for name, p in network.named_parameters() if "backbone" in name]
    fast = [p for name, p in network.named_parameters() if "backbone" not in name]
    fused = options.device.startswith("cuda")
    groups = [{"params": fast}, {"params": slow}]
    optimiser = torch.optim.AdamW(groups, lr=options.rate, weight_decay=1e-4, fused=fused)
    start, looked, step = time.perf_counter(), 0.0, 0
    while (passed := time.perf_counter() - start) < options.seconds:
        share = passed / options.seconds
        rate = options.rate * min(
            1.0, (step + 1) / 200, 0.02 + 2.0 * (1 - share)
        )  # flat, then down from half way
        for group in optimiser.param_groups:
            group["lr"] = rate
        chosen = torch.randint(len(images), (options.batch,), device=images.device)
        pictures, boxes, kinds = varied(images[chosen], true[chosen], labels[chosen], cells=cells)
        with torch.autocast(images.device.type, torch.bfloat16):
            logits, found = every_layer(network, pictures)
        layers = len(logits) // len(chosen)
        loss = layers * loss_of(logits, found, boxes.repeat(layers, 1, 1), kinds.repeat(layers, 1))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        optimiser.step()
        average.update_parameters(network)
        step += 1
        if passed - looked > options.every:
            looked = passed
            ap = " ".join(f"{one:.3f}" for one in quality(average.module, held, options.device))
            print(f"{passed:.0f} s, step {step}, loss {float(loss.detach()):.3f}, AP50 {ap}", flush=True)
            saved(average.module, options.out)
    saved(average.module, options.out)
    record = {"on": options.on, "seed": options.seed, "seconds": options.seconds, "steps": step}
    record |= {"pictures": len(images), "batch": options.batch, "held": len(held.images)}
    print(json.dumps({**record, "ap50": quality(average.module, held, options.device)}))


def saved(network, path: Path) -> None:
    """In float16, whole or not at all."""
    state = {k: v.half() if v.is_floating_point() else v for k, v in network.state_dict().items()}
    save_file({k: v.contiguous().cpu() for k, v in state.items()}, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


if __name__ == "__main__":
    main()
