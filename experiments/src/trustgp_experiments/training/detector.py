"""Trains a detector of `trustgp study detection`; prints the held-out loss, and keeps checkpoints.

    python -m trustgp_experiments.training.detector --on scenes --device cuda --seconds 900 --out scenes.safetensors
    python -m trustgp_experiments.training.detector --on cells --batch 32 --device cuda --out cells.safetensors

Scenes are rendered; cells are BCCD's training pictures, below TRUSTGP_DATA. Matching and loss are those of
transformers. Weights are averaged over steps, and that average is saved, in float16. The stored weights were
trained with release 0.2, by the same loss with a matching on the GPU (logs: `results/detection/training`).
"""  # noqa: E501

import argparse
import copy
import json
import time
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample

from trustgp.data.atomic_file import atomic_file
from trustgp_experiments.datasets.scenes import Scenes, load_photographs, scenes
from trustgp_experiments.training.detector_network import TRAINED, detector, pixels

CHUNK = 250  # pictures rendered at a time
LEAST_SHARE = 0.3  # of a box that must stay in an augmented picture

Labels = list[dict[str, Tensor]]  # of each picture: class_labels [k], and boxes (centre, size; 0 to 1) [k, 4]


def render(task: tuple[int, int]) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """Pictures, boxes and labels, as arrays: processes exchange tensors as open files, whose number is limited."""  # noqa: E501
    drawn = scenes(task[1], "carry", seed=0, first=task[0])
    return drawn.images.numpy(), [one.numpy() for one in drawn.boxes], [one.numpy() for one in drawn.labels]


def rendered_scenes(n: int, held_out: int, workers: int) -> tuple[Scenes, Scenes]:
    """Scenes to train on, and held-out ones."""
    tasks = [(start, min(CHUNK, n + held_out - start)) for start in range(0, n + held_out, CHUNK)]
    if workers > 1:
        with Pool(workers) as pool:
            parts = pool.map(render, tasks)
    else:
        parts = [render(task) for task in tasks]
    images = torch.from_numpy(np.concatenate([pictures for pictures, _, _ in parts]))
    boxes, labels = (tuple(torch.from_numpy(one) for part in parts for one in part[k]) for k in (1, 2))
    train, test = (Scenes(images[s], boxes[s], labels[s]) for s in (slice(None, n), slice(n, None)))
    return train, test


def labels_of(pictures: Scenes) -> Labels:
    """Labels and boxes of the pictures in the format of transformers."""
    size = torch.tensor([pictures.images.shape[3], pictures.images.shape[2]])
    corners = [(boxes[:, :2] / size, boxes[:, 2:] / size) for boxes in pictures.boxes]
    relative = [torch.cat([(low + high) / 2, high - low], dim=1) for low, high in corners]
    return [{"class_labels": k, "boxes": b} for k, b in zip(pictures.labels, relative, strict=True)]


def augmented(images: Tensor, labels: Labels, *, cells: bool) -> tuple[Tensor, Labels]:
    """Pictures, uint8 [n, 3, h, w], mirrored, with changed brightness and contrast; cells also flipped
    vertically and enlarged, without boxes of which less than `LEAST_SHARE` is left."""
    n, device = len(images), images.device
    sign = 1.0 - 2.0 * (torch.rand(n, 2, device=device) < 0.5)
    zoom, shift = torch.ones(n, 1, device=device), torch.zeros(n, 2, device=device)
    if cells:
        zoom = 0.7 + 0.3 * torch.rand(n, 1, device=device)
        shift = (1 - zoom) * (2 * torch.rand(n, 2, device=device) - 1)
    else:
        sign[:, 1] = 1.0
    # the point p of the new picture shows the point zoom * sign * p + shift of the old one, both from -1 to 1
    transform = torch.cat([torch.diag_embed(zoom * sign), shift[..., None]], dim=2)
    grid = affine_grid(transform, [n, *images.shape[1:]], align_corners=False)
    moved = grid_sample(pixels(images), grid, padding_mode="reflection", align_corners=False)
    gain = 1 + 0.2 * (torch.rand(n, 3, 1, 1, device=device) - 0.5)
    lift = 0.4 * (torch.rand(n, 1, 1, 1, device=device) - 0.5)
    kept = []
    for one, s, z, d in zip(labels, sign, zoom, shift, strict=True):
        boxes = one["boxes"].to(device)
        centre, half = ((2 * boxes[:, :2] - 1 - d) * (s / z) + 1) / 2, boxes[:, 2:] / z / 2
        low, high = (centre - half).clamp(0, 1), (centre + half).clamp(0, 1)
        inside = (high - low).prod(dim=1) > LEAST_SHARE * (4 * half.prod(dim=1)).clamp_min(1e-9)
        boxes = torch.cat([(low + high) / 2, high - low], dim=1)[inside]
        kept.append({"class_labels": one["class_labels"].to(device)[inside], "boxes": boxes})
    return moved * gain + lift, kept


