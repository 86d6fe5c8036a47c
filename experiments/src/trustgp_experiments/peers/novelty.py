"""Published novelty scores of a trained classifier, from its logits or its penultimate features.

Each score is one number per row, larger for more novel rows. It may use the network, its training rows and
validation rows, never a novel row, so nothing is chosen by how well novel rows are detected: k and ranks are
those of the papers, and the ridge of a covariance is chosen by the likelihood of the validation rows.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from typing_extensions import Self

from trustgp.data.trees import Inputs

from ..training.train import run_network, valid_rows
from .bundle import last_linear
from .tuning import read_labels

RIDGES = tuple(10.0 ** (step / 2) for step in range(-12, 1))  # on a covariance's diagonal, over its mean
NEIGHBOURS = 50  # k of Sun et al. 2022, for the 50,000 images of CIFAR-10
TOGETHER = 2**26  # distances computed at a time


@dataclass(frozen=True)
class Seen:
    """Inputs and outputs of the last layer of a network."""

    features: Tensor  # h  [n, d]
    logits: Tensor  # z = W h + b  [n, C]

    @classmethod
    def by(cls, network: nn.Module, inputs: Inputs) -> Self:
        """Run the network chunk by chunk, on its device; the network is left unchanged."""
        features: list[Tensor] = []
        with last_layer(network).register_forward_pre_hook(lambda _, given: features.append(given[0])):
            logits = run_network(network, inputs)
        return cls(torch.cat(features), logits)


@dataclass(frozen=True)
class Known:
    """All data that a score may be fitted to."""

    train: Seen
    labels: Tensor  # of the training rows  [n]
    held: Seen  # of the validation rows
    held_labels: Tensor  # [m]
    head: nn.Linear

    @classmethod
    def by(cls, network: nn.Module, train: Any, validation: Any) -> Self:
        rows, labels = read_labels(train, name="train")
        held, held_labels = read_labels(validation, name="validation")
        seen, other = Seen.by(network, rows.inputs), Seen.by(network, held.inputs)
        place = seen.logits.device
        return cls(seen, labels.to(place), other, held_labels.to(place), last_layer(network))

    @property
    def fitted(self) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Arguments of `Gaussians.fit`: training features and labels, and those of validation rows."""
        return self.train.features, self.labels, (self.held.features, self.held_labels)


Formula = Callable[[Seen], Tensor]  # from rows to one number each, larger for more novel rows


@dataclass(frozen=True)
class NoveltyPeer:
    """A network and a formula that an entry of `NOVELTY` made from `Known`."""

    network: nn.Module
    formula: Formula

    def score(self, inputs: Inputs) -> Tensor:
        """Score of each row, shape [n], float64; infinite where inputs or logits are not finite."""
        seen = Seen.by(self.network, inputs)
        whole = Seen(torch.nan_to_num(seen.features), torch.nan_to_num(seen.logits))
        return torch.where(valid_rows(inputs, seen.logits), self.formula(whole).double(), torch.inf)


def last_layer(network: nn.Module) -> nn.Linear:
    """Last Linear layer in the order of a network's modules; its inputs are the features."""
    layer: Any = network.get_submodule(last_linear(network))
    return layer


def energy(seen: Seen) -> Tensor:
    r""":math:`-\log \sum_c \exp z_c` (Liu et al. 2020, temperature 1), shape [n]."""
    return -seen.logits.double().logsumexp(dim=1)


@dataclass(frozen=True)
class Gaussians:
    r"""One Gaussian per class, :math:`N(\mu_c, \Sigma_c + r \bar\sigma_c^2 I)`, or all with one covariance.

    The ridge r, relative to the mean :math:`\bar\sigma_c^2` of a covariance's diagonal, maximises the
    likelihood of the validation rows under the Gaussians of their classes. All tensors are float64.
    """

    means: Tensor  # [C, d]
    inverse: Tensor  # of the covariances  [C, d, d], or [1, d, d] where they are shared
    log_det: Tensor  # of the covariances  [C] or [1]
    shares: Tensor  # of the classes among the rows  [C]
    ridge: float  # r

    @classmethod
    def fit(
        cls, features: Tensor, labels: Tensor, held: tuple[Tensor, Tensor], *, shared: bool = False
    ) -> Self:
        """Fit to features [n, d] and labels [n]; `held` holds those of validation rows.

        A class without training rows has no Gaussian, and its validation rows are ignored.
        """
        features, kinds = features.double(), labels.unique()
        own = [features[labels == kind] for kind in kinds]
        means = torch.stack([rows.mean(dim=0) for rows in own])
        centred = [rows - mean for rows, mean in zip(own, means, strict=True)]
        groups = [torch.cat(centred)] if shared else centred
        spreads = torch.stack([rows.T @ rows / len(rows) for rows in groups])
        values, vectors = torch.linalg.eigh(spreads)  # [G, d], [G, d, d]
        values, size = values.clamp_min(0.0), spreads.diagonal(dim1=1, dim2=2).mean(dim=1) + 1e-12

        def grown(ridge: float) -> Tensor:
            return values + ridge * size[:, None]

        def loss(ridge: float) -> float:
            total = 0.0
            for place, kind in enumerate(kinds):
                group, rows = 0 if shared else place, held[0][held[1] == kind].double() - means[place]
                inside = (rows @ vectors[group]).square()
                total += float((inside / grown(ridge)[group] + grown(ridge)[group].log()).sum())
            return total

        best = min(RIDGES, key=loss)
        inverse = (vectors / grown(best)[:, None]) @ vectors.mT
        shares = torch.tensor([len(rows) for rows in own]).to(means) / len(features)
        return cls(means, inverse, grown(best).log().sum(dim=1), shares, best)

    def distances(self, features: Tensor) -> Tensor:
        r""":math:`(h - \mu_c)^\top \Sigma_c^{-1} (h - \mu_c)`, shape [n, C]."""
        inverses = self.inverse.expand(len(self.means), -1, -1)
        aways = (features.double() - mean for mean in self.means)
        return torch.stack([((a @ s) * a).sum(1) for a, s in zip(aways, inverses, strict=True)], dim=1)

    def log_density(self, features: Tensor) -> Tensor:
        r""":math:`\log \sum_c \pi_c N(h; \mu_c, \Sigma_c)`, shape [n]."""
        constant = features.shape[1] * math.log(2 * math.pi)
        each = self.shares.log() - 0.5 * (self.distances(features) + self.log_det + constant)
        return each.logsumexp(dim=1)


