"""Run as a script: scores of pytorch-ood's detectors, from a file of features and logits into another.

In a process of its own, since pytorch-ood asks for torchvision when it is imported, of which its detectors
need nothing: here something stands in for it.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import torch

NEIGHBOURS = 50


class StandIn(MetaPathFinder, Loader):
    """Modules of torchvision whose every name can be imported, as a class."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return (
            ModuleSpec(fullname, self, is_package=True) if fullname.split(".")[0] == "torchvision" else None
        )

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = lambda name: MagicMock if name[:1] != "_" else None  # type: ignore[method-assign]


def scores(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """By the names of our own: the larger, the more novel."""
    from pytorch_ood import detector

    train, labels, new = given["features"], given["labels"], given["new_features"]
    logits = given["new_logits"]
    by_features = {
        "Mahalanobis": detector.Mahalanobis(None),
        "relative Mahalanobis": detector.RMD(None),
        "kNN, cosine": detector.KNN(None, k=NEIGHBOURS),
        "kNN, Euclidean": detector.KNN(None, k=NEIGHBOURS, normalize=False),
        "DDU density": detector.GMM(None),
        "ViM": detector.ViM(None, train.shape[1] // 2, given["weight"], given["bias"]),
    }
    by_logits = {
        "energy": detector.EnergyBased(None),
        "largest logit": detector.MaxLogit(None),
        "largest probability": detector.MaxSoftmax(None),
    }
    found = {name: one.fit_features(train, labels).predict_features(new) for name, one in by_features.items()}
    return found | {name: one.predict_logits(logits) for name, one in by_logits.items()}


if __name__ == "__main__":
    sys.meta_path.insert(0, StandIn())
    source, target = map(Path, sys.argv[1:])
    torch.save(scores(torch.load(source)), target)
