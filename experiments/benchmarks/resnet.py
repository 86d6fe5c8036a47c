"""How much time and memory does an error bar for a ResNet-18-shaped network take? The last line is JSON.

    python benchmarks/resnet.py [--device cuda] [--images 10000] [--outputs shared] [--classes 10]

The network has 11 million parameters and images of 3 x 32 x 32; its weights are random, since they do not
matter for time or memory. The memory is what the fit takes at its peak beside network and images: the
process's resident memory (Linux), and on a GPU also what torch has allocated there. The promise is at most
2 GB where the work is done. What the fit says, and how far it is, goes to the standard error stream.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import time
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

import trustgp
from trustgp_experiments.core.stage_timer import Peak

PROMISE = 2 * 10**9  # bytes
PREDICTED = 64  # images


def example() -> ModuleType:
    """examples/resnet18_like.py, which holds the network."""
    path = Path(__file__).parents[2] / "examples" / "resnet18_like.py"
    spec = importlib.util.spec_from_file_location("resnet18_like", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def seconds_of(
    model: trustgp.UncertaintyModel, network: nn.Module, images: torch.Tensor
) -> tuple[float, float]:
    """Seconds an image takes: with its error bar, and through the network alone."""
    cuda = images.is_cuda

    def timed(function) -> float:
        function(images)
        start = time.perf_counter()
        function(images)
        if cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / len(images)

    with torch.no_grad():
        return timed(model.predict), timed(network)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--outputs", default="shared", choices=["shared", "separate", "pseudo"])
    parser.add_argument("--dim", type=int, default=4096, help="of the sketch")
    options = parser.parse_args()
    device = torch.device(options.device)
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("trustgp").setLevel(logging.DEBUG)
    torch.manual_seed(0)
    network = example().ResNet18(options.classes, width=options.width).eval().to(device)
    inputs = torch.randn(options.images, 3, 32, 32)
    targets = torch.randn(options.images, options.classes)
    sketch = trustgp.Sketch(options.dim)
    # libraries load, workspaces are taken
    few = (inputs[:16], targets[:16])
    trustgp.fit(network, few, tangents=sketch, outputs=options.outputs, progress=False)
    peak, start = Peak(device), time.perf_counter()
    model = trustgp.fit(network, (inputs, targets), tangents=sketch, outputs=options.outputs)
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds, peak_bytes = time.perf_counter() - start, peak.bytes()
    with_bar, alone = seconds_of(model, network, inputs[:PREDICTED].to(device))
    result = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": trustgp.Threads().workers if device.type == "cpu" else 1,
        "torch": torch.__version__,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "images": options.images,
        "outputs": f"{options.classes} {options.outputs}",
        "experts": model.num_experts,
        "fit_seconds": round(seconds, 2),
        "peak_mib": {place: round(size / 2**20, 1) for place, size in peak_bytes.items()},
        "model_mib": round(model.nbytes / 2**20, 1),
        "within_2_gb": peak_bytes[device.type] <= PROMISE,
        "predict_seconds_per_image": with_bar,
        "network_seconds_per_image": alone,
        "predict_in_forward_passes": round(with_bar / alone, 1),
    }
    for name, value in result.items():
        print(f"{name}: {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
