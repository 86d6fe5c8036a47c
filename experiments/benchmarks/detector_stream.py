"""How much memory and time does a detector's fit take, picture by picture?

R50-DETR with random weights and pictures that are made as they are asked for, 800 x 1,066 pixels: what is in
them is what the detector detects, so that there are rows. Prints the peak after each quarter, which must
not grow, and as JSON on the last line also what 100,000 pictures would take.
"""

import argparse
import json
import resource
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from trustgp.detection import BoxTargets, fit, picture_pass

LABELS, QUERIES = 91, 100
MANY = 100_000
GIB = 2**30


def r50_detr(*, small: bool) -> Any:
    """With random weights."""
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    tiny = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "out_features": ["stage2"]}
    backbone = ResNetConfig(**tiny) if small else ResNetConfig(out_features=["stage4"])
    layers = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 32} if small else {}
    torch.manual_seed(0)
    config = DetrConfig(backbone_config=backbone, num_labels=LABELS, num_queries=QUERIES, **layers)
    network = DetrForObjectDetection(config).eval()
    nn.init.normal_(network.class_labels_classifier.weight, std=0.5)  # else all queries have one class
    return network


class Generated(Dataset):
    """Pictures of noise, coarse and fine, labelled with the detector's own outputs."""

    def __init__(self, network: Any, count: int, size: tuple[int, int], device: str) -> None:
        self.network, self.count, self.size, self.device = network, count, size, device

    def __len__(self) -> int:
        return self.count

    @torch.no_grad()
    def __getitem__(self, i: int) -> tuple[Tensor, BoxTargets]:
        generator = torch.Generator().manual_seed(i)
        coarse = torch.randn(1, 3, 8, 8, generator=generator)
        image = nn.functional.interpolate(coarse, size=self.size, mode="bilinear")[0]
        image += 0.1 * torch.randn(3, *self.size, generator=generator)
        result = self.network(image[None].to(self.device))
        chances = result.logits[0].softmax(dim=1)[:, :-1].cpu()
        surest = chances.amax(dim=1).topk(7).indices
        height, width = self.size
        boxes = result.pred_boxes[0].cpu()[surest] * torch.tensor([width, height, width, height])
        corners = torch.cat([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], dim=1)
        most = torch.tensor([width, height, width, height], dtype=torch.float32)
        return image, BoxTargets(torch.minimum(corners.clamp_min(0), most), chances[surest].argmax(dim=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--small", action="store_true", help="a small detector and pictures of 128 pixels")
    parser.add_argument("--side", type=int, help="of the pictures, in pixels; else 800 x 1,066")
    options = parser.parse_args()
    network = r50_detr(small=options.small).to(options.device)
    side = 128 if options.small else options.side
    size = (800, 1066) if side is None else (side, side)
    train, peaks = Generated(network, options.pictures, size, options.device), []
    taken = picture_pass.PicturePass.include

    def take(self: picture_pass.PicturePass, lot: Any) -> None:
        taken(self, lot)
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB)

    picture_pass.PicturePass.include = take
    began = time.perf_counter()
    fit(network, train, threshold=0.01, overlap=0.3, device=options.device, progress=False)
    seconds = time.perf_counter() - began
    quarters = [round(peaks[(k + 1) * len(peaks) // 4 - 1], 2) for k in range(4)]
    found = {
        "pictures": options.pictures,
        "size": list(size),
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "peak_gib_after_quarters": quarters,
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB, 2),
        "held_all_gib": round(options.pictures * 3 * size[0] * size[1] * 4 / GIB, 2),
        "ms_per_picture": round(1000 * seconds / options.pictures, 1),
        "hours_for_100000": round(MANY * seconds / options.pictures / 3600, 2),
        # held-out rows grow with the pictures: features, logits and the picture's own, in float32
        "held_rows_gib_for_100000": round(MANY / 10 * (7 * (256 + LABELS + 10) + 256) * 4 / GIB, 2),
    }
    if options.device == "cuda":
        found["gpu_peak_gib"] = round(torch.cuda.max_memory_allocated() / GIB, 2)
    print("peak of the process, GiB, after each quarter of the pictures:", *quarters)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
