"""scikit-learn's multilayer perceptrons as torch modules."""

from typing import Any

import numpy as np
import torch
from torch import nn

ACTIVATIONS = {"identity": nn.Identity, "logistic": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU}
CHECKED_ROWS, TOLERANCE = 16, 1e-4  # of the comparison with the estimator's own predictions


def is_perceptron(network: Any) -> bool:
    """Whether `network` is a trained `MLPRegressor` or `MLPClassifier`."""
    return all(hasattr(network, name) for name in ("coefs_", "intercepts_", "out_activation_"))


def torch_perceptron(estimator: Any) -> nn.Sequential:
    """Copy in torch, for a classifier up to the logits; raises ValueError if its predictions differ."""
    layers: list[nn.Module] = []
    for weights, intercepts in zip(estimator.coefs_, estimator.intercepts_, strict=True):
        layer = nn.Linear(*weights.shape, dtype=torch.from_numpy(weights).dtype, device="cpu")
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weights.T))
            layer.bias.copy_(torch.from_numpy(intercepts))
        layers += [layer, ACTIVATIONS[estimator.activation]()]
    network = nn.Sequential(*layers[:-1]).eval()
    rows = np.random.default_rng(0).standard_normal((CHECKED_ROWS, len(estimator.coefs_[0])))
    rows = rows.astype(estimator.coefs_[0].dtype)
    with torch.no_grad():
        outputs = network(torch.from_numpy(rows))
    last = {"softmax": lambda z: z.softmax(dim=1), "logistic": torch.sigmoid}.get(estimator.out_activation_)
    ours = (outputs if last is None else last(outputs)).numpy()
    theirs = estimator.predict(rows) if last is None else estimator.predict_proba(rows)
    theirs = theirs.reshape(CHECKED_ROWS, -1)[:, -ours.shape[1] :]  # two classes have one logit
    if not np.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE * (1.0 + np.abs(theirs).max())):
        kind = type(estimator).__name__
        raise ValueError(f"this {kind} predicts otherwise than its weights do; pass it as a torch.nn.Module.")
    return network
