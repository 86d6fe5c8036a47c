"""Promise 7: scikit-learn's own estimator checks pass for both estimators."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks
from tiny_networks import Trainer

from trustgp.sklearn import TrustClassifier, TrustRegressor

ESTIMATORS = [TrustRegressor(Trainer()), TrustClassifier(Trainer(classes=True))]


def expected_failures(estimator) -> dict[str, str]:
    """Checks that do not apply, each with its reason: none."""
    return {}


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failures)
@pytest.mark.filterwarnings("ignore::UserWarning")  # a dozen rows, in order: a fit says what it cannot know
def test_estimator_check(estimator, check):
    check(estimator)