class DetectorTraining:
    """Steps of AdamW on random pictures; `average` is the detector with averaged weights."""

    def __init__(self, network, images: Tensor, labels: Labels, *, rate: float, batch: int, cells: bool):
        self.network, self.images, self.labels = network.train(), images, labels
        self.rate, self.batch, self.cells = rate, batch, cells
        self.average = copy.deepcopy(network).eval()
        self.optimiser = torch.optim.AdamW(network.parameters(), weight_decay=1e-4)

    def step(self, number: int, share: float) -> float:
        """One step, after a share of the time, and its loss; the rate is flat at first, and falls from half way."""  # noqa: E501
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate * min(1.0, (number + 1) / 200, 0.02 + 2.0 * (1 - share))
        chosen = torch.randint(len(self.images), (self.batch,)).tolist()
        images, labels = augmented(self.images[chosen], [self.labels[i] for i in chosen], cells=self.cells)
        self.optimiser.zero_grad(set_to_none=True)
        # a CPU computes many times slower in bfloat16 than in float32
        with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
            loss = self.network(images, labels=labels).loss
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 0.5)
        self.optimiser.step()
        decay = min(0.998, (1 + number) / (10 + number))
        with torch.no_grad():
            sides = ((*one.parameters(), *one.buffers()) for one in (self.average, self.network))
            for old, new in zip(*sides, strict=True):
                if old.is_floating_point():
                    old.lerp_(new, 1 - decay)
        return float(loss.detach())


def main() -> None:
    """Train a detector with the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--on", choices=("scenes", "cells"), required=True)
    parser.add_argument("--seed", type=int, default=0, help="of weights and of the order")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=900, help="of training, after the pictures are made")
    parser.add_argument("--pictures", type=int, default=20_000)
    parser.add_argument("--held-out", type=int, default=500)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=6e-4)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--every", type=float, default=40, help="seconds between evaluations")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    cells = options.on == "cells"
    if cells:
        train, held_out = (load_photographs("bccd", part) for part in ("train", "val"))
    else:
        train, held_out = rendered_scenes(options.pictures, options.held_out, options.workers)
    network = detector(TRAINED[options.on][0], queries=TRAINED[options.on][1], seed=options.seed)
    how = {"rate": options.rate, "batch": options.batch, "cells": cells}
    images = train.images.to(options.device)
    training = DetectorTraining(network.to(options.device), images, labels_of(train), **how)
    validation = pixels(held_out.images), labels_of(held_out)
    start, evaluated, step = time.perf_counter(), 0.0, 0
    while (passed := time.perf_counter() - start) < options.seconds:
        loss = training.step(step, passed / options.seconds)
        step += 1
        if passed - evaluated > options.every:
            evaluated = passed
            held_out_loss = mean_loss(training.average, *validation)
            print(f"{passed:.0f} s, step {step}, loss {loss:.3f}, held-out {held_out_loss:.3f}", flush=True)
            save(training.average, options.out)
    save(training.average, options.out)
    record = {name: getattr(options, name) for name in ("on", "seed", "seconds", "batch")}
    record |= {"steps": step, "pictures": len(images), "held_out": len(held_out)}
    print(json.dumps({**record, "held_out_loss": mean_loss(training.average, *validation)}))


@torch.no_grad()
def mean_loss(network, images: Tensor, labels: Labels) -> float:
    """Mean loss over pictures as `pixels` returns them, batch by batch."""
    losses = []
    for part in torch.arange(len(images)).split(100):
        targets = [{k: v.to(network.device) for k, v in labels[i].items()} for i in part.tolist()]
        losses.append(float(network(images[part].to(network.device), labels=targets).loss) * len(part))
    return sum(losses) / len(images)


def save(network, path: Path) -> None:
    """Save the weights in float16, atomically."""
    state = {k: v.half() if v.is_floating_point() else v for k, v in network.state_dict().items()}
    with atomic_file(path) as temporary:
        save_file({k: v.contiguous().cpu() for k, v in state.items()}, temporary)


if __name__ == "__main__":
    main()
