"""Every method of the studies by name (a new one is one line below), each fitted with its costs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from trustgp.data.trees import Inputs
from trustgp.likelihoods import Classification

from .bundle import Bundle
from .classifiers import DropoutClassifier, EnsembleClassifier, SoftmaxClassifier
from .conformal import QuantileConformal, SplitConformal
from .deup import Deup
from .fmgp import FixedMeanGP
from .heteroscedastic import heteroscedastic
from .input_gps import InputGP
from .know_nothing import GatedKnowNothing, KnowNothing
from .laplace_posterior import KronPosterior
from .laplace_predictive import LaplaceClassifier, LaplaceGLM, LaplaceSampled
from .members import ConstantNoise, Ensemble, MCDropout, PropagatedDropout
from .sampled import Swag, SwagClassifier
from .sfr import Sfr
from .size import shipped_bytes
from .sngp import Sngp
from .trusted import SubsetGP, TrustGP, WitnessAlone
from .tuning import NoisyPeer
from .vbll import Vbll

PAPER_IMAGES = 3000  # training images of the paper form for classes


@dataclass(frozen=True)
class Method:
    """A way to get an error bar."""

    name: str  # as the studies print it
    fit: Callable[[Bundle], Any]  # returns an object with a `predict`
    training_free: bool = True  # whether one trained network is all it needs
    trained: str = ""  # networks of the bundle that were trained for it: "ensemble" or "dropout"


@dataclass(frozen=True)
class Fitted:
    """A fitted method."""

    name: str  # this and `training_free`: see `Method`
    training_free: bool
    seconds: float  # of its fit, with shared work, without training of networks
    predict: Callable[[Inputs], Any]  # returns a `Prediction`, or a similar object
    training_seconds: float | None = 0.0  # of networks beyond the given one; None: not known
    mebibytes: float = 0.0  # of what must be shipped to predict, networks included


def fit_methods(
    bundle: Bundle, names: Iterable[str] | None = None, *, methods: Sequence[Method] | None = None
) -> Iterator[Fitted]:
    """Fit one method after another: those in `names`, or all in order, from `methods` or `METHODS`.

    Without `methods`, `names` may include those of `INTERVAL_METHODS`.
    """
    default = METHODS if methods is None else methods
    every = {method.name: method for method in (*default, *(INTERVAL_METHODS if methods is None else ()))}
    chosen = [method.name for method in default] if names is None else list(names)
    if unknown := [name for name in chosen if name not in every]:
        raise ValueError(f"methods {unknown} are unknown; choose from {list(every)}.")
    for method in (every[name] for name in chosen):
        predictor, seconds, training = bundle.timed(lambda method=method: method.fit(bundle))
        given = bundle.seconds.get(method.trained) if method.trained else 0.0
        training_seconds, size = None if given is None else given + training, shipped_bytes(predictor) / 2**20
        yield Fitted(method.name, method.training_free, seconds, predictor.predict, training_seconds, size)


def _posterior(bundle: Bundle, **options: Any) -> KronPosterior:
    return bundle.once(f"posterior {options}", lambda: KronPosterior.fit(*bundle.rows, **options))


def _evidence(bundle: Bundle, kind: Any, **options: Any) -> Any:
    """Laplace method with the prior of the largest evidence and a fitted output noise."""
    return kind.fit(_posterior(bundle), bundle.validation, tune=False, **options)


def _trustgp(bundle: Bundle, **options: Any) -> TrustGP:
    return TrustGP.fit(*bundle.rows, **bundle.place, **options)


def _shared_trustgp(bundle: Bundle) -> TrustGP:
    return bundle.once("trustgp", lambda: _trustgp(bundle))


def _laplace_classes(bundle: Bundle, last_layer: bool) -> LaplaceClassifier:
    """Laplace classifier of the last layer or all weights with the evidence's prior, fitted once."""
    fit = partial(LaplaceClassifier.fit, bundle.network, bundle.train, last_layer=last_layer)
    return bundle.once(f"Laplace of classes {last_layer}", fit)


def _untuned(peer: NoisyPeer, bundle: Bundle) -> NoisyPeer:
    """Copy with the most likely noise on the validation rows, and nothing else fitted to them."""
    return replace(peer, scale=1.0, tails=None).noisy(bundle.validation)


def _dropout(bundle: Bundle) -> MCDropout:
    fit = MCDropout.fit
    return bundle.once("dropout", lambda: fit(bundle.dropping, *bundle.held, samples=20, seed=bundle.seed))


