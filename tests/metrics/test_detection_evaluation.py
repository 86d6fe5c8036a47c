"""The report of a detector's scores, on scenes made by hand."""

import json
import math

import pytest
import torch
from metrics.by_hand import there

from trustgp import Detections, metrics
from trustgp.metrics.detection_evaluation import DetectionEvaluation, ScoredScenes

A, B, C, FAR = [0.0, 0, 10, 10], [20.0, 0, 30, 10], [0.0, 20, 10, 30], [40.0, 40, 60, 60]
NAMES = ("cat", "dog")


def found(boxes, labels, confidence, novelty, *, std=1.0, threshold: float | None = 0.5, shift=0.0):
    """What a model says; the probability of the class is 0.9 of the confidence."""
    k, sure = len(labels), torch.tensor(confidence).float()
    chances = torch.zeros(k, 3).scatter(1, torch.tensor(labels).long().reshape(k, 1), 0.9 * sure[:, None])
    chances[:, 2] = 1 - 0.9 * sure
    placed = torch.tensor(boxes).float().reshape(-1, 4) + shift, torch.full((k, 4), std)
    kinds, far = torch.tensor(labels).long(), torch.tensor(novelty).float()
    return Detections(*placed, kinds, sure, chances, far, True, threshold)


@pytest.fixture
def familiar() -> ScoredScenes:
    said = [found([A, B], [0, 1], [0.9, 0.8], [0.1, 0.2], shift=0.5), found([FAR], [0], [0.6], [0.3])]
    return ScoredScenes(said, [there([A, B], [0, 1]), there([C], [1])])


def unknown(threshold: float | None = 0.5) -> ScoredScenes:
    said = [found([A, FAR], [0, 1], [0.9, 0.7], [0.9, 0.05], threshold=threshold)]
    return ScoredScenes(said, [there([A, FAR, B], [5, 5, 0])])


def test_scores_are_those_of_the_metrics(familiar):
    e = DetectionEvaluation.of(familiar, names=NAMES)
    confidence, right = torch.tensor([0.9, 0.8, 0.6]).double(), torch.tensor([1.0, 1, 0]).double()
    dece = metrics.detection_calibration_error
    assert e.dece == pytest.approx(float(dece(0.9 * confidence, right)), abs=1e-6)
    assert e.detector_dece == pytest.approx(float(dece(confidence, right)), abs=1e-6)
    assert list(e.scores) == ["all", *NAMES]
    # cat: one right at 0.9, one wrong at 0.6; dog: one right at 0.8; they overlap by share
    share = 9.5**2 / (200 - 9.5**2)
    assert e.outputs["dog"].detector_laece == pytest.approx(abs(0.8 - share), abs=1e-6)
    assert e.outputs["cat"].detector_laece == pytest.approx((abs(0.9 - share) + 0.6) / 2, abs=1e-6)
    each = [e.outputs[name].detector_laece for name in NAMES]
    assert e.detector_laece == pytest.approx(sum(each) / 2)


def test_edges_are_scored_where_things_were_found(familiar):
    e = DetectionEvaluation.of(familiar, names=NAMES)
    assert e.edge_nll == pytest.approx(0.5 * math.log(2 * math.pi) + 0.5 * 0.25)  # off by half a deviation
    assert (e.edge_coverage, e.box_coverage) == (1.0, 1.0)
    wide = found([[0.0, 0, 10, 12.5], B], [0, 1], [0.9, 0.8], [0.1, 0.1])  # one edge is off by 2.5 deviations
    e = DetectionEvaluation.of(ScoredScenes([wide], [there([A, B], [0, 1])]), names=NAMES)
    assert (e.edge_coverage, e.box_coverage) == (7 / 8, 1 / 2)
    assert (e.outputs["cat"].edge_coverage, e.outputs["dog"].edge_coverage) == (3 / 4, 1.0)


def test_foreign_pictures_without_things(familiar):
    e = DetectionEvaluation.of(familiar, ScoredScenes(unknown().detections, None), names=NAMES)
    # novelty 0.1, 0.2, 0.3 against 0.9, 0.05: three pairs of six in order
    assert e.auroc_novelty == 0.5
    assert e.fpr95_novelty == 0.5
    assert e.auroc_picture == 1.0  # 0.2, 0.3 against 0.9
    assert (e.u_recall, e.a_ose, e.detector_a_ose) == (None,) * 3
    assert (e.counts.ood_detections, e.counts.ood_unknown) == (2, 0)


def test_unknown_things_are_counted(familiar):
    e = DetectionEvaluation.of(familiar, unknown(), names=NAMES)
    assert e.auroc_novelty == 0.5  # both detections lie on unknown things
    assert e.u_recall == 0.5  # the first is marked, the second is not
    assert (e.a_ose, e.detector_a_ose) == (1, 2)
    assert e.counts.ood_unknown == 2


def test_only_detections_on_unknown_things_are_foreign_where_these_are_labelled(familiar):
    said = [found([A, B], [0, 1], [0.9, 0.9], [0.9, 0.0]), found([B], [1], [0.9], [0.0])]
    foreign = ScoredScenes(said, [there([A, B], [7, 1]), there([B], [1])])
    e = DetectionEvaluation.of(familiar, foreign, names=NAMES)
    assert (e.auroc_novelty, e.fpr95_novelty, e.auroc_picture) == (1.0, 0.0, 1.0)


def test_without_a_threshold_it_says_so(familiar):
    plain = ScoredScenes([found([A], [0], [0.9], [0.1], threshold=None)], [there([A], [0])])
    e = DetectionEvaluation.of(plain, unknown(threshold=None), names=NAMES)
    assert (e.u_recall, e.a_ose, e.detector_a_ose) == (None, None, 2)
    assert "No threshold" in str(e)
    assert "No threshold" in e._repr_html_()
    assert "No threshold" not in str(DetectionEvaluation.of(familiar, unknown(), names=NAMES))


def test_scenes_in_which_nothing_is_found_have_scores():
    nothing = ScoredScenes([found([], [], [], [])], [there([A], [0])])
    e = DetectionEvaluation.of(nothing, ScoredScenes([found([], [], [], [])], None), names=NAMES)
    assert e.auroc_picture == 0.5
    assert (e.dece, e.laece, e.edge_nll, e.auroc_novelty, e.fpr95_novelty) == (None,) * 5
    json.dumps(e.to_dict())


def test_the_report_counts_pictures_targets_and_detections(familiar):
    e = DetectionEvaluation.of(familiar, unknown(), names=NAMES)
    assert "2 pictures, 2 classes, against 1 foreign pictures" in str(e)
    assert "pictures: dece 0." in repr(e)
    assert "U-Recall" in e._repr_html_()
    plain = json.loads(json.dumps(e.to_dict()))
    assert plain["scores"]["dog"]["dece"] == e.outputs["dog"].dece
    assert (plain["rows"], plain["targets"], plain["detections"], plain["matched"]) == (2, 3, 3, 2)
    assert sum(plain["reliability"]["rows"]) == 3


def test_a_picture_without_an_answer_is_counted(familiar):
    edges, none = torch.zeros(0, 4), torch.zeros(0)
    lost = Detections(edges, edges, none.long(), none, torch.zeros(0, 3), none, False, 0.5)
    more = ScoredScenes([*familiar.detections, lost], [*familiar.targets, there([A], [0])])
    e = DetectionEvaluation.of(more, names=NAMES)
    assert e.invalid == 1
    assert "No finite prediction for 1 of 3 pictures: they have no detections." in str(e)
