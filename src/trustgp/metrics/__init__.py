"""Scores of predictions against targets: tensors in, tensors out.

Every row is scored. A row without a finite prediction costs infinitely much; none is dropped.
"""

from .boxes import on_unknown, open_set_errors, unknown_recall
from .classes import (
    brier,
    class_nll,
    entropy,
    expected_calibration_error,
    label_calibration_error,
    label_nll,
    label_reliability,
    reliability_curve,
)
from .detections import detection_calibration_error, localisation_calibration_error, match_targets
from .gaussian import calibration_error, coverage, coverage_curve, gaussian_nll, squared_error
from .ranking import auroc, fpr95, selective_risk

__all__ = [  # noqa: RUF022  grouped by what they are for
    "gaussian_nll", "squared_error", "coverage",
    "coverage_curve", "calibration_error",  # so far of Gaussian predictions; of probabilities:
    "class_nll", "brier", "expected_calibration_error", "reliability_curve", "entropy",
    "label_nll", "label_calibration_error", "label_reliability",  # of several labels a row
    "selective_risk", "auroc", "fpr95",  # of one score a row; of detections:
    "match_targets", "detection_calibration_error", "localisation_calibration_error",
    "on_unknown", "unknown_recall", "open_set_errors",
]  # fmt: skip
