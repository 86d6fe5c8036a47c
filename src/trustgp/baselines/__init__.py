"""The peers, behind the same `predict`, and the training they share with the studies."""

from .constant_noise import ConstantNoise
from .ensemble import Ensemble
from .training import mlp, train, train_many

__all__ = [
    # error bars
    "ConstantNoise",
    "Ensemble",
    # networks
    "mlp",
    "train",
    "train_many",
]