def _paper_classes(bundle: Bundle) -> TrustGP:
    """Paper form, T = sqrt(1 + pi/8 v) with a kernel for each class, on few images: it is expensive."""
    rows = tuple(part[:PAPER_IMAGES] for part in bundle.train)
    return TrustGP.fit_paper(bundle.network, rows, likelihood=Classification(), **bundle.place)


_trained = partial(Method, training_free=False)  # the method trains networks of its own
_dropped, _ensemble = (partial(_trained, trained=networks) for networks in ("dropout", "ensemble"))
METHODS = (
    Method("know-nothing", KnowNothing.fit),
    Method("gated know-nothing", GatedKnowNothing.fit),
    Method("network + noise", lambda b: ConstantNoise.fit(b.network, b.validation)),
    Method("network + noise, tails", lambda b: ConstantNoise.fit(b.network, *b.held, tails=True)),
    _ensemble("ensemble of 5", lambda b: Ensemble.fit(b.ensemble, *b.held)),
    _ensemble("ensemble of 5, as trained", lambda b: Ensemble.fit(b.ensemble, b.validation, tune=False)),
    _trained("heteroscedastic", heteroscedastic),
    _trained("heteroscedastic ensemble of 5", lambda b: heteroscedastic(b, members=5)),
    _dropped("MC-dropout 20", _dropout),
    _dropped("MC-dropout 20, untuned", lambda b: _untuned(_dropout(b), b)),
    _dropped("rMC-dropout", lambda b: PropagatedDropout.fit(b.dropping, *b.held)),
    _dropped("rMC-dropout, untuned", lambda b: _untuned(PropagatedDropout.fit(b.dropping, *b.held), b)),
    _trained("SWAG", Swag.fit),
    Method("Laplace sampled", lambda b: LaplaceSampled.fit(_posterior(b), *b.held, seed=b.seed)),
    Method("Laplace sampled, untuned", lambda b: _evidence(b, LaplaceSampled, seed=b.seed)),
    Method("Laplace GLM", lambda b: LaplaceGLM.fit(_posterior(b), *b.held)),
    Method("Laplace GLM, untuned", lambda b: _evidence(b, LaplaceGLM)),
    Method("Laplace last layer", lambda b: LaplaceGLM.fit(_posterior(b, last_layer=True), *b.held)),
    _trained("VBLL", Vbll.fit),
    Method("NTK GP, subset", lambda b: SubsetGP.fit(*b.rows, **b.place)),
    Method("sparse NTK GP", lambda b: Sfr.fit(*b.rows, shared=True, seed=b.seed)),
    Method("FMGP", lambda b: FixedMeanGP.fit(*b.rows, seed=b.seed)),
    Method("SFR", lambda b: Sfr.fit(*b.rows, seed=b.seed)),
    Method("DEUP", Deup.fit),
    _trained("SNGP", Sngp.fit),
    Method("RIO", lambda b: InputGP.fit(b, residual=True)),
    _trained("ARD GP on inputs", InputGP.fit),
    _trained("witness alone", lambda b: WitnessAlone.fit(b.train, b.validation, **b.place)),
    Method("trustgp paper form", lambda b: TrustGP.fit_paper(b.network, b.train, **b.place)),
    Method("trustgp, no witness", lambda b: _trustgp(b, witness=None)),
    Method("trustgp", _shared_trustgp),
    Method("trustgp corrected", lambda b: _shared_trustgp(b).corrected),
)
"""Regression methods, in the order of the studies' tables."""

INTERVAL_METHODS = (
    Method("conformal, split", lambda b: SplitConformal.fit(b.network, b.validation)),
    _trained("conformal, CQR", QuantileConformal.fit),
)
"""Regression methods without a likelihood; their predictions are `IntervalPrediction`s."""

CLASS_METHODS = (
    Method("softmax", lambda b: SoftmaxClassifier(b.network)),
    Method("temperature scaling", lambda b: SoftmaxClassifier.fit(b.network, b.validation)),
    _dropped("MC-dropout 20", lambda b: DropoutClassifier.fit(b.dropping, b.validation, seed=b.seed)),
    _ensemble("ensemble of 5", lambda b: EnsembleClassifier.fit(b.ensemble, b.validation)),
    _trained("SWAG", SwagClassifier.fit),
    Method("Laplace last layer", lambda b: _laplace_classes(b, True).tuned(b.validation)),
    Method("Laplace KFAC", lambda b: _laplace_classes(b, False).tuned(b.validation)),
    Method("Laplace KFAC, evidence", lambda b: _laplace_classes(b, False).tuned(b.validation, prior=False)),
    Method("trustgp paper form", _paper_classes),
    Method("trustgp", lambda b: _trustgp(b, likelihood=Classification())),
)
"""Classification methods, in the order of the study's tables."""
