"""Promise 7: scikit-learn's own estimator checks pass for both estimators, but for that of repeated rows."""

from functools import partial

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks
from tiny_networks import Trainer

from trustgp.sklearn import TrustClassifier, TrustRegressor

CHEAP = {"num_experts": 1, "fit_options": {"witness": None}}
FAILS = {"check_sample_weight_equivalence_on_dense_data": "a weight is a precision; repeated rows count once"}
checked = partial(parametrize_with_checks, expected_failed_checks=lambda _: FAILS)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # a dozen rows without validation


@checked([TrustRegressor(Trainer(), **CHEAP)])
def test_estimator_check(estimator, check):
    check(estimator)


@pytest.mark.nightly
@checked([TrustClassifier(Trainer(classes=True), num_experts=1)])
def test_estimator_check_of_a_classifier(estimator, check):
    """Its fit and its checks of rows are the regressor's."""
    check(estimator)
