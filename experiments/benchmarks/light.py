"""What does the default model weigh, what does a prediction cost, what is it worth? The last line is JSON.

    TRUSTGP_DATA=... python benchmarks/light.py            # SARCOS, and three small cases; about 20 minutes
    TRUSTGP_DATA=... python benchmarks/light.py --exact    # budget="none" beside it
    python benchmarks/light.py --small                     # made-up rows: does it run?

One thread. The network and the ensemble of five are those of the transfer study (SARCOS, random split,
seed 0), 21-5x200-7, trained here. `fit` is the default with validation rows. Times are thread times of calls,
`model.predict(rows)` beside five forward passes, interleaved, the median; onnxruntime beside five networks in
onnxruntime. NLL is per torque on the test rows, about the network's output and corrected; AUROC tells test
rows from the same with inputs times two, and with half a standard deviation of noise on each input; "other
arm" is Barrett. The same at a budget of 8 MiB. Then a small MLP, a classifying CNN, a ResNet-18 and a
DETR beside their own forward passes, and 20,000 calls of one row: percentiles, and memory at the end over the
start's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import trustgp
from trustgp.metrics import auroc, gaussian_nll
from trustgp_experiments.core.recipes import mlp_recipe
from trustgp_experiments.peers import Ensemble, cnn, mlp
from trustgp_experiments.studies.transfer.study import FULL, make_case

MUST = {
    "MiB": 48, "row over ensemble": 2, "256 rows over ensemble": 4, "onnx row over ensemble": 2.5,
    "file MiB": 48, "own": -2.21, "corrected": -2.77, "auroc x 2": 0.95, "auroc noise": 0.998,
    "other arm": 6, "aten calls": 150, "mlp row over network": 30, "cnn 1000 rows over network": 6,
    "resnet18 row over network": 4, "detr picture over network": 1.5, "p99 over p50": 3,
}  # fmt: skip
CALLS = {1: 300, 256: 30}


def interleaved(work: Mapping[str, Callable[[], Any]], calls: int) -> dict[str, float]:
    """Median thread time of each, in ms; they take turns."""
    spent: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(calls + 3):
        for name, one in work.items():
            start = time.thread_time()
            one()
            if turn >= 3:
                spent[name].append(1e3 * (time.thread_time() - start))
    return {name: statistics.median(values) for name, values in spent.items()}


def aten_calls(work: Callable[[], Any]) -> int:
    """Operations of torch that are called."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Counting.count += 1
            return func(*args, **(kwargs or {}))

    work()
    with Counting():
        work()
    return Counting.count


def costs(model: Any, networks: Sequence[nn.Module], rows: Tensor) -> dict[str, float]:
    """Of predictions, beside the ensemble's."""
    found: dict[str, float] = {"MiB": model.nbytes / 2**20, "experts": model.num_experts}
    with torch.no_grad():
        for n, calls in CALLS.items():
            some = rows[:n]
            work = {
                "ours": lambda some=some: model.predict(some),
                "ensemble": lambda some=some: [network(some) for network in networks],
            }
            spent = interleaved(work, calls)
            name = "row" if n == 1 else f"{n} rows"
            found |= {f"{name} ms": spent["ours"], f"{name} ensemble ms": spent["ensemble"]}
            found[f"{name} over ensemble"] = spent["ours"] / spent["ensemble"]
        found["aten calls"] = aten_calls(lambda: model.predict(rows[:1]))
    return found


