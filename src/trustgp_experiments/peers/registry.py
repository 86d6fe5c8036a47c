"""Every method of the studies by its name (a further one is a line below), and what they are given."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from trustgp.data.trees import Inputs
from trustgp.likelihoods import Classification

from ..training.train import now
from . import members
from .laplace_posterior import KronPosterior
from .laplace_predictive import LaplaceClassifier, LaplaceGLM, LaplaceSampled
from .trusted import InputGP, LandmarkGP, SubsetGP, TrustGP

Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Bundle:
    """What the methods may use. Networks lie on `device`; rows, (inputs, targets), may lie anywhere.

    Options are of the fit of "trustgp", for example {"num_experts": 16}; the paper's form gets them too.
    """

    network: nn.Module  # trained, in eval mode: the one network of every training-free method
    members: Sequence[nn.Module]  # trained alike from other starts; with `network` they are the ensemble
    dropout_network: nn.Module | None  # trained with dropout; None: methods that need one cannot be fitted
    train: Rows
    validation: Rows
    seed: int = 0  # of everything random in a fit
    device: str = "cpu"  # where to fit
    options: dict[str, Any] = field(default_factory=dict)
    _made: dict[str, tuple[Any, float]] = field(default_factory=dict, repr=False)
    _lent: list[float] = field(default_factory=list, repr=False)

    @property
    def ensemble(self) -> list[nn.Module]:
        """The network and its siblings."""
        return [self.network, *self.members]

    @property
    def dropping(self) -> nn.Module:
        """The dropout network, for those who need it."""
        if self.dropout_network is None:
            raise ValueError("this method needs a network that was trained with dropout: dropout_network=...")
        return self.dropout_network

    @property
    def rows(self) -> tuple[Any, Any, Any]:
        """What most fits begin with."""
        return self.network, self.train, self.validation

    @property
    def place(self) -> dict[str, Any]:
        """Options of most fits."""
        return {"seed": self.seed, "device": self.device}

    def once(self, name: str, work: Callable[[], Any]) -> Any:
        """What the shared `work()` gives, done for the first method that asks; each pays in its fit time."""
        if name in self._made:
            self._lent.append(self._made[name][1])
        else:
            start = now(self.device)
            self._made[name] = work(), now(self.device) - start
        return self._made[name][0]

    def timed(self, work: Callable[[], Any]) -> tuple[Any, float]:
        """What `work()` gives, and its seconds: those it took, and those of shared work done before."""
        self._lent.clear()
        start = now(self.device)
        return work(), now(self.device) - start + sum(self._lent)


@dataclass(frozen=True)
class Method:
    """A way to get an error bar."""

    name: str  # as the studies print it
    fit: Callable[[Bundle], Any]  # what it makes of a bundle has a `predict`
    training_free: bool = True  # whether one trained network is all it needs


@dataclass(frozen=True)
class Fitted:
    """A fitted method."""

    name: str  # this and what follows: see `Method`
    training_free: bool
    seconds: float  # of its fit, shared work included, training networks not
    predict: Callable[[Inputs], Any]  # gives a `Prediction`, or what reads like one of classes


def fit_methods(
    bundle: Bundle, names: Iterable[str] | None = None, *, methods: Sequence[Method] | None = None
) -> Iterator[Fitted]:
    """Fit one method after another: those named, or all in their order, of `methods` or of `METHODS`."""
    known = {method.name: method for method in (METHODS if methods is None else methods)}
    chosen = list(known) if names is None else list(names)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ValueError(f"methods {unknown} are unknown; choose from {list(known)}.")
    for name in chosen:
        method = known[name]
        predictor, seconds = bundle.timed(lambda method=method: method.fit(bundle))
        yield Fitted(name, method.training_free, seconds, predictor.predict)


def _posterior(bundle: Bundle) -> KronPosterior:
    """Of all weights, for whoever asks first."""
    return bundle.once("posterior", lambda: KronPosterior.fit(*bundle.rows))


def _trustgp(bundle: Bundle, **options: Any) -> TrustGP:
    """As it comes, or with other options."""
    return TrustGP.fit(*bundle.rows, **{**bundle.place, **bundle.options, **options})


def _shared_trustgp(bundle: Bundle) -> TrustGP:
    return bundle.once("trustgp", lambda: _trustgp(bundle))


_trained = partial(Method, training_free=False)  # it needs networks of its own
METHODS = (
    Method("network + noise", lambda b: members.ConstantNoise.fit(b.network, b.validation)),
    _trained("ensemble of 5", lambda b: members.Ensemble.fit(b.ensemble, b.validation)),
    _trained(
        "MC-dropout 20", lambda b: members.MCDropout.fit(b.dropping, b.validation, samples=20, seed=b.seed)
    ),
    _trained("rMC-dropout", lambda b: members.PropagatedDropout.fit(b.dropping, b.validation)),
    Method("Laplace sampled", lambda b: LaplaceSampled.fit(_posterior(b), b.validation, seed=b.seed)),
    Method("Laplace GLM", lambda b: LaplaceGLM.fit(_posterior(b), b.validation)),
    Method(
        "Laplace last layer",
        lambda b: LaplaceGLM.fit(KronPosterior.fit(*b.rows, last_layer=True), b.validation),
    ),
    Method("NTK GP, subset", lambda b: SubsetGP.fit(*b.rows, **b.place)),
    Method("sparse NTK GP", lambda b: LandmarkGP.fit(*b.rows, **b.place)),
    _trained("GP on inputs, no network", lambda b: InputGP.fit(b.train, b.validation, **b.place)),
    Method("trustgp paper form", lambda b: TrustGP.fit_paper(b.network, b.train, **b.place, **b.options)),
    Method("trustgp, no witness", lambda b: _trustgp(b, witness=None)),
    Method("trustgp", _shared_trustgp),
    Method("trustgp corrected", lambda b: _shared_trustgp(b).corrected),
)
"""Regression, in the order of the studies' tables."""

CLASS_METHODS = (
    Method("softmax", lambda b: members.SoftmaxClassifier.fit(b.network)),
    Method("temperature scaling", lambda b: members.SoftmaxClassifier.fit(b.network, b.validation)),
    _trained("MC-dropout 20", lambda b: members.DropoutClassifier.fit(b.dropping, samples=20, seed=b.seed)),
    _trained("ensemble of 5", lambda b: members.EnsembleClassifier.fit(b.ensemble)),
    Method("Laplace last layer", lambda b: LaplaceClassifier.fit(*b.rows, last_layer=True)),
    Method("Laplace KFAC", lambda b: LaplaceClassifier.fit(*b.rows)),
    Method("trustgp", lambda b: _trustgp(b, likelihood=Classification())),
)
"""Classes, in the order of the study's tables."""