def mahalanobis(known: Known) -> Formula:
    r""":math:`\min_c (h - \mu_c)^\top \Sigma^{-1} (h - \mu_c)`, one covariance for all (Lee et al. 2018).

    Only penultimate features are used: the weights of several layers would need novel rows.
    """
    classes = Gaussians.fit(*known.fitted, shared=True)
    return lambda seen: classes.distances(seen.features).amin(dim=1)


def relative_mahalanobis(known: Known) -> Formula:
    """Mahalanobis distance to the nearest class minus that to one Gaussian of all rows (Ren et al. 2021),
    each with its own ridge."""
    one, held_out = torch.zeros_like(known.labels), torch.zeros_like(known.held_labels)
    whole = Gaussians.fit(known.train.features, one, (known.held.features, held_out))
    nearest = mahalanobis(known)
    return lambda seen: nearest(seen) - whole.distances(seen.features)[:, 0]


def class_density(known: Known) -> Formula:
    """Negative log density under one Gaussian per class: DDU's density (Mukhoti et al. 2023), for the network
    as it is, trained without spectral normalisation."""
    classes = Gaussians.fit(*known.fitted)
    return lambda seen: -classes.log_density(seen.features)


def nearest_neighbours(rows: Tensor, *, k: int = NEIGHBOURS, cosine: bool = True) -> Formula:
    """Distance to the k-th nearest of training rows [n, d]: 1 - cosine of the angle, which ranks rows as
    Sun et al. (2022) do, or Euclidean; k is the paper's, or the number of rows if that is less."""
    rows = normalize(rows, dim=1) if cosine else rows
    k, step = min(k, len(rows)), max(1, TOGETHER // len(rows))

    def distance(features: Tensor) -> Tensor:
        if cosine:
            return 1.0 - (normalize(features, dim=1) @ rows.T).topk(k, dim=1).values[:, -1]
        return torch.cdist(features, rows).topk(k, largest=False, dim=1).values[:, -1]

    return lambda seen: torch.cat([distance(part) for part in seen.features.split(step)])


def virtual_logit(known: Known) -> Formula:
    r"""ViM (Wang et al. 2022): :math:`\alpha \|R^\top (h - o)\| - \log \sum_c \exp z_c`, :math:`o = -W^+ b`.

    R spans all but the D largest principal directions of the training rows about o, and :math:`\alpha` makes
    the mean virtual logit of the training rows equal to that of their largest logits; float64.
    """
    weight, bias = known.head.weight.detach().double(), known.head.bias
    bias = weight.new_zeros(len(weight)) if bias is None else bias.detach().double()
    origin = -(torch.linalg.pinv(weight) @ bias)
    away = known.train.features.double() - origin
    _, vectors = torch.linalg.eigh(away.T @ away / len(away))  # the smallest first
    rest = vectors[:, : away.shape[1] - kept_directions(away.shape[1])]  # R  [d, d - D]
    alpha = known.train.logits.double().amax(dim=1).mean() / (away @ rest).norm(dim=1).mean()
    return lambda seen: alpha * ((seen.features.double() - origin) @ rest).norm(dim=1) + energy(seen)


def kept_directions(d: int) -> int:
    """D of the paper's code: 1000 from d = 2048, 512 from d = 768, else d / 2."""
    return 1000 if d >= 2048 else 512 if d >= 768 else d // 2


NOVELTY: Mapping[str, Callable[[Known], Formula]] = {
    # Hendrycks and Gimpel 2017: -log max p, since 1 - p rounds to 0; Hendrycks et al. 2022: -max z
    "largest probability": lambda _: lambda seen: -seen.logits.double().log_softmax(dim=1).amax(dim=1),
    "largest logit": lambda _: lambda seen: -seen.logits.double().amax(dim=1),
    "energy": lambda _: energy,
    "Mahalanobis": mahalanobis,
    "relative Mahalanobis": relative_mahalanobis,
    "kNN, cosine": lambda known: nearest_neighbours(known.train.features),
    "kNN, Euclidean": lambda known: nearest_neighbours(known.train.features, cosine=False),
    "DDU density": class_density,
    "ViM": virtual_logit,
}
"""Functions that learn a score, by its name, in the order of the study's tables."""
