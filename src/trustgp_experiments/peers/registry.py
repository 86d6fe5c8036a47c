"""Every method of the studies by its name. A further one is a file, and its line in a table below."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trustgp.data.trees import Inputs
from trustgp.likelihoods import Classification

from .bundle import Bundle
from .class_laplace import LaplaceClassifier
from .constant_noise import ConstantNoise
from .dropout import DropoutClassifier, MCDropout
from .ensemble import Ensemble, EnsembleClassifier
from .input_gp import InputGP
from .landmark_gp import LandmarkGP
from .laplace_posterior import KronPosterior
from .laplace_predictive import LaplaceGLM, LaplaceSampled
from .propagation import PropagatedDropout
from .softmax import SoftmaxClassifier
from .subset_gp import SubsetGP
from .trusted import TrustGP


class Predictor(Protocol):
    """What a method comes out as."""

    def predict(self, inputs: Inputs) -> Any:
        """The prediction for some rows: a `Prediction`, or what reads like one of classes."""
        ...


@dataclass(frozen=True)
class Method:
    """A way to get an error bar.

    Args:
        name: As the studies print it.
        fit: Makes a predictor from a bundle.
        training_free: Whether one trained network is all it needs.
    """

    name: str
    fit: Callable[[Bundle], Predictor]
    training_free: bool = True


@dataclass(frozen=True)
class Fitted:
    """A fitted method.

    Args:
        name: Of the method.
        training_free: Whether one trained network is all it needed.
        seconds: Of its fit, shared work included, training networks not.
        predict: From inputs to a prediction, see `Predictor`.
    """

    name: str
    training_free: bool
    seconds: float
    predict: Callable[[Inputs], Any]


def fit_methods(
    bundle: Bundle, names: Iterable[str] | None = None, *, methods: Sequence[Method] | None = None
) -> Iterator[Fitted]:
    """Fit one method after another.

    Args:
        bundle: Networks and rows.
        names: Of the methods; None: all of them, in their order.
        methods: To choose from; None: `METHODS`, those of regression.
    """
    known = {method.name: method for method in (METHODS if methods is None else methods)}
    chosen = list(known) if names is None else list(names)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ValueError(f"methods {unknown} are unknown; choose from {list(known)}.")
    for name in chosen:
        method = known[name]
        predictor, seconds = bundle.timed(lambda method=method: method.fit(bundle))
        yield Fitted(name, method.training_free, seconds, predictor.predict)


def _place(bundle: Bundle) -> dict[str, Any]:
    return {"seed": bundle.seed, "device": bundle.device}


def _rows(bundle: Bundle) -> tuple[Any, Any, Any]:
    return bundle.network, bundle.train, bundle.validation


def _posterior(bundle: Bundle) -> KronPosterior:
    """Of all weights, for whoever asks first."""
    return bundle.once("posterior", lambda: KronPosterior.fit(*_rows(bundle)))


def _last_layer(bundle: Bundle) -> KronPosterior:
    return KronPosterior.fit(*_rows(bundle), last_layer=True)


def _trustgp(bundle: Bundle, **options: Any) -> TrustGP:
    """As it comes, or with other options."""
    return TrustGP.fit(*_rows(bundle), **{**_place(bundle), **bundle.options, **options})


def _shared_trustgp(bundle: Bundle) -> TrustGP:
    return bundle.once("trustgp", lambda: _trustgp(bundle))


METHODS = (
    Method("network + noise", lambda b: ConstantNoise.fit(b.network, b.validation)),
    Method("ensemble of 5", lambda b: Ensemble.fit(b.ensemble, b.validation), training_free=False),
    Method(
        "MC-dropout 20",
        lambda b: MCDropout.fit(b.dropping, b.validation, samples=20, seed=b.seed),
        training_free=False,
    ),
    Method("rMC-dropout", lambda b: PropagatedDropout.fit(b.dropping, b.validation), training_free=False),
    Method(
        "Laplace sampled",
        lambda b: LaplaceSampled.fit(_posterior(b), b.validation, samples=20, seed=b.seed),
    ),
    Method("Laplace GLM", lambda b: LaplaceGLM.fit(_posterior(b), b.validation)),
    Method("Laplace last layer", lambda b: LaplaceGLM.fit(_last_layer(b), b.validation)),
    Method("NTK GP, subset", lambda b: SubsetGP.fit(*_rows(b), **_place(b))),
    Method("sparse NTK GP", lambda b: LandmarkGP.fit(*_rows(b), **_place(b))),
    Method(
        "GP on inputs, no network",
        lambda b: InputGP.fit(b.train, b.validation, **_place(b)),
        training_free=False,
    ),
    Method("trustgp paper form", lambda b: TrustGP.fit_paper(b.network, b.train, **_place(b), **b.options)),
    Method("trustgp, no witness", lambda b: _trustgp(b, witness=None)),
    Method("trustgp", _shared_trustgp),
    Method("trustgp corrected", lambda b: _shared_trustgp(b).corrected),
)
"""Regression, in the order of the studies' tables."""

CLASS_METHODS = (
    Method("softmax", lambda b: SoftmaxClassifier.fit(b.network)),
    Method("temperature scaling", lambda b: SoftmaxClassifier.fit(b.network, b.validation)),
    Method(
        "MC-dropout 20",
        lambda b: DropoutClassifier.fit(b.dropping, samples=20, seed=b.seed),
        training_free=False,
    ),
    Method("ensemble of 5", lambda b: EnsembleClassifier.fit(b.ensemble), training_free=False),
    Method("Laplace last layer", lambda b: LaplaceClassifier.fit(*_rows(b), last_layer=True)),
    Method("Laplace KFAC", lambda b: LaplaceClassifier.fit(*_rows(b))),
    Method("trustgp", lambda b: _trustgp(b, likelihood=Classification())),
)
"""Classes, in the order of the study's tables."""
