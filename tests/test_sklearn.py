"""The scikit-learn estimators, beyond scikit-learn's own checks (promise 7)."""

import copy

import numpy as np
import pytest
import torch
from many import each
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tiny_networks import Trainer, train
from torch import nn

import trustgp
from trustgp.sklearn import TrustClassifier, TrustLabelClassifier, TrustRegressor

NAMES = np.array(["walk", "run", "stand"], dtype=object)
QUICK = {"fit_options": {"witness": None}}


def rows(n: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    X = draw.uniform(-2, 2, (n, 3))
    return X, np.sin(X[:, 0]) + X[:, 1] + 0.1 * draw.normal(size=n)


def labelled(n: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X, y = rows(n, seed)
    return X, np.digitize(y, [-0.8, 0.8])


@pytest.fixture(scope="module")
def regressor() -> TrustRegressor:
    return TrustRegressor(Trainer(), num_experts=2).fit(*rows())


@pytest.fixture(scope="module")
def classifier() -> TrustClassifier:
    X, y = labelled()
    return TrustClassifier(Trainer(classes=True)).fit(X, NAMES[y])


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    return Trainer()(*map(torch.from_numpy, rows()))


class Spy:
    """A trainer that records its arguments."""

    def __init__(self, inner=None) -> None:
        self.inner, self.seen, self.drawn = inner or Trainer(), [], []

    def __call__(self, X, y):
        self.seen.append((X.clone(), y.clone()))
        self.drawn.append(torch.rand(3).tolist())
        X.zero_(), y.zero_()  # it may change its arguments
        return self.inner(*self.seen[-1])

    def __deepcopy__(self, memo):
        return self


def test_predictions_are_those_of_the_model(regressor):
    X, _ = rows(30, seed=1)
    p = regressor.model_.predict(torch.from_numpy(X))
    mean, std = regressor.predict(X, return_std=True)
    np.testing.assert_array_equal(mean, p.mean[:, 0].numpy())
    np.testing.assert_array_equal(std, p.std[:, 0].numpy())
    np.testing.assert_array_equal(regressor.predict(X), mean)
    lower, upper = regressor.prediction(X).interval(0.95)
    assert bool((lower < upper).all())
    assert isinstance(regressor.model_, trustgp.UncertaintyModel)
    assert regressor.model_.num_experts == 2
    assert regressor.score(*rows(60, seed=2)) > 0.9


def test_several_outputs_have_an_error_bar_each_and_pipelines_pass_return_std():
    X, y = rows()
    both = np.stack([y, 100 * y], axis=1)
    mean, std = TrustRegressor(Trainer()).fit(X, both).predict(X[:7], return_std=True)
    assert mean.shape == std.shape == (7, 2)
    assert 20 < float((std[:, 1] / std[:, 0]).mean()) < 500
    column = make_pipeline(StandardScaler(), TrustRegressor(Trainer())).fit(1000 * X + 5, y[:, None])
    mean, std = column.predict(1000 * X + 5, return_std=True)
    assert mean.shape == std.shape == (120, 1)
    assert column.score(1000 * X + 5, y) > 0.9


def test_labels_may_be_of_any_type(classifier):
    X, y = labelled(60, seed=1)
    assert classifier.classes_.tolist() == sorted(NAMES)
    labels, chances = classifier.predict(X), classifier.predict_proba(X)
    assert set(labels) <= set(NAMES)
    np.testing.assert_array_equal(classifier.classes_[chances.argmax(axis=1)], labels)
    p = classifier.model_.predict(torch.from_numpy(X))
    np.testing.assert_array_equal(chances, p.probabilities.numpy())
    assert classifier.score(X, NAMES[y]) > 0.8


def test_classes_are_the_labels_in_the_order_of_the_logits():
    X, y = labelled()
    network = Trainer(classes=True)(torch.from_numpy(X), torch.from_numpy(y))
    estimator = TrustClassifier(network, classes=NAMES).fit(X[y != 1], NAMES[y[y != 1]])
    assert estimator.labels_.tolist() == list(NAMES)
    assert estimator.model_.memory.rows.targets.unique().tolist() == [0, 2]  # walk and stand
    assert estimator.classes_.tolist() == ["run", "stand", "walk"]
    with torch.no_grad():
        own = network(torch.from_numpy(X)).argmax(dim=1).numpy()
    np.testing.assert_array_equal(estimator.predict(X), NAMES[own])
    np.testing.assert_array_equal(estimator.classes_[estimator.predict_proba(X).argmax(axis=1)], NAMES[own])
    with pytest.raises(ValueError, match="3 logits, and there are 2 classes; pass classes="):
        TrustClassifier(network).fit(X[y != 1], NAMES[y[y != 1]])
    with pytest.raises(ValueError, match="y holds 'jump'"):
        TrustClassifier(network, classes=NAMES).fit(X, np.where(y == 1, "jump", NAMES[y]))
    with pytest.raises(ValueError, match="two different ones"):
        TrustClassifier(network, classes=["a", "a"]).fit(X, NAMES[y])


def test_a_trained_network_is_not_changed_and_equals_a_direct_fit(trained):
    X, y = rows()
    before = copy.deepcopy(trained.state_dict())
    estimator = TrustRegressor(trained, num_experts=2).fit(X, y)
    assert estimator.model_.origin.rows == len(X)
    tensors = (torch.from_numpy(X), torch.from_numpy(y))
    direct = trustgp.fit(trained, tensors, num_experts=2, progress=False)
    assert torch.equal(estimator.prediction(X).std, direct.predict(tensors[0]).std)
    assert all(torch.equal(before[name], value) for name, value in trained.state_dict().items())
    assert all(parameter.requires_grad for parameter in trained.parameters())
    assert estimator.network is trained
    validated = TrustRegressor(trained, fit_options={"validation": rows(40, seed=3)}).fit(X, y)
    assert "40 validation rows" in repr(validated.model_)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_grid_search_scores_on_held_out_rows():
    X, y = rows(80)
    spy = Spy()
    search = GridSearchCV(TrustRegressor(spy, **QUICK), {"num_experts": [1, 2]}, cv=2).fit(X, y)
    assert search.best_params_["num_experts"] in (1, 2)
    assert search.best_estimator_.model_.num_experts == search.best_params_["num_experts"]
    assert [len(X) for X, _ in spy.seen] == [40, 40, 40, 40, 80]
    scored = TrustClassifier(Trainer(classes=True))
    chances = cross_val_score(scored, *labelled(), cv=2, scoring="neg_log_loss")
    assert (chances > -1).all()


@each(("n", "share", "count"), [(120, None, 0), (250, None, 25), (50, 0.2, 10), (250, 0, 0)])
def test_a_share_of_the_rows_is_held_out_from_the_function(n, share, count):
    X, y = rows(n)
    spy = Spy()
    estimator = TrustRegressor(spy, validation_fraction=share, **QUICK).fit(X, y)
    ((given, targets),) = spy.seen
    assert given.shape == (n - count, 3)
    assert targets.shape == (n - count,)
    assert given.dtype == torch.float32
    assert estimator.model_.origin.rows == n - count
    assert (f"{count} validation rows" in repr(estimator.model_)) is (count > 0)
    np.testing.assert_array_equal(rows(n)[0], X)  # the function changed a copy


def test_groups_are_kept_together():
    X, y = rows(200)
    groups = np.arange(200) // 10
    spy = Spy()
    TrustRegressor(spy, validation_fraction=0.25, **QUICK).fit(X, y, groups=groups)
    seen = {tuple(row) for row in spy.seen[0][0].tolist()}
    there = np.array([tuple(row) in seen for row in torch.tensor(X, dtype=torch.float32).tolist()])
    whole = there.reshape(20, 10).sum(axis=1)
    assert sorted(whole.tolist()) == [0] * 5 + [10] * 15
    with pytest.raises(ValueError, match="inconsistent"):
        TrustRegressor(spy).fit(X, y, groups=groups[:5])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_class_keeps_a_training_row():
    X, y = labelled(60)
    y[:] = 0
    y[::9], y[7] = 1, 2  # the last one once
    for seed in range(3):
        spy = Spy(Trainer(classes=True))
        TrustClassifier(spy, validation_fraction=0.6, random_state=seed).fit(X, y)
        assert spy.seen[0][1].unique().tolist() == [0, 1, 2]


def test_random_state_seeds_the_function_and_leaves_the_global_state():
    X, y = rows(40)
    drawn = []
    for state in (0, 0, np.random.RandomState(0)):
        torch.manual_seed(7)
        spy = Spy()
        TrustRegressor(spy, random_state=state, **QUICK).fit(X, y)
        drawn.append(spy.drawn[0])
        assert torch.initial_seed() == 7
        expected = torch.Generator().manual_seed(7)
        assert torch.equal(torch.rand(3), torch.rand(3, generator=expected))
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


VALIDATED = {"fit_options": {"validation": rows(9)}}


@each(
    ("options", "error", "match"),
    [
        ({"fit_options": {"seed": 1}}, ValueError, "fit_options holds seed; allowed are validation"),
        ({"fit_options": {"wittness": None}}, ValueError, "wittness"),
        ({"validation_fraction": 1.0}, ValueError, "between 0"),
        ({"validation_fraction": 0.2, **VALIDATED}, ValueError, "without validation rows"),
        ({"network": "mlp"}, TypeError, "network: a str; a torch"),
        ({"network": lambda X, y: "net"}, TypeError, "a str was returned"),
    ],
)
def test_a_wrong_parameter_is_refused(trained, options, error, match):
    with pytest.raises(error, match=match):
        TrustRegressor(**{"network": Trainer(), **options}).fit(*rows(30))
    with pytest.raises(ValueError, match="for networks trained in `fit`"):
        TrustRegressor(trained, validation_fraction=0.1).fit(*rows())


def test_weights_of_rows_reach_the_error_bar_and_a_function_that_takes_them(trained):
    X, y = rows()
    weights, seen = np.random.default_rng(1).integers(0, 3, 120).astype(float), []

    def trained_on(X, y, sample_weight):
        seen.append(sample_weight)
        return Trainer()(X, y)

    given = TrustRegressor(trained, **QUICK).fit(X, y, sample_weight=weights)
    kept = torch.from_numpy(weights > 0)
    train = torch.from_numpy(X)[kept], torch.from_numpy(y)[kept]
    model = trustgp.fit(trained, train, weights=weights[weights > 0], witness=None, progress=False)
    expected = model.predict(torch.from_numpy(X)).std[:, 0]
    np.testing.assert_array_equal(given.predict(X, return_std=True)[1], expected)
    TrustRegressor(trained_on, validation_fraction=0.2, **QUICK).fit(X, y, sample_weight=weights)
    assert len(seen[0]) == int(kept.sum()) - int(0.2 * int(kept.sum()))
    assert set(seen[0].tolist()) == {1.0, 2.0}
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        given.fit(X, y, sample_weight=weights - 1.0)


@each("kind", [TrustClassifier, TrustLabelClassifier])
def test_classifiers_take_weights_too(kind):
    X, y = rows(200)
    several = np.stack([y > 0, X[:, 2] > 1], axis=1).astype(int)
    labels = several[:, 0] if kind is TrustClassifier else several
    network, inputs = nn.Sequential(nn.Linear(3, 2)).double(), torch.from_numpy(X)
    train(network, lambda net: net(inputs).square().mean(), 1)
    weights = np.where(np.arange(200) < 100, 1e-3, 1.0)
    fits = (kind(network, num_experts=1).fit(X, labels, sample_weight=w) for w in (None, weights))
    plain, weighted = (one.predict_proba(X) for one in fits)
    assert plain.shape == weighted.shape
    assert not np.allclose(plain, weighted, rtol=1e-6)


def test_several_labels_are_predicted_as_0_and_1_with_probabilities_and_others_are_refused():
    X, y = rows(200)
    labels = np.stack([y > 0, X[:, 2] > 1], axis=1).astype(int)

    def trained_on(inputs, targets):
        assert (targets.dtype, targets.shape) == (torch.int64, (180, 2))
        network = nn.Linear(3, 2).to(inputs)
        return train(network, lambda net: nn.BCEWithLogitsLoss()(net(inputs), targets.to(inputs)))

    estimator = make_pipeline(StandardScaler(), TrustLabelClassifier(trained_on)).fit(X, labels)
    chances, predicted = estimator.predict_proba(X), estimator.predict(X)
    assert chances.shape == predicted.shape == (200, 2)
    assert np.array_equal(predicted, chances > 0.5)
    assert (predicted == labels).mean() > 0.9
    assert estimator.score(X, labels) == pytest.approx((predicted == labels).all(axis=1).mean())
    assert len(estimator[-1].prediction(X[:3]).is_novel) == 3
    for wrong in (labels[:, 0], labels + 1):
        with pytest.raises(ValueError, match="a 0 or 1 for each of several labels"):
            TrustLabelClassifier(trained_on).fit(X, wrong)
