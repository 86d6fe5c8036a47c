"""CIFAR-10 with published networks, scored as in published tables. The last line is JSON.

    python experiments/benchmarks/cifar.py --images cifar10.npz --device cuda

State dicts of ResNet-20 and ResNet-56 (github chenyaofo/pytorch-cifar-models) are read from `TRUSTGP_DATA`,
images and labels from an archive with train, train_labels, test, test_labels. In each of five draws 1,000
test images calibrate and the others are scored; experts use all training images. A model is fitted once:
held-out images affect only its calibration, which is repeated for every draw. Novel images are test images
rotated by 90 degrees, and letters and textures in colour.
"""

import argparse
import warnings
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad

import trustgp
from trustgp import metrics
from trustgp.data.trees import moved
from trustgp.experts.mixture import LatentPrediction
from trustgp.state.model_state import predict_uncalibrated
from trustgp_experiments.core.benchmark import print_figures
from trustgp_experiments.core.stage_timer import stages
from trustgp_experiments.datasets import draw_letters, draw_textures
from trustgp_experiments.datasets.files import Folder
from trustgp_experiments.peers.tuning import likeliest_temperature
from trustgp_experiments.training.train import now, record_graph

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
BLOCKS, CLASSES, DRAWS = {"ResNet-20": 3, "ResNet-56": 9}, 10, 5  # per stage; in all; of held-out images
SIZES = {"train": 50_000, "test": 10_000, "novel": 5_000, "held out": 1_000, "repeat": 50}
SMALL = {"train": 40, "test": 60, "novel": 10, "held out": 30, "repeat": 1}
WEIGHTS = Folder("cifar_resnets", "github chenyaofo/pytorch-cifar-models")
Raw = tuple[Tensor, LatentPrediction]  # logits, and the prediction before calibration


