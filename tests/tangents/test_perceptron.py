"""Perceptrons of scikit-learn: their own predictions, with an error bar."""

import numpy as np
import pytest
import torch
from many import each

import trustgp
from trustgp.tangents.perceptron import is_perceptron, torch_perceptron

neural = pytest.importorskip("sklearn.neural_network")
from sklearn.model_selection import cross_val_score  # noqa: E402

from trustgp.sklearn import TrustClassifier, TrustRegressor  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*(Optimization|converge|held-out|overfits)")
X = np.random.default_rng(0).standard_normal((120, 3))
Y = np.sin(X[:, 0]) + 0.1 * X[:, 1]
OPTIONS = {"hidden_layer_sizes": (8, 4), "max_iter": 60, "random_state": 0}


def regressor(y=Y, **options):
    return neural.MLPRegressor(**{**OPTIONS, **options}).fit(X, y)


def classifier(classes: int, **options):
    labels = np.digitize(Y, np.linspace(-0.4, 0.4, classes - 1))
    return neural.MLPClassifier(**{**OPTIONS, **options}).fit(X, labels)


@each("activation", ["identity", "logistic", "tanh", "relu"])
def test_outputs_are_those_of_the_regressor(activation):
    one = regressor(activation=activation)
    found = torch_perceptron(one)(torch.from_numpy(X)).detach()[:, 0]
    torch.testing.assert_close(found, torch.from_numpy(one.predict(X)))


@each("classes", [2, 4])
def test_logits_are_those_of_the_classifier(classes):
    one = classifier(classes)
    logits = torch_perceptron(one)(torch.from_numpy(X)).detach()
    p = logits.softmax(dim=1) if classes > 2 else torch.cat([1 - logits.sigmoid(), logits.sigmoid()], dim=1)
    torch.testing.assert_close(p, torch.from_numpy(one.predict_proba(X)))


def test_weights_that_do_not_explain_the_predictions_are_refused():
    class Scaled(neural.MLPRegressor):
        def predict(self, X):
            return 2.0 * super().predict(X)

    with pytest.raises(ValueError, match=r"this Scaled predicts otherwise than its weights do; pass it as"):
        torch_perceptron(Scaled(**OPTIONS).fit(X, Y))
    assert not is_perceptron(neural.MLPRegressor())


def test_fit_takes_a_perceptron_and_predicts_its_mean(tmp_path):
    one = regressor()
    model = trustgp.fit(one, (torch.from_numpy(X), torch.from_numpy(Y)[:, None]), progress=False)
    p = model.predict(torch.from_numpy(X[:5]))
    np.testing.assert_allclose(p.mean[:, 0], one.predict(X[:5]), rtol=1e-12)
    model.save(tmp_path / "m")
    assert torch.equal(trustgp.load(tmp_path / "m", one).predict(torch.from_numpy(X[:5])).std, p.std)


def test_the_estimators_take_trained_and_untrained_perceptrons():
    ours = TrustRegressor(regressor()).fit(X, Y)
    np.testing.assert_allclose(ours.predict(X), regressor().predict(X), rtol=1e-9)
    lower, upper = ours.predict_interval(X, level=0.9)
    mean, std = ours.predict(X, return_std=True)
    assert ((lower < mean) & (mean < upper) & (std > 0)).all()
    assert lower.shape == Y.shape
    labels = np.array(["a", "b", "c"])[np.digitize(Y, [-0.4, 0.4])]
    trained = neural.MLPClassifier(**OPTIONS).fit(X, labels)
    assert (TrustClassifier(trained).fit(X, labels).predict(X) == trained.predict(X)).all()
    fresh = TrustRegressor(neural.MLPRegressor(**OPTIONS))
    assert np.isfinite(cross_val_score(fresh, X, Y, cv=2)).all()
    assert is_perceptron(fresh.network) is False  # the given one is not trained
