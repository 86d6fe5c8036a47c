"""Are images of another kind told from familiar ones? AUROC of our score, its two parts, and simple peers.

Run: TRUSTGP_DATA=... python benchmarks/foreign.py [--seeds 0 1 2] [--rows 8000]
A small CNN for each case and seed; test images only. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, normalize

import trustgp
from trustgp import metrics
from trustgp_experiments.datasets import load_images
from trustgp_experiments.peers import cnn, train

EVEN = [0, 2, 4, 6, 8]
CASES = {
    "Fashion": ("fashion_mnist", list(range(10))),
    "MNIST": ("mnist", list(range(10))),
    "Fashion, even classes": ("fashion_mnist", EVEN),
    "MNIST, even classes": ("mnist", EVEN),
}
HELD, TESTED, SIDE = 2000, 2000, 28


def images(name: str, part: str) -> tuple[Tensor, Tensor]:
    """Pixels from 0 to 1, and labels."""
    found = load_images(name, part)
    return found.pixels[:, None].float() / 255, found.labels


def photographs(folder: str) -> Tensor:
    """The middle square of each, grey, as small as the others."""
    paths = sorted((Path(os.environ["TRUSTGP_DATA"]) / folder / "images").glob("*.jpg"))
    grey = []
    for path in paths:
        picture = Image.open(path).convert("L")
        side = min(picture.size)
        left, top = ((length - side) // 2 for length in picture.size)
        grey.append(np.asarray(picture.crop((left, top, left + side, top + side)).resize((SIDE, SIDE))))
    return torch.from_numpy(np.stack(grey))[:, None].float() / 255


def strangers(name: str, classes: list[int]) -> dict[str, Tensor]:
    """What is not like the training images."""
    if classes == EVEN:
        pixels, labels = images(name, "test")
        return {"odd classes": pixels[labels % 2 == 1][:TESTED]}
    other = "mnist" if name == "fashion_mnist" else "fashion_mnist"
    found = {other: images(other, "test")[0][:TESTED]}
    if name == "fashion_mnist":
        digits = torch.from_numpy(load_digits(return_X_y=True)[0]).reshape(-1, 1, 8, 8).float() / 16
        found["8 x 8 digits"] = interpolate(digits, size=SIDE, mode="bilinear")
    return found | {
        "blood cells": photographs("detection_bccd"),
        "raccoons": photographs("detection_raccoon"),
    }


class Peers:
    """Distances in the last hidden layer, and the energy of the logits; the higher the more foreign."""

    def __init__(self, network: nn.Module, inputs: Tensor, labels: Tensor) -> None:
        self.network = network
        hidden, _ = self._hidden(inputs)
        self.known = normalize(hidden, dim=1)
        self.centres = torch.stack([hidden[labels == c].mean(0) for c in labels.unique()])
        within = hidden - self.centres[labels]
        self.precision = torch.linalg.pinv(within.T @ within / len(within), hermitian=True, rtol=1e-6)

    def _hidden(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        *body, head = self.network.children()
        with torch.no_grad():
            hidden = nn.Sequential(*body)(inputs)
            return hidden.double(), head(hidden).double()

    def __call__(self, inputs: Tensor) -> dict[str, Tensor]:
        hidden, logits = self._hidden(inputs)
        away = hidden[:, None] - self.centres
        return {
            "kNN": -(normalize(hidden, dim=1) @ self.known.T).amax(dim=1),  # k = 1, the best of 1, 10, 50
            "class Gaussians": torch.einsum("ncd,de,nce->nc", away, self.precision, away).amin(dim=1),
            "energy": -logits.logsumexp(dim=1),
        }


def measure(case: str, seed: int, rows: int) -> dict[str, dict[str, float]]:
    """AUROC of each score, by what is foreign."""
    name, classes = CASES[case]
    number = torch.full((10,), -1)
    number[classes] = torch.arange(len(classes))

    def some(part: str) -> tuple[Tensor, Tensor]:
        pixels, labels = images(name, part)
        return pixels[number[labels] >= 0], number[labels][number[labels] >= 0]

    pixels, labels = some("train")
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(100 + seed))
    own, held = order[:rows], order[rows : rows + HELD]
    centre, spread = pixels[own].mean(), pixels[own].std()
    inputs = (pixels - centre) / spread
    start = cnn(channels=(16, 32), hidden=64, classes=len(classes), seed=seed)
    recipe = {"epochs": 12, "batch_size": 128, "learning_rate": 2e-3, "loss": cross_entropy}
    network = train(start, inputs[own], labels[own], seed=seed, **recipe)
    model = trustgp.fit(
        network,
        (inputs[own], labels[own]),
        likelihood=trustgp.Classification(),
        validation=(inputs[held], labels[held]),
        progress=False,
        seed=seed,
    )
    peers = Peers(network, inputs[own], labels[own])

    def scores(images: Tensor) -> dict[str, Tensor]:
        rows = (images - centre) / spread
        said = model.predict(rows)
        parts = {"latent variance": said.variance.mean(dim=1).double(), "share of the prior": said.novelty}
        return {"trustgp": said.score, **parts, **peers(rows)}

    known = scores(some("test")[0][:TESTED])
    found = {}
    for stranger, pictures in strangers(name, classes).items():
        new = scores(pictures)
        found[stranger] = {key: float(metrics.auroc(known[key].double(), new[key].double())) for key in known}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rows", type=int, default=8000)
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    results = []
    for seed in options.seeds:
        for case in options.cases:
            for stranger, found in measure(case, seed, options.rows).items():
                told = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
                print(f"seed {seed}, {case} -> {stranger}: {told}", flush=True)
                results.append({"seed": seed, "case": case, "foreign": stranger, **found})
    print(json.dumps({"rows": options.rows, "results": results}))


if __name__ == "__main__":
    main()
