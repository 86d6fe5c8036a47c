"""Promise 7: scikit-learn's own estimator checks pass for both estimators."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks
from tiny_networks import Trainer

from trustgp.sklearn import TrustClassifier, TrustRegressor

CHEAP = {"num_experts": 1, "fit_options": {"witness": None}}
ESTIMATORS = [TrustRegressor(Trainer(), **CHEAP), TrustClassifier(Trainer(classes=True), num_experts=1)]


@parametrize_with_checks(ESTIMATORS)
@pytest.mark.filterwarnings("ignore::UserWarning")  # a dozen rows without validation
def test_estimator_check(estimator, check):
    check(estimator)
