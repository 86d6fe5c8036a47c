"""The export of a detector's model: its graph, its metadata, and the comparison with `predict`."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..data.fingerprint import network_fingerprint
from ..data.trees import structure
from ..export.detector_file import ANSWERS, LIKELIHOOD, DetectorFacts
from ..export.errors import ExportError
from ..export.metadata import COLUMNS, PREFIX, common
from ..likelihoods.detections import Detections
from .class_gaussians import ClassGaussians
from .graph import DetectorGraph
from .pictures import as_pictures
from .query_rows import Detection
from .state import DetectorState

BATCHES = (1, 4)  # pictures that are compared at a time
FACTORS = (1.0, 0.5, torch.nan, 1.5)  # of the compared pictures: the third is not valid
PROBABILITY_TOLERANCE = 1e-3  # a network rounds its logits
TOLERANCE = 1e-4  # boxes over the picture's side, std over itself, novelty; plus the effect of
FEATURE_ROUNDING = 3.0  # units in the last place of the features, in the network's precision
TIE = 1e-3  # relative gap of two classes, below which either may be the likeliest
MIN_CONFIDENCE = 1e-30  # every query counts


@dataclass(frozen=True)
class DetectorSource:
    """A `DetectionModel`, which takes pictures; see `trustgp.export.source.ExportSource`."""

    state: DetectorState
    limits: tuple[float | None, float | None]  # of the novelty, of detections and of pictures
    predict: Callable[[DetectorState, Tensor], list[Detections]]  # `DetectionModel.predict`

    @property
    def network(self) -> nn.Module:
        """The detector itself."""
        return self.state.network

    def inputs(self, example: Any) -> Tensor:
        """Some pictures as the detector takes them."""
        if example is None:
            raise ValueError("pass example_inputs=, a few pictures as the detector takes them.")
        detector = self.state.detector
        pictures = as_pictures(example, channels=detector.channels, size=self.state.only_size)
        if not isinstance(pictures, Tensor) or not len(pictures):
            raise ValueError("example_inputs= must hold at least one picture, all of one size.")
        return pictures.to(detector.place.dtype)

    def graph(self, inputs: Tensor, *, plain: bool) -> nn.Module:
        """The detector, the Gaussians of its features, and calibration."""
        return DetectorGraph(self.state, plain=plain)

    def facts(
        self, inputs: Tensor, columns: Sequence[Sequence[str] | None], date: str | datetime.date | None
    ) -> dict[str, str]:
        """Limits of the selection, thresholds and provenance."""
        for name, given in zip(COLUMNS, columns, strict=True):
            if given is not None:
                raise ValueError(f"{name}= is not for detectors: they take pictures and give boxes.")
        state, settings = self.state, self.state.settings
        names = getattr(getattr(state.network, "config", None), "id2label", None) or {}
        own = DetectorFacts(
            picture=(inputs.shape[1], inputs.shape[2], inputs.shape[3]),
            classes=tuple(str(names[label]) for label in sorted(names)),
            confidence_threshold=settings.threshold,
            most=settings.most,
            suppression=settings.adapter.suppression,
            df=float(state.edges.df),
            novelty_threshold=self.limits[0],
            picture_threshold=self.limits[1],
        )
        table = {
            **common(network_fingerprint(state.network), state.threshold, date),
            "likelihood": LIKELIHOOD,
            "detector": type(state.network).__name__,
            "training_rows": str(state.rows),
            "structure": structure(inputs),
            **own.texts(),
        }
        return {PREFIX + name: value for name, value in table.items()}

    def check(self, run: Callable[[Any], Mapping[str, Any]], inputs: Tensor, *, what: str) -> None:
        """Raise unless another form gives, for all queries, what `predict` gives for those it keeps."""
        adapter = replace(self.state.settings.adapter, suppression=None)
        every = replace(self.state, settings=Detection(MIN_CONFIDENCE, most=2**31, adapter=adapter))
        rows = torch.arange(max(BATCHES))
        factors = torch.tensor(FACTORS).to(inputs)[:, None, None, None]
        pictures, worst = inputs[rows % len(inputs)] * factors, {}
        for batch in BATCHES:
            answers = {name: torch.as_tensor(value).cpu() for name, value in run(pictures[:batch]).items()}
            if answers.keys() != set(ANSWERS):
                raise ExportError(f"the {what} has {', '.join(answers)}; {', '.join(ANSWERS)} are needed.")
            for i, one in enumerate(self.predict(every, pictures[:batch])):
                own = {name: value[i] for name, value in answers.items()}
                for name, excess in differences(one.cpu(), own, self.state, inputs.shape[2:]).items():
                    worst[name] = max(excess, worst.get(name, 0.0))
        name = max(worst, key=lambda key: worst[key])
        if not worst[name] <= 1.0:
            others = ", ".join(sorted(key for key in worst if not worst[key] <= 1.0 and key != name))
            gap = f"'{name}' of the {what} differs from predict, by {worst[name]:.1f} times the tolerance"
            raise ExportError(f"{gap}; no file was written. Also different: {others or 'nothing'}.")


def differences(
    expected: Detections, answers: Mapping[str, Tensor], state: DetectorState, sides: Sequence[int]
) -> dict[str, float]:
    """The largest difference of each answer over all queries of a picture, in units of its tolerance.

    Queries may come in another order than the detections, so each of these is compared with the closest.
    """
    if not expected.valid or not bool(answers["valid"]):
        return {"valid": 0.0 if not bool(answers["valid"]) and not expected.valid else torch.inf}
    if len(answers["confidence"]) != len(expected):
        return {"confidence": torch.inf}
    match = _closest(expected, answers, float(max(sides)))
    two = expected.probabilities[:, :-1].topk(min(2, expected.probabilities.shape[1] - 1), dim=1).values
    clear = (two[:, 0] - two[:, -1] > TIE * two[:, 0]) | (two.shape[1] < 2)  # else its class may be another
    allowed, worst = _tolerances(expected, state, float(max(sides))), {}
    for name in Detections.ARRAYS:
        gaps = (getattr(expected, name).double() - answers[name][match].double()).abs() / allowed[name]
        kept = gaps if name in ("boxes", "confidence") else gaps[clear]
        worst[name] = max(kept.nan_to_num(torch.inf).flatten().tolist(), default=0.0)
    off = abs(float(answers["picture_novelty"]) - expected.picture_novelty)
    return worst | {"picture_novelty": off / float(allowed["picture_novelty"])}


def _tolerances(expected: Detections, state: DetectorState, side: float) -> dict[str, Tensor]:
    r"""The tolerance of each answer.

    A change :math:`\delta` of the features changes u by
    :math:`2 \sqrt u |R^\top \delta| + |R^\top \delta|^2`, which is large where the features hardly differ
    between pictures.
    """
    label = torch.zeros(1, dtype=torch.int64)
    novelty = torch.tensor([expected.picture_novelty], dtype=torch.float64)
    picture_novelty, picture = _rounding(state, state.pictures, novelty, label)
    novelty, own = _rounding(state, state.classes, expected.novelty.double(), expected.labels)
    growth, by_picture = float(state.edges.growth), float(state.edges.picture)
    return {
        "boxes": torch.tensor(TOLERANCE * side),
        "std": expected.std.double() * (TOLERANCE + growth * own + by_picture * picture)[:, None],
        "labels": torch.tensor(0.5),
        "confidence": torch.tensor(PROBABILITY_TOLERANCE),
        "probabilities": (PROBABILITY_TOLERANCE + own)[:, None],
        "novelty": TOLERANCE + novelty,
        "picture_novelty": TOLERANCE + picture_novelty[0],
    }


def _rounding(
    state: DetectorState, gaussians: ClassGaussians, novelty: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """The effect of rounded features on the novelty, [k], and relative on u, [k]."""
    epsilon = FEATURE_ROUNDING * torch.finfo(state.detector.place.dtype).eps
    size = gaussians.root.flatten(1).double().norm(dim=1) / gaussians.root.shape[1] ** 0.5
    reach = (epsilon * gaussians.centre.double().norm(dim=1) * size).cpu()[labels]  # |R^T delta|
    variance = novelty / (1.0 - novelty).clamp_min(1e-12)
    change = 2.0 * variance.sqrt() * reach + reach.square()
    return change / (1.0 + variance).square(), change / variance.clamp_min(1e-3)


def _closest(expected: Detections, answers: Mapping[str, Tensor], side: float) -> Tensor:
    """The query closest to each expected detection, by box, confidence and class, int64, [Q]."""
    rows = [
        torch.cat([one["boxes"] / side, one["confidence"][:, None], one["labels"][:, None]], dim=1).double()
        for one in ({name: getattr(expected, name) for name in Detections.ARRAYS}, answers)
    ]
    step = max(1, 2**24 // max(1, len(rows[1])))  # at a time, so that many queries take little memory
    return torch.cat([torch.cdist(part, rows[1]).argmin(dim=1) for part in rows[0].split(step)])
