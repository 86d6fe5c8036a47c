"""All scores of a detector with error bars, in a report like the reports of rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from ..likelihoods.detections import Detections
from .boxes import on_unknown, open_set_errors, unknown_recall
from .classes import binned
from .detections import DECE_BINS, detection_calibration_error, localisation_calibration_error, match_targets
from .score_report import RELIABILITY, Reliability, RowCounts, ScoreReport, score_field, separation

Values = dict[str, float | None]
OVERLAP = 0.5  # from which a detection has found an object


@dataclass(frozen=True, kw_only=True)
class DetectionScores:
    """Scores of one class, or of all; None where a score is for all classes only, or has no detections."""

    # D-ECE compares confidence with precision; LaECE with precision times overlap, by class.
    dece: float | None = score_field("D-ECE (20 bins)", "0", share=True)
    detector_dece: float | None = score_field("... of the detector's own confidence", share=True)
    laece: float | None = score_field("LaECE (25 bins)", "0", share=True)
    detector_laece: float | None = score_field("... of the detector's own confidence", share=True)
    edge_nll: float | None = score_field("NLL of an edge", "low")  # mean over matched targets, in nats
    edge_coverage: float | None = score_field("edges inside the 95 % interval", "95 %", share=True)
    # 81 % where the errors of the edges are independent, and up to 95 % where they go together.
    box_coverage: float | None = score_field("boxes with all four inside", "81 % to 95 %", share=True)
    # Separation of these detections from those on foreign pictures, or on unknown objects where these are
    # labelled. Pictures are ranked by the largest novelty, of detections or their own, over its threshold.
    auroc_novelty: float | None = score_field("AUROC by novelty", "1", foreign=True)
    fpr95_novelty: float | None = score_field("FPR95 by novelty", "0 %", share=True, foreign=True)
    auroc_picture: float | None = score_field("AUROC of pictures", "1", foreign=True)
    # Of unknown objects, by the model's threshold.
    u_recall: float | None = score_field("U-Recall: unknown objects marked", "1", share=True, foreign=True)
    a_ose: float | None = score_field("A-OSE: unknown, called known", "0", foreign=True)
    detector_a_ose: float | None = score_field("... with none marked novel", foreign=True)


@dataclass(frozen=True)
class SceneCounts(RowCounts):
    """Counts of pictures, in place of rows, and of their targets and detections."""

    noun: ClassVar[str] = "pictures"
    cost: ClassVar[str] = "they have no detections"

    targets: int = 0
    detections: int = 0
    matched: int = 0  # targets that a detection matches
    ood_unknown: int = 0  # targets of a class that the detector does not have
    ood_detections: int = 0


@dataclass(frozen=True)
class ScoredScenes:
    """Detections in n pictures, and the true boxes; all on the CPU."""

    detections: Sequence[Detections]  # with error bars
    targets: Any  # of each picture; None: they are not known

    @property
    def marked(self) -> bool:
        """Whether the model has a threshold, above which detections are novel."""
        return all(one.threshold is not None for one in self.detections)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DetectionEvaluation(ScoreReport, Reliability, DetectionScores):
    """Scores of a detector with error bars on n pictures, in total and by class, and the curves behind them.

    A detection is right when it overlaps a target of its class by 0.5, each target once, the most confident
    detection first. Only detections that the model keeps are scored (`Detection(threshold=...)`). `dece`
    and `laece` use the probability that the error bar gives the detector's class; `trustgp.metrics`
    defines them as `detection_calibration_error` and `localisation_calibration_error`. Average precision,
    which no error bar changes, is left to pycocotools.

    Examples:
        >>> report = trustgp.evaluate(detections, (pictures, boxes), progress=False)
    """

    kind: ClassVar[type] = DetectionScores
    shown = ("dece", "edge_nll")
    curve_fields: ClassVar = {"reliability": RELIABILITY}

    scenes: ScoredScenes
    ood_scenes: ScoredScenes | None

    @classmethod
    def of(cls, scenes: ScoredScenes, ood: ScoredScenes | None = None, *, names: Sequence[str]) -> Self:
        """All scores, for classes with these names; `trustgp.evaluate` checks the arguments."""
        pairs = _Pairs(scenes, len(names))
        counts = {"targets": pairs.number, "detections": len(pairs.labels), "matched": int(pairs.hit.sum())}
        valid = [torch.tensor([one.valid for one in part.detections]) for part in (scenes, ood) if part]
        if ood is not None:
            unknown = [int((one.labels >= len(names)).sum()) for one in ood.targets or ()]
            counts |= {"ood_unknown": sum(unknown), "ood_detections": sum(map(len, ood.detections))}
        curve = binned(pairs.probability, pairs.hit.double(), bins=DECE_BINS)
        bins: dict[str, Any] = dict(zip(RELIABILITY.values(), curve, strict=True))
        return cls(
            **pairs.scores(torch.ones_like(pairs.hit)),
            **({} if ood is None else _foreign_scores(scenes, ood, len(names))),
            outputs={
                name: DetectionScores(**pairs.scores(pairs.labels == c)) for c, name in enumerate(names)
            },
            subject=f"{len(names)} {'class' if len(names) == 1 else 'classes'}",
            counts=SceneCounts(**vars(RowCounts.of(*valid)), **counts),
            **bins,
            scenes=scenes,
            ood_scenes=ood,
        )

    @property
    def warning(self) -> str:
        """Warning about pictures without a finite prediction, and about a missing threshold."""
        message = "No threshold: U-Recall and A-OSE need one; call model.threshold() first."
        needed = not self.scenes.marked and self.detector_a_ose is not None
        return " ".join([self.counts.warning, message if needed else ""]).strip()


class _Pairs:
    """Detections of all pictures, concatenated, and the targets of known classes that they match."""

    def __init__(self, scenes: ScoredScenes, num_classes: int) -> None:
        trained = [(one, one.labels < num_classes) for one in scenes.targets]
        self.targets = [replace(one, boxes=one.boxes[own], labels=one.labels[own]) for one, own in trained]
        self.number = sum(len(one.labels) for one in self.targets)
        pictures = zip(scenes.detections, self.targets, strict=True)
        matches = [match_targets(*pair, min_overlap=OVERLAP) for pair in pictures]
        which, shared = ([pair[i] for pair in matches] for i in (0, 1))
        self.hit, self.shared = torch.cat(which) >= 0, torch.cat(shared)
        labels, confidence, chances = (
            torch.cat([getattr(one, name) for one in scenes.detections])
            for name in ("labels", "confidence", "probabilities")
        )
        self.labels, self.confidence = labels, confidence.double().clamp(0, 1)
        self.probability = chances.double().gather(1, labels[:, None])[:, 0].clamp(0, 1)
        each = zip(scenes.detections, self.targets, which, strict=True)
        edges = [(one[w >= 0].to(torch.float64), true.boxes[w[w >= 0]].double()) for one, true, w in each]
        self.edge_nll = torch.cat([-one.distribution.log_prob(true) for one, true in edges])  # [k, 4]
        ends = [(*one.interval(0.95), true) for one, true in edges]
        self.inside = torch.cat([(low <= true) & (true <= high) for low, high, true in ends])  # [k, 4]

    def scores(self, own: Tensor) -> Values:
        """Scores of a subset of the detections, bool, [n]: calibration, and edges of matched detections."""
        right, shared, labels = self.hit[own].double(), self.shared[own], self.labels[own]
        values: dict[str, Tensor | None] = {}
        for prefix, mark in (("", self.probability[own]), ("detector_", self.confidence[own])):
            values[f"{prefix}dece"] = detection_calibration_error(mark, right)
            values[f"{prefix}laece"] = localisation_calibration_error(mark, shared, labels)
        if bool((matched := own[self.hit]).any()):
            values["edge_nll"], inside = self.edge_nll[matched].mean(), self.inside[matched]
            values["edge_coverage"] = inside.double().mean()
            values["box_coverage"] = inside.all(dim=1).double().mean()
        return {name: None if value is None else float(value) for name, value in values.items()}


def _foreign_scores(scenes: ScoredScenes, ood: ScoredScenes, num_classes: int) -> Values:
    """Separation of foreign pictures, and scores of unknown objects."""
    detections, shown = ood.detections, torch.ones(len(ood.detections), dtype=torch.bool)
    novelty, values = [one.novelty for one in detections], {}
    targets = ood.targets or ()
    if any(with_unknown := [bool((true.labels >= num_classes).any()) for true in targets]):
        boxes, shown = [one.boxes for one in detections], torch.tensor(with_unknown)
        each = zip(novelty, boxes, targets, strict=True)
        novelty = [new[on_unknown(own, true, num_classes=num_classes)] for new, own, true in each]
        none = [torch.zeros(len(own), dtype=torch.bool) for own in boxes]
        values["detector_a_ose"] = open_set_errors(boxes, none, targets, num_classes=num_classes)
        if scenes.marked:
            marks = [one.is_novel for one in detections]
            values["u_recall"] = unknown_recall(boxes, marks, targets, num_classes=num_classes)
            values["a_ose"] = open_set_errors(boxes, marks, targets, num_classes=num_classes)
    sides = torch.cat([one.novelty for one in scenes.detections]), torch.cat(novelty)
    worst = [torch.tensor([one.over_threshold for one in part]) for part in (scenes.detections, detections)]
    scores = separation({"novelty": sides}) if all(map(len, sides)) else {}
    scores["auroc_picture"] = separation({"picture": (worst[0], worst[1][shown])})["auroc_picture"]
    return {**values, **{name: float(value) for name, value in scores.items()}}