def exported(model: Any, networks: Sequence[nn.Module], rows: Tensor) -> dict[str, float]:
    """The exported file, and one row in onnxruntime beside five networks in onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        trustgp.export_onnx(model, path, rows[:1])
        size = path.stat().st_size / 2**20
        session = onnxruntime.InferenceSession(path, options)
        plain = []
        for k, network in enumerate(networks):
            file = Path(folder) / f"{k}.onnx"
            torch.onnx.export(network, (rows[:1],), file, dynamo=False, opset_version=17)
            plain.append(onnxruntime.InferenceSession(file, options))
        feeds = [{one.get_inputs()[0].name: rows[:1].numpy()} for one in (session, *plain)]
        work = {
            "ours": lambda: session.run(None, feeds[0]),
            "ensemble": lambda: [one.run(None, feed) for one, feed in zip(plain, feeds[1:], strict=True)],
        }
        spent = interleaved(work, CALLS[1])
    over = spent["ours"] / spent["ensemble"]
    return {"file MiB": size, "onnx row ms": spent["ours"], "onnx row over ensemble": over}


def worth(model: Any, tests: Mapping[str, Any], spread: Tensor) -> dict[str, float]:
    """Likelihoods and novelty on test rows, which nothing was chosen on."""
    inputs, targets = tests["in domain"]
    noise = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(0))
    said = model.predict(inputs)
    strange = {"auroc x 2": 2 * inputs, "auroc noise": inputs + 0.5 * spread * noise}
    found = {name: float(auroc(said.score, model.predict(rows).score)) for name, rows in strange.items()}
    other = tests["barrett"]
    far = model.predict(other[0])

    def nll(one: Any, wanted: Tensor) -> float:
        return float(gaussian_nll(one.mean.double(), one.variance.double(), wanted.double()).mean())

    found |= {"own": nll(said, targets), "corrected": nll(said.corrected, targets)}
    return found | {"other arm": nll(far, other[1])}


def sarcos(options: argparse.Namespace) -> dict[str, Any]:
    """The default, a budget of 8 MiB, and exact experts where asked for."""
    if options.small:
        x = torch.randn(400, 21)
        y = torch.stack([x[:, :3].sin().sum(1), x[:, 3]], dim=1)
        tests = {"in domain": (x[300:], y[300:]), "barrett": (3 * x[300:], y[300:])}
        train, validation = (x[:240], y[:240]), (x[240:300], y[240:300])
        recipe = mlp_recipe([21, 32, 32, 2], epochs=3, together=True)
    else:
        case = make_case("sarcos", "random", seed=0, quick=False)
        train, validation, tests, recipe = case.train, case.validation, case.tests, FULL
    bundle = recipe.bundle(train, validation, seed=0, device="cpu")
    networks, spread = bundle.ensemble, train[0].std(dim=0)
    torch.set_num_threads(1)
    found: dict[str, Any] = {"ensemble own": _ensemble(networks, validation, tests["in domain"])}
    budgets = {"default": None, "8 MiB": "8 MiB"} | ({"exact": "none"} if options.exact else {})
    for name, budget in budgets.items():
        start = time.thread_time()
        model = trustgp.fit(networks[0], train, validation=validation, budget=budget, progress=False)
        figures: dict[str, Any] = {"fit s": time.thread_time() - start}
        figures |= costs(model, networks, tests["in domain"][0]) | worth(model, tests, spread)
        if name == "default":
            figures |= exported(model, networks, tests["in domain"][0])
            figures |= endurance(model, tests["in domain"][0], 100 if options.small else 20_000)
        found[name] = figures
        say(name, figures)
    return found


def _ensemble(networks: Sequence[nn.Module], validation: Any, test: Any) -> float:
    said = Ensemble.fit(list(networks), validation).predict(test[0])
    return float(gaussian_nll(said.mean.double(), said.variance.double(), test[1].double()).mean())


def endurance(model: Any, rows: Tensor, calls: int) -> dict[str, float]:
    """Percentiles of many calls of one row, and memory at the end over that after the first tenth."""
    spent, before = [], 0
    for k in range(calls):
        row = rows[k % len(rows)][None]
        start = time.thread_time()
        model.predict(row)
        spent.append(time.thread_time() - start)
        before = _resident() if k == calls // 10 else before
    ordered = sorted(spent)
    return {"p99 over p50": ordered[int(0.99 * calls)] / ordered[calls // 2], "memory": _resident() / before}


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def others(options: argparse.Namespace) -> dict[str, float]:
    """Other networks, untrained, beside their own forward passes."""
    from resnet import example

    torch.manual_seed(0)
    x, images = torch.randn(600, 5), torch.randn(600 if options.small else 2_000, 1, 28, 28)
    tiny, large = mlp([5, 32, 1], seed=0).eval(), 300 if options.small else 1_000
    picture = cnn(seed=0).eval()
    residual = example().ResNet18(10, width=4 if options.small else 64).eval()
    colours = torch.randn(120, 3, 32, 32)
    labels = torch.randint(0, 10, (len(images),))
    classes = {"likelihood": trustgp.Classification(), "progress": False}
    models = {
        "mlp row": (trustgp.fit(tiny, (x, x[:, :1]), progress=False), tiny, x[:1]),
        "cnn 1000 rows": (trustgp.fit(picture, (images, labels), **classes), picture, images[:large]),
        "resnet18 row": (trustgp.fit(residual, (colours, labels[:120]), **classes), residual, colours[:1]),
    }
    found = {}
    with torch.no_grad():
        for name, (model, network, rows) in models.items():
            work = {"ours": lambda m=model, r=rows: m.predict(r), "network": lambda n=network, r=rows: n(r)}
            spent = interleaved(work, 100 if len(rows) == 1 else 5)
            found[f"{name} over network"] = spent["ours"] / spent["network"]
    found |= detr(options)
    say("other networks", found)
    return found


def detr(options: argparse.Namespace) -> dict[str, float]:
    """A DETR with a ResNet-50 behind it, untrained: one picture with up to 20 detections."""
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"out_features": ["stage4"]}
    wide: dict[str, Any] = {"num_labels": 6}
    if options.small:
        sizes |= {"embedding_size": 8, "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]}
        wide |= {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "decoder_layers": 1}
    backbone = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
    network = DetrForObjectDetection(
        DetrConfig(backbone_config=ResNetConfig(**sizes), **backbone, **wide)
    ).eval()
    pictures = torch.randn(40, 3, 144, 192)
    boxes = torch.tensor([[20.0, 20.0, 90.0, 80.0], [60.0, 40.0, 150.0, 120.0]])
    things = [{"boxes": boxes, "labels": torch.randint(0, 6, (2,))} for _ in pictures]
    likelihood = trustgp.Detection(threshold=0.01, overlap=0.01, most=20)
    held = (pictures[20:], things[20:])
    model = trustgp.fit(
        network, (pictures[:20], things[:20]), validation=held, likelihood=likelihood, progress=False
    )
    one = pictures[:1]
    with torch.no_grad():
        spent = interleaved({"ours": lambda: model.predict(one), "network": lambda: network(one)}, 20)
    return {"detr picture over network": spent["ours"] / spent["network"]}


def say(title: str, figures: Mapping[str, Any]) -> None:
    """A line for each."""
    for name, value in figures.items():
        must = (
            f" (must hold: {MUST[name]})" if name in MUST and title in ("default", "other networks") else ""
        )
        print(f"{title}: {name} {value:.4g}{must}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="few made-up rows: to see that it runs")
    parser.add_argument("--exact", action="store_true", help="exact experts, too")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    options = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sarcos(options)
        torch.set_num_threads(1)
        found["other networks"] = others(options)
    text = json.dumps({"torch": torch.__version__, "figures": found})
    if options.out is not None:
        options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
