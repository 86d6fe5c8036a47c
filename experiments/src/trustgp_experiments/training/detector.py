"""Trains a detector of `trustgp study detection`; prints AP50, and keeps checkpoints.

    python -m trustgp_experiments.training.detector --on scenes --device cuda --seconds 480 \\
        --out scenes.safetensors
    python -m trustgp_experiments.training.detector --on cells --device cuda --seconds 480 --batch 32 \\
        --out cells.safetensors

Scenes are rendered; cells are BCCD's training pictures, below TRUSTGP_DATA. Matching is done where the
network is: of scenes, with three things at most, by looking at every assignment, of cells by the cheapest
pair first. On a GPU a step is recorded once and played again. Weights are averaged over steps, and that
average is saved, in float16.
"""

import argparse
import copy
import json
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import affine_grid, binary_cross_entropy_with_logits, grid_sample, one_hot

from trustgp.data.atomic_file import atomic_file
from trustgp.metrics.boxes import corners, generous_overlaps
from trustgp_experiments.datasets.scenes import Scenes, load_photographs, scenes
from trustgp_experiments.training.detector_network import (
    TRAINED,
    class_precisions,
    detector,
    load_weights,
    pixels,
)

FEW = 3  # things in a picture, for which every assignment is looked at
LOT = 250  # pictures rendered at a time
WARM_UP = 5  # steps before one is recorded


def rendered(task: tuple[int, int]) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """Pictures, boxes and labels, as arrays: tensors travel as open files, of which there may be few."""
    found = scenes(task[1], "carry", seed=0, first=task[0])
    return found.images.numpy(), [one.numpy() for one in found.boxes], [one.numpy() for one in found.labels]


