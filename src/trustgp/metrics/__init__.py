"""Scores of predictions against targets: tensors in, tensors out.

Every row is scored. A row without a finite prediction costs infinitely much; none is dropped.

Examples:
    >>> metrics, p, y = trustgp.metrics, model.predict(inputs), targets
    >>> nll, error = metrics.gaussian_nll(p.mean, p.variance, y), metrics.squared_error(p.mean, y)
    >>> share, (levels, observed) = metrics.coverage(p, y), metrics.coverage_curve(p, y)
    >>> gap = metrics.calibration_error(levels, observed)
    >>> risk = metrics.selective_risk(p.std[:, 0], error[:, 0])
    >>> scores = p.score, model.predict(10 * inputs).score  # of familiar and of foreign rows
    >>> separation = metrics.auroc(*scores), metrics.fpr95(*scores)
    >>> of_classes = classes.predict(inputs).probabilities, kinds
    >>> costs = metrics.class_nll(*of_classes), metrics.brier(*of_classes), metrics.entropy(of_classes[0])
    >>> ece, bins = metrics.expected_calibration_error(*of_classes), metrics.reliability_curve(*of_classes)
    >>> of_labels = labels.predict(inputs).probabilities, tags
    >>> nll, ece = metrics.label_nll(*of_labels), metrics.label_calibration_error(*of_labels)
    >>> bins = metrics.label_reliability(*of_labels)
    >>> found, true = detections.predict(pictures)[0], boxes[0]
    >>> target, overlap = metrics.match_targets(found, true)
    >>> dece = metrics.detection_calibration_error(found.confidence, target >= 0)
    >>> laece = metrics.localisation_calibration_error(found.confidence, overlap, found.labels)
    >>> new = metrics.on_unknown(found.boxes, true, num_classes=1)  # class 1 is unknown
    >>> recall = metrics.unknown_recall([found.boxes], [new], [true], num_classes=1)
    >>> errors = metrics.open_set_errors([found.boxes], [new], [true], num_classes=1)
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
