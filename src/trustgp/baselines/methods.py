"""Every method of the studies by its name. A further one is a function, and its line in `METHODS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..data import Inputs
from .bundle import Bundle
from .constant_noise import ConstantNoise
from .dropout import MCDropout
from .ensemble import Ensemble
from .input_gp import InputGP
from .landmark_gp import LandmarkGP
from .laplace_posterior import KronPosterior
from .laplace_predictive import LaplaceGLM, LaplaceSampled
from .propagation import PropagatedDropout
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
    training_free: bool


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


def constant_noise(bundle: Bundle) -> Predictor:
    """The network and one variance for each output."""
    return ConstantNoise.fit(bundle.network, bundle.validation)


def ensemble(bundle: Bundle) -> Predictor:
    """The network and its siblings."""
    return Ensemble.fit([bundle.network, *bundle.members], bundle.validation)


def mc_dropout(bundle: Bundle) -> Predictor:
    """The dropout network, asked 20 times."""
    return MCDropout.fit(bundle.dropping, bundle.validation, samples=20, seed=bundle.seed)


def propagated_dropout(bundle: Bundle) -> Predictor:
    """The dropout network, its variance propagated."""
    return PropagatedDropout.fit(bundle.dropping, bundle.validation)


def _posterior(bundle: Bundle) -> KronPosterior:
    return bundle.once(
        "posterior", lambda: KronPosterior.fit(bundle.network, bundle.train, bundle.validation)
    )


def laplace_sampled(bundle: Bundle) -> Predictor:
    """Weights drawn from the Laplace posterior, 20 times."""
    return LaplaceSampled.fit(_posterior(bundle), bundle.validation, samples=20, seed=bundle.seed)


def laplace_glm(bundle: Bundle) -> Predictor:
    """The network linearised, under the same posterior."""
    return LaplaceGLM.fit(_posterior(bundle), bundle.validation)


def laplace_last_layer(bundle: Bundle) -> Predictor:
    """The same with the last layer's weights alone."""
    posterior = KronPosterior.fit(bundle.network, bundle.train, bundle.validation, last_layer=True)
    return LaplaceGLM.fit(posterior, bundle.validation)


def subset_gp(bundle: Bundle) -> Predictor:
    """One exact GP on a random subset."""
    rows = bundle.train, bundle.validation
    return SubsetGP.fit(bundle.network, *rows, seed=bundle.seed, device=bundle.device)


def landmark_gp(bundle: Bundle) -> Predictor:
    """One sparse GP on landmarks, over all rows."""
    rows = bundle.train, bundle.validation
    return LandmarkGP.fit(bundle.network, *rows, seed=bundle.seed, device=bundle.device)


def input_gp(bundle: Bundle) -> Predictor:
    """No network at all."""
    return InputGP.fit(bundle.train, bundle.validation, seed=bundle.seed, device=bundle.device)


def paper_form(bundle: Bundle) -> Predictor:
    """Separate outputs, evidence only, plain variance."""
    place = {"seed": bundle.seed, "device": bundle.device}
    return TrustGP.fit_paper(bundle.network, bundle.train, **place, **bundle.options)


def trusted(bundle: Bundle) -> TrustGP:
    """trustgp as it comes, about the network's own output."""
    place = {"seed": bundle.seed, "device": bundle.device}

    def fit() -> TrustGP:
        return TrustGP.fit(bundle.network, bundle.train, bundle.validation, **place, **bundle.options)

    return bundle.once("trustgp", fit)


def trusted_alone(bundle: Bundle) -> Predictor:
    """trustgp without its witness: the experts' word alone."""
    options = {"seed": bundle.seed, "device": bundle.device, **bundle.options, "witness": None}
    return TrustGP.fit(bundle.network, bundle.train, bundle.validation, **options)


def trusted_corrected(bundle: Bundle) -> Predictor:
    """The same model about the corrected mean."""
    return trusted(bundle).corrected


METHODS = (
    Method("network + noise", constant_noise, training_free=True),
    Method("ensemble of 5", ensemble, training_free=False),
    Method("MC-dropout 20", mc_dropout, training_free=False),
    Method("rMC-dropout", propagated_dropout, training_free=False),
    Method("Laplace sampled", laplace_sampled, training_free=True),
    Method("Laplace GLM", laplace_glm, training_free=True),
    Method("Laplace last layer", laplace_last_layer, training_free=True),
    Method("NTK GP, subset", subset_gp, training_free=True),
    Method("sparse NTK GP", landmark_gp, training_free=True),
    Method("GP on inputs, no network", input_gp, training_free=False),
    Method("trustgp paper form", paper_form, training_free=True),
    Method("trustgp, no witness", trusted_alone, training_free=True),
    Method("trustgp", trusted, training_free=True),
    Method("trustgp corrected", trusted_corrected, training_free=True),
)
"""In the order of the studies' tables."""