def rendered_scenes(n: int, held: int, workers: int) -> tuple[Scenes, Scenes]:
    """To train on, and held out."""
    tasks = [(start, min(LOT, n + held - start)) for start in range(0, n + held, LOT)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        parts = list(pool.map(rendered, tasks))
    images = torch.from_numpy(np.concatenate([pictures for pictures, _, _ in parts]))
    boxes, labels = (tuple(torch.from_numpy(one) for part in parts for one in part[k]) for k in (1, 2))
    train, test = (Scenes(images[s], boxes[s], labels[s]) for s in (slice(None, n), slice(n, None)))
    return train, test


def thing_table(pictures: Scenes) -> tuple[Tensor, Tensor]:
    """Boxes from 0 to 1 (centre, size), [n, most, 4], and labels, [n, most]; -1: none."""
    n, most = len(pictures), max(FEW, *(len(one) for one in pictures.boxes))
    boxes, kinds = torch.zeros(n, most, 4), torch.full((n, most), -1)
    size = torch.tensor([pictures.images.shape[3], pictures.images.shape[2]])
    for i, (some, labels) in enumerate(zip(pictures.boxes, pictures.labels, strict=True)):
        low, high = some[:, :2] / size, some[:, 2:] / size
        boxes[i, : len(some)] = torch.cat([(low + high) / 2, high - low], dim=1)
        kinds[i, : len(some)] = labels
    return boxes, kinds


def varied(images: Tensor, boxes: Tensor, labels: Tensor, *, cells: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures uint8 [n, 3, h, w] mirrored, of other brightness, contrast; cells upside down and nearer."""
    n, device = len(images), images.device
    found = pixels(images)
    sign = 1.0 - 2.0 * (torch.rand(n, 2, device=device) < 0.5)
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
    labels = labels.masked_fill(share <= 0.3, -1)
    boxes = torch.cat([(low + high) / 2, high - low], dim=2) * (labels[..., None] >= 0)
    gain = 1 + 0.2 * (torch.rand(n, 3, 1, 1, device=device) - 0.5)
    lift = 0.4 * (torch.rand(n, 1, 1, 1, device=device) - 0.5)
    return found * gain + lift, boxes, labels


@torch.no_grad()
def matched(logits: Tensor, boxes: Tensor, true: Tensor, labels: Tensor) -> Tensor:
    """The query of each thing, exact, [n, k], of logits [n, Q, C], boxes [n, Q, 4] and [n, k, 4], labels."""
    queries = logits.shape[1]
    p = logits.float().sigmoid()
    gain = 0.25 * (1 - p) ** 2 * -(p + 1e-8).log() - 0.75 * p**2 * -(1 - p + 1e-8).log()
    cost = 2 * gain.gather(2, labels.clamp_min(0)[:, None].expand(-1, queries, -1))
    cost = cost + 5 * torch.cdist(boxes.float(), true.float(), p=1)
    cost = cost - 2 * generous_overlaps(corners(boxes.float()), corners(true.float()))
    cost = cost.masked_fill(labels[:, None] < 0, 0.0 if cost.shape[2] <= FEW else 1e3)
    if cost.shape[2] > FEW:
        return cheapest_first(cost)
    total = cost[:, :, None, None, 0] + cost[:, None, :, None, 1] + cost[:, None, None, :, 2]
    same = torch.eye(queries, dtype=torch.bool, device=cost.device)
    clash = same[:, :, None] | same[:, None, :] | same[None, :, :]
    best = total.masked_fill(clash, torch.inf).flatten(1).argmin(dim=1)
    return torch.stack([best // queries**2, best // queries % queries, best % queries], dim=1)


def cheapest_first(cost: Tensor) -> Tensor:
    """The cheapest pair of [n, Q, k], then that of those left, and so on: the query of each thing, [n, k]."""
    n, queries, k = cost.shape
    cost, found = cost.clone(), torch.zeros(n, k, dtype=torch.int64, device=cost.device)
    for _ in range(k):
        best = cost.flatten(1).argmin(dim=1)
        query, thing = (best // k)[:, None], (best % k)[:, None]
        found.scatter_(1, thing, query)
        cost.scatter_(1, query[..., None].expand(-1, 1, k), torch.inf)
        cost.scatter_(2, thing[..., None].expand(-1, queries, 1), torch.inf)
    return found


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
    weight = (0.75 - 0.5 * wanted) * (1 - sure) ** 2
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


class DetectorTraining:
    """Steps of AdamW on images, boxes and labels drawn at random; `average` has averaged weights."""

    def __init__(self, network, rows: tuple[Tensor, Tensor, Tensor], options, *, cells: bool) -> None:
        self.network, self.rows, self.options, self.cells = network.train(), rows, options, cells
        for layer in network.model.encoder.layers:
            layer.training = False  # looks at its numbers otherwise, which no recorded step can
        self.average = copy.deepcopy(network).eval()
        self.cuda = rows[0].device.type == "cuda"
        self.rate, self.decay, self.loss = torch.zeros(3, device=rows[0].device).unbind()
        fast = {"lr": self.rate if self.cuda else options.rate, "fused": self.cuda, "capturable": self.cuda}
        self.optimiser = torch.optim.AdamW(network.parameters(), weight_decay=1e-4, **fast)
        self.side = torch.cuda.Stream() if self.cuda else None
        self.graph: torch.cuda.CUDAGraph | None = None

    def step(self, number: int, share: float) -> None:
        """One step, after a share of the time; rates are flat at first, and fall from half way."""
        rate = self.options.rate * min(1.0, (number + 1) / 200, 0.02 + 2.0 * (1 - share))
        self.rate.fill_(rate)
        self.decay.fill_(min(0.998, (1 + number) / (10 + number)))
        if not self.cuda:
            for group in self.optimiser.param_groups:
                group["lr"] = rate
            self._step()
        elif number < WARM_UP:
            torch.cuda.synchronize()
            with torch.cuda.stream(self.side):
                self._step()
            torch.cuda.synchronize()
        else:
            if self.graph is None:
                torch.cuda.synchronize()
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph, stream=self.side):
                    self._step()
            self.graph.replay()

    def _step(self) -> None:
        images, true, labels = self.rows
        chosen = torch.randint(len(images), (self.options.batch,), device=images.device)
        pictures, boxes, kinds = varied(images[chosen], true[chosen], labels[chosen], cells=self.cells)
        self.optimiser.zero_grad(set_to_none=True)
        # a CPU works many times slower in bfloat16 than in float32
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.cuda, cache_enabled=False):
            logits, found = every_layer(self.network, pictures)
        layers = len(logits) // len(chosen)
        loss = layers * loss_of(logits, found, boxes.repeat(layers, 1, 1), kinds.repeat(layers, 1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 0.5)
        self.optimiser.step()
        self.loss.copy_(loss.detach())
        with torch.no_grad():
            for old, new in zip(self._numbers(self.average), self._numbers(self.network), strict=True):
                old.mul_(self.decay).add_((1 - self.decay) * new)

    @staticmethod
    def _numbers(network) -> list[Tensor]:
        every = [*network.parameters(), *network.buffers()]
        return [one for one in every if one.is_floating_point()]


def main() -> None:
    """Train a detector as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--on", choices=("scenes", "cells"), required=True)
    parser.add_argument("--seed", type=int, default=0, help="of weights and of the order")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=600, help="of training, after the pictures are made")
    parser.add_argument("--pictures", type=int, default=20_000)
    parser.add_argument("--held", type=int, default=500)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=6e-4)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--every", type=float, default=40, help="seconds between looks at held-out pictures")
    parser.add_argument("--resume", type=Path, help="weights to go on from")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    start = time.perf_counter()
    cells = options.on == "cells"
    if cells:
        train, held = (load_photographs("bccd", part) for part in ("train", "val"))
    else:
        train, held = rendered_scenes(options.pictures, options.held, options.workers)
    images, true, labels = (part.to(options.device) for part in (train.images, *thing_table(train)))
    print(f"{len(images)} pictures in {time.perf_counter() - start:.0f} s", flush=True)
    classes, queries, _ = TRAINED[options.on]
    network = detector(classes, queries=queries, seed=options.seed)
    if options.resume:
        load_weights(network, options.resume)
    training = DetectorTraining(network.to(options.device), (images, true, labels), options, cells=cells)
    seen = pixels(held.images), held.boxes, held.labels
    start, looked, step = time.perf_counter(), 0.0, 0
    while (passed := time.perf_counter() - start) < options.seconds:
        training.step(step, passed / options.seconds)
        step += 1
        if step % 10 == 0 and passed - looked > options.every:
            looked = passed
            ap = " ".join(f"{one:.3f}" for one in class_precisions(training.average, *seen))
            print(f"{passed:.0f} s, step {step}, loss {float(training.loss):.3f}, AP50 {ap}", flush=True)
            saved(training.average, options.out)
    saved(training.average, options.out)
    record = {"on": options.on, "seed": options.seed, "seconds": options.seconds, "steps": step}
    record |= {"pictures": len(images), "batch": options.batch, "held": len(held.images)}
    print(json.dumps({**record, "ap50": class_precisions(training.average, *seen)}))


def saved(network, path: Path) -> None:
    """In float16, whole or not at all."""
    state = {k: v.half() if v.is_floating_point() else v for k, v in network.state_dict().items()}
    with atomic_file(path) as temporary:
        save_file({k: v.contiguous().cpu() for k, v in state.items()}, temporary)


if __name__ == "__main__":
    main()
