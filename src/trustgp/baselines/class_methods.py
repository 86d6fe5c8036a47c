"""Every method of classification by its name. A further one is a function, and its line at the end."""

from __future__ import annotations

from ..likelihoods import Classification
from .bundle import Bundle
from .class_laplace import LaplaceClassifier
from .class_members import DropoutClassifier, EnsembleClassifier
from .methods import Method, Predictor
from .softmax import SoftmaxClassifier
from .trusted import TrustGP


def softmax(bundle: Bundle) -> Predictor:
    """The network as it is."""
    return SoftmaxClassifier.fit(bundle.network)


def temperature(bundle: Bundle) -> Predictor:
    """The network with the temperature of the validation rows."""
    return SoftmaxClassifier.fit(bundle.network, bundle.validation)


def ensemble(bundle: Bundle) -> Predictor:
    """The network and its siblings."""
    return EnsembleClassifier.fit([bundle.network, *bundle.members])


def mc_dropout(bundle: Bundle) -> Predictor:
    """The dropout network, asked 20 times."""
    return DropoutClassifier.fit(bundle.dropping, samples=20, seed=bundle.seed)


def laplace(bundle: Bundle) -> Predictor:
    """The network linearised under a Kronecker-factored posterior of all weights."""
    return LaplaceClassifier.fit(bundle.network, bundle.train, bundle.validation)


def laplace_last_layer(bundle: Bundle) -> Predictor:
    """The same with the last layer's weights alone."""
    return LaplaceClassifier.fit(bundle.network, bundle.train, bundle.validation, last_layer=True)


def trusted(bundle: Bundle) -> Predictor:
    """trustgp as it comes."""
    options = {"seed": bundle.seed, "device": bundle.device, **bundle.options}
    return TrustGP.fit(
        bundle.network, bundle.train, bundle.validation, likelihood=Classification(), **options
    )


CLASS_METHODS = (
    Method("softmax", softmax, training_free=True),
    Method("temperature scaling", temperature, training_free=True),
    Method("MC-dropout 20", mc_dropout, training_free=False),
    Method("ensemble of 5", ensemble, training_free=False),
    Method("Laplace last layer", laplace_last_layer, training_free=True),
    Method("Laplace KFAC", laplace, training_free=True),
    Method("trustgp", trusted, training_free=True),
)
"""In the order of the study's tables."""