class Block(nn.Module):
    def __init__(self, given: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(given, channels, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        shorter = nn.Conv2d(given, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
        self.downsample = nn.Identity() if given == channels else nn.Sequential(*shorter)

    def forward(self, x: Tensor) -> Tensor:
        return (self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())) + self.downsample(x)).relu()


class ResNet(nn.Module):
    """ResNet of He et al. 2016, for images of 32 x 32 pixels."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(Block(i, o, 1 + (i < o)), *(Block(o, o, 1) for _ in range(blocks - 1)))
            for i, o in ((16, 16), (16, 32), (32, 64))
        )
        self.fc = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.bn1(self.conv1(x)).relu())))
        return self.fc(x.mean(dim=(2, 3)))


def scaled(pixels: Tensor) -> Tensor:
    """Images [n, 3, 32, 32] from 0 to 1, standardised as inputs of the networks."""
    centre, spread = (pixels.new_tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return (pixels - centre) / spread


def coloured(grey: Tensor, seed: int) -> Tensor:
    """Grey images [n, 1, 28, 28] as images [n, 3, 32, 32] between two random colours each."""
    low, high = torch.rand(2, len(grey), 3, 1, 1, generator=torch.Generator().manual_seed(seed))
    return low + (high - low) * interpolate(grey, size=(32, 32), mode="bilinear", align_corners=False)


def load(file: Path, sizes: dict[str, int], device: str) -> dict[str, Tensor]:
    data: dict[str, Tensor] = {}
    with np.load(file) as arrays:
        for key in ("train", "test"):
            pixels, labels = (torch.from_numpy(arrays[k][: sizes[key]]) for k in (key, f"{key}_labels"))
            data |= {key: scaled(pixels.permute(0, 3, 1, 2) / 255.0), f"{key}_labels": labels.long()}
    data["turned"] = torch.rot90(data["test"], 1, (2, 3))
    for key, draw in (("letters", draw_letters), ("textures", draw_textures)):
        data[key] = scaled(coloured(draw(sizes["novel"], seed=0)[0], seed=1))
    return {key: value.contiguous().to(device) for key, value in data.items()}


def latent(model: trustgp.UncertaintyModel, images: Tensor) -> Raw:
    with torch.no_grad():
        parts = [predict_uncalibrated(model.state, part) for part in images.split(500)]
    return torch.cat([z for z, _ in parts]), LatentPrediction.cat([raw for _, raw in parts])


def by_variance(raw: LatentPrediction, own: bool) -> LatentPrediction:
    """Prediction without noise, at a temperature that grows with the variance of the logits about their
    mean: that of the most probable class (`own`), or the mean over the classes."""
    assert raw.covariance is not None
    k = round(raw.covariance.shape[1] ** 0.5) + 1
    whole, centre = pad(raw.covariance.unflatten(1, (k - 1, k - 1)), (1, 0, 1, 0)), torch.eye(k) - 1.0 / k
    diagonal = (centre.to(whole) @ whole @ centre.to(whole)).diagonal(dim1=1, dim2=2)
    variance = diagonal[:, :1] if own else diagonal.mean(dim=1, keepdim=True)
    return replace(raw, covariance=None, epistemic=variance)


def noise_alone(raw: LatentPrediction) -> LatentPrediction:
    return replace(raw, log_leverage=raw.log_leverage - 30.0, epistemic=1e-12 * raw.epistemic)


Change = Callable[[LatentPrediction], LatentPrediction]
VARIANTS: dict[str, dict[str, Change]] = {
    "default": {
        "default": lambda raw: raw,
        "without the experts' variance": lambda raw: replace(raw, epistemic=1e-12 * raw.epistemic),
        "experts' variance alone": lambda raw: replace(raw, covariance=None),
        "noise alone, two classes": noise_alone,
    },
    "all classes": {
        "all classes": lambda raw: raw,
        "noise alone, all classes": noise_alone,
        "mean variance alone": partial(by_variance, own=False),
        "own class's variance alone": partial(by_variance, own=True),
    },
}


def scores_of(p: Tensor, turned: Tensor, labels: Tensor, scored: Tensor) -> dict[str, float]:
    right = labels[scored]
    values = {"nll": metrics.class_nll(p, right), "ece": metrics.expected_calibration_error(p, right)}
    values |= {"turned": metrics.class_nll(turned, labels)}
    return {key: float(value.mean()) for key, value in values.items()}


def calibrated(
    model: Any, raws: dict[str, Raw], change: Change, labels: Tensor, draw: Any
) -> dict[str, float]:
    likelihood, (held, scored) = model.state.likelihood, draw
    (z, near), (turned, far) = ((raws[key][0], change(raws[key][1])) for key in ("test", "turned"))
    rows = likelihood.calibration_rows(z[held], near.take(held), labels[held])
    learnt = likelihood.calibrate(rows, model.state.shape, None)
    p, q = (likelihood.prediction(*x, learnt) for x in ((z[scored], near.take(scored)), (turned, far)))
    scores = scores_of(p.probabilities, q.probabilities, labels, scored)
    return {**scores, "reordered": float(p.reordered.double().mean())}


def novelty(model: Any, raws: dict[str, Raw], labels: Tensor, draw: Any) -> dict[str, float]:
    """AUROC and FPR95 of the score and of each measure in it, for every set of novel images."""
    likelihood, (held, scored), (z, raw) = model.state.likelihood, draw, raws["test"]
    rows = likelihood.calibration_rows(z[held], raw.take(held), labels[held])
    usual = likelihood.calibrate(rows, model.state.shape, None)[1]
    usual, scores = moved(usual, lambda tensor: tensor.to(z.device)), {}
    for key, (outputs, one) in raws.items():
        measures = likelihood.measures(one, outputs)
        variance, hidden, entropy = usual.pooled(measures).T
        pairs = {"score": usual(measures), "variance": variance, "hidden vectors": hidden, "entropy": entropy}
        for name, value in pairs.items():
            scores[key, name] = value[scored] if key == "test" else value
    return {
        f"{measure.__name__}, {key}, {name}": float(measure(scores["test", name], value))
        for (key, name), value in scores.items()
        for measure in (metrics.auroc, metrics.fpr95)
        if key != "test"
    }


def answer(model: trustgp.UncertaintyModel, images: Tensor) -> Any:
    prediction: Any = model.predict(images)
    return prediction.probabilities


@torch.no_grad()
def milliseconds(calls: dict[str, Callable[[], Any]], device: torch.device, repeat: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        for _ in range(repeat + 5):
            start = now(device)
            call()
            times[name].append(1e3 * (now(device) - start))
    return {name: median(values[5:]) for name, values in times.items()}


def one_network(
    name: str, data: dict[str, Tensor], sizes: dict[str, int], options: Namespace
) -> dict[str, Any]:
    device, labels, network = torch.device(options.device), data["test_labels"], ResNet(BLOCKS[name])
    file = WEIGHTS.path(f"cifar10_{name.lower().replace('-', '')}.pt", None)
    network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    network.eval().to(device)
    generator, result, rows, models = torch.Generator().manual_seed(0), {}, [], {}
    orders = [torch.randperm(len(labels), generator=generator).to(device) for _ in range(DRAWS)]
    draws = [(order[: sizes["held out"]], order[sizes["held out"] :]) for order in orders]
    train, validation = (
        (data["train"], data["train_labels"]),
        (data["test"][draws[0][0]], labels[draws[0][0]]),
    )
    for kind, top in (("default", 2), ("all classes", CLASSES)):
        fit = partial(trustgp.fit, likelihood=trustgp.Classification(top_classes=top), progress=False)
        fit(network, (train[0][:500], train[1][:500]), validation=validation)  # warm-up: loads and plans
        with stages(device) as ledger:
            model = models[kind] = fit(network, train, validation=validation)
        sets = ("test", "turned", "letters", "textures")[: None if top == 2 else 2]
        raws = {key: latent(model, data[key]) for key in sets}
        z, turned = (raws[key][0].double() for key in ("test", "turned"))
        for draw in draws:
            changes = VARIANTS[kind].items()
            rows.append({key: calibrated(model, raws, change, labels, draw) for key, change in changes})
            best = likeliest_temperature(z[draw[0]], labels[draw[0]])
            for key, t in {"network": 1.0, "one temperature": best}.items():
                rows[-1][key] = scores_of(
                    (z[draw[1]] / t).softmax(1), (turned / t).softmax(1), labels, draw[1]
                )
            rows[-1] |= {"novelty": novelty(model, raws, labels, draw)} if top == 2 else {}
        result[kind] = {"fit s": ledger.total, "MiB": model.nbytes / 2**20}
        result[kind] |= {"peak GiB": ledger.peak.get(device.type, 0) / 2**30}
        print(name, kind, result[kind], flush=True)
    for n in (1, 64):
        given = data["test"][:n].clone()
        calls: dict[str, Callable[[], Any]] = {k: partial(answer, m, given) for k, m in models.items()}
        calls["network"] = partial(network, given)
        if device.type == "cuda":
            calls["network, recorded"] = record_graph(torch.no_grad()(calls["network"]), device)[0].replay
        result[f"ms, {n}"] = milliseconds(calls, device, sizes["repeat"])
    table: dict[str, dict[str, list[float]]] = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        each = [row[key] for row in rows if key in row][:DRAWS]
        columns = {measure: [one[measure] for one in each] for measure in each[0]}
        table[key] = {k: [round(fmean(v), 5), round(float(np.std(v, ddof=1)), 5)] for k, v in columns.items()}
    return {**result, "means and deviations": table}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--network", nargs="+", default=list(BLOCKS), choices=list(BLOCKS))
    parser.add_argument("--small", action="store_true", help="few images: does it run?")
    options = parser.parse_args()
    sizes = SMALL if options.small else SIZES
    data = load(options.images, sizes, options.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figures = {name: one_network(name, data, sizes, options) for name in options.network}
    device = torch.cuda.get_device_name() if options.device.startswith("cuda") else "cpu"
    print_figures(**{"device": device, "torch": torch.__version__, **sizes, "figures": figures})


if __name__ == "__main__":
    main()
