"""The export of a detector's model: its graph, its metadata, and the comparison with `predict`."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..data.fingerprint import network_fingerprint
from ..data.trees import structure
from ..export.detector_file import ANSWERS, LIKELIHOOD, DetectorFacts
from ..export.errors import ExportError, refuse_network
from ..export.metadata import COLUMNS, PREFIX, ColumnTexts, Date, common
from ..export.module.experts import Chosen
from ..likelihoods.detections import Detections
from ..metrics.boxes import corners
from .adapter import Detection, cell_weights, probabilities, with_background
from .class_gaussians import ClassGaussians, FeaturePool
from .pictures import as_pictures
from .state import DetectorState

BATCHES = (1, 4)  # pictures that are compared at a time
FACTORS = (1.0, 0.5, torch.nan, 1.5)  # of the compared pictures: the third is not valid
PROBABILITY_TOLERANCE = 1e-3  # a network rounds its logits
TOLERANCE = 1e-4  # boxes over the picture's side, std over itself, novelty; plus the effect of
FEATURE_ROUNDING = 3.0  # units in the last place of the features, in the network's precision
TIE = 1e-3  # relative gap of two classes, below which either may be the likeliest
MIN_CONFIDENCE = 1e-30  # every query counts
Answers = Mapping[str, Tensor]


@dataclass(frozen=True)
class DetectorSource:
    """Export source of a `DetectionModel`; see `trustgp.export.verify.ExportSource`."""

    model: Any
    limits: tuple[float | None, float | None]  # of the novelty, of detections and of pictures

    def inputs(self, example: Any) -> Tensor:
        """Example pictures in the detector's input format."""
        if example is None:
            raise ValueError("pass example_inputs=, a few pictures as the detector takes them.")
        detector = self.model.state.detector
        pictures = as_pictures(example, channels=detector.channels, size=self.model.state.only_size)
        if not isinstance(pictures, Tensor) or not len(pictures):
            raise ValueError("example_inputs= must hold at least one picture, all of one size.")
        return pictures.to(detector.place.dtype)

    def graph(self, inputs: Tensor, *, plain: bool) -> nn.Module:
        """Graph of the detector, the Gaussians of its features, and the calibration."""
        return DetectorGraph(self.model.state, plain=plain)

    def facts(self, inputs: Tensor, columns: ColumnTexts, date: Date) -> dict[str, str]:
        """Metadata of the file: limits of the selection, thresholds and provenance."""
        for name, given in zip(COLUMNS, columns, strict=True):
            if given is not None:
                raise ValueError(f"{name}= is not for detectors: they take pictures and give boxes.")
        state, settings = self.model.state, self.model.settings
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
        """Raise ExportError unless another form agrees with `predict` for every query, selected or not."""
        state: DetectorState = self.model.state
        adapter = replace(state.settings.adapter, suppression=None)
        settings = Detection(MIN_CONFIDENCE, most=2**31, adapter=adapter)
        every = type(self.model)(replace(state, settings=settings))
        factors = torch.tensor(FACTORS).to(inputs)[:, None, None, None]
        pictures, worst = inputs[torch.arange(max(BATCHES)) % len(inputs)] * factors, {}
        for batch in BATCHES:
            answers = {name: torch.as_tensor(value).cpu() for name, value in run(pictures[:batch]).items()}
            if answers.keys() != set(ANSWERS):
                raise ExportError(f"the {what} has {', '.join(answers)}; {', '.join(ANSWERS)} are needed.")
            for i, one in enumerate(every.predict(pictures[:batch])):
                own = {name: value[i] for name, value in answers.items()}
                for name, excess in differences(one.cpu(), own, state, max(inputs.shape[2:])).items():
                    worst[name] = max(excess, worst.get(name, 0.0))
        name = max(worst, key=lambda key: worst[key])
        if not worst[name] <= 1.0:
            others = ", ".join(sorted(key for key in worst if not worst[key] <= 1.0 and key != name))
            gap = f"'{name}' of the {what} differs from predict, by {worst[name]:.1f} times the tolerance"
            raise ExportError(f"{gap}; no file was written. Also different: {others or 'nothing'}.")


def differences(expected: Detections, answers: Answers, state: DetectorState, side: int) -> dict[str, float]:
    """Largest difference of each output over all queries of a picture, in units of its tolerance. Each
    detection is compared with the closest query, as their orders may differ."""
    if not expected.valid or not bool(answers["valid"]):
        return {"valid": 0.0 if not bool(answers["valid"]) and not expected.valid else torch.inf}
    if len(answers["confidence"]) != len(expected):
        return {"confidence": torch.inf}
    match = _closest(expected, answers, side)
    two = expected.probabilities[:, :-1].topk(min(2, expected.probabilities.shape[1] - 1), dim=1).values
    clear = (two[:, 0] - two[:, -1] > TIE * two[:, 0]) | (two.shape[1] < 2)  # else its class may be another
    allowed, worst = _tolerances(expected, state, side), {}
    for name in Detections.ARRAYS:
        gaps = (getattr(expected, name).double() - answers[name][match].double()).abs() / allowed[name]
        kept = gaps if name in ("boxes", "confidence") else gaps[clear]
        worst[name] = max(kept.nan_to_num(torch.inf).flatten().tolist(), default=0.0)
    off = abs(float(answers["picture_novelty"]) - expected.picture_novelty)
    return worst | {"picture_novelty": off / float(allowed["picture_novelty"])}


def _tolerances(expected: Detections, state: DetectorState, side: int) -> dict[str, Tensor]:
    r"""Tolerance of each output.

    A change :math:`\delta` of the features changes u, which is about 1, by
    :math:`2 |R^\top \delta| + |R^\top \delta|^2`, which is large where the features hardly differ between
    pictures. It changes the novelty by that times the steepest slope of the tail shares.
    """
    epsilon = FEATURE_ROUNDING * torch.finfo(state.detector.place.dtype).eps

    def rounding(pool: FeaturePool, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Effect of rounded features on the novelty, [k], and relative effect on u of the first kind, [k]."""
        changes = []
        for own in pool.gaussians:
            size = own.root.flatten(1).double().norm(dim=1) / own.root.shape[1] ** 0.5
            reach = (epsilon * own.centre.double().norm(dim=1) * size).cpu()[labels]  # |R^T delta|
            changes.append(2.0 * reach + reach.square())
        steep = pool.tails[1].amax(dim=1).cpu()  # of each kind
        return (torch.stack(changes, dim=1) @ steep) / len(steep), changes[0]

    picture_novelty, picture = rounding(state.pictures, torch.tensor([0]))
    novelty, own = rounding(state.detections, expected.labels)
    growth, by_picture = float(state.edges.growth), float(state.edges.picture)
    rough = state.local.centre.abs() / state.local.spread  # size of a feature over its spread
    local = epsilon * float(state.edges.local * (rough @ state.local.weights.abs()).amax())
    return {
        "boxes": torch.tensor(TOLERANCE * side),
        "std": expected.std.double() * (TOLERANCE + growth * own + by_picture * picture + local)[:, None],
        "labels": torch.tensor(0.5),
        "confidence": torch.tensor(PROBABILITY_TOLERANCE),
        "probabilities": (PROBABILITY_TOLERANCE + own)[:, None],
        "novelty": TOLERANCE + novelty,
        "picture_novelty": TOLERANCE + picture_novelty[0],
    }


def _closest(expected: Detections, answers: Answers, side: int) -> Tensor:
    """Index of the query closest to each expected detection, by box, confidence and class, int64, [Q]."""
    rows = [
        torch.cat([one["boxes"] / side, one["confidence"][:, None], one["labels"][:, None]], dim=1).double()
        for one in ({name: getattr(expected, name) for name in Detections.ARRAYS}, answers)
    ]
    step = max(1, 2**24 // max(1, len(rows[1])))  # at a time, so that many queries take little memory
    return torch.cat([torch.cdist(part, rows[1]).argmin(dim=1) for part in rows[0].split(step)])


class DetectorGraph(nn.Module):
    """The computations of `DetectionModel.predict` for all queries, by the state's own code where possible.
    No shape depends on the picture's content; `trustgp.export.detector_file` selects the detections.

    For an invalid picture, where it or the detector's output is not finite, every confidence is 0, every
    novelty 1, and every standard deviation infinite. For `plain` see `trustgp.export.module.experts`.
    """

    def __init__(self, state: DetectorState, *, plain: bool) -> None:
        super().__init__()
        refuse_network(state.network)
        self.network, self.state, self.detector = state.network, state, state.detector
        place = self.detector.place
        self.by_class, self.by_picture = nn.ModuleList(), nn.ModuleList()
        for own in state.detections.gaussians:
            experts = [ClassExpert(own, label).to(place) for label in range(len(own.centre))]
            stacked = StackedExperts(own, slice(None)).to(place)
            self.by_class.append(stacked if plain else Chosen(experts, [experts[0].centre[None]]))
        for own in state.pictures.gaussians:
            self.by_picture.append(ClassExpert(own, 0).to(place))

    @torch.no_grad()
    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Outputs by name, for pictures [n, channels, height, width]: "boxes" and "std" [n, Q, 4], left, top,
        right, bottom in pixels; "labels", int64, "confidence" and "novelty" [n, Q]; "probabilities"
        [n, Q, C + 1]; "picture_novelty" and "valid", bool, [n]."""
        outputs, state, classes = self.detector(images), self.state, self.detector.labels
        n, queries = outputs.logits.shape[:2]
        confidence, labels = probabilities(outputs.logits, classes).max(dim=2)
        boxes = corners(outputs.boxes) * outputs.boxes.new_tensor([images.shape[3], images.shape[2]] * 2)
        cells = outputs.cells.flatten(1, 2)  # [n, height * width, D]
        weights = cell_weights(outputs.boxes.to(cells), *outputs.cells.shape[1:3])
        features = outputs.features.flatten(0, 1)
        own = features, (weights @ cells).flatten(0, 1)
        whole = outputs.features.mean(dim=1), cells.mean(dim=1)
        each = zip(self.by_class, own, strict=False)
        variances = torch.stack([expert(labels.flatten(), part)[0] for expert, part in each], dim=1)
        pairs = zip(self.by_picture, whole, strict=False)
        pictures = torch.stack([expert(part)[0] for expert, part in pairs], dim=1)
        variance, picture = variances[:, 0], pictures[:, 0]  # u [n * Q], w [n]
        local = state.local(features, outputs.boxes.flatten(0, 1))
        logits = with_background(outputs.logits, classes).flatten(0, 1)
        chances = state.temperature(logits, variance).unflatten(0, (n, queries))
        each = picture[:, None].expand(n, queries).flatten()
        std = state.edges.std(variance, each, local).unflatten(0, (n, queries))
        parts = (images.to(boxes), outputs.logits, outputs.boxes, outputs.features, outputs.cells, pictures)
        # anything but a finite number, times 0, is not 0
        valid = torch.stack([(part.reshape(n, -1) * 0.0).sum(dim=1) for part in parts]).sum(dim=0) == 0
        novelty = state.detections(variances).to(boxes)
        nothing = torch.tensor([0.0] * classes + [1.0]).to(boxes)
        by_query = valid[:, None]
        answers = {
            "boxes": torch.where(by_query[..., None], boxes, 0.0),
            "std": torch.where(by_query[..., None], std.to(boxes), math.inf),
            "labels": labels,
            "confidence": torch.where(by_query, confidence, 0.0),
            "probabilities": torch.where(by_query[..., None], chances.to(boxes), nothing),
            "novelty": torch.where(by_query, novelty.unflatten(0, (n, queries)), 1.0),
            "picture_novelty": torch.where(valid, state.pictures(pictures).to(boxes), 1.0),
            "valid": valid,
        }
        return {name: answers[name] for name in ANSWERS}


class ClassExpert(nn.Module):
    """One or several classes of `ClassGaussians`: variance u of features, in the precision of the network."""

    centre: Tensor  # m_c [..., d]
    root: Tensor  # R_c [..., d, d]

    def __init__(self, gaussians: ClassGaussians, label: int | slice) -> None:
        super().__init__()
        self.register_buffer("centre", gaussians.centre[label].clone())
        self.register_buffer("root", gaussians.root[label].clone())

    def forward(self, features: Tensor) -> tuple[Tensor]:
        """Variance u [...] of features [..., d]."""
        white = (features - self.centre) @ self.root
        return ((white * white).sum(dim=-1),)


class StackedExperts(ClassExpert):
    """Experts of all classes, for rows of any class; a compiler sums without storing [m, d, d] numbers."""

    def forward(self, labels: Tensor, features: Tensor) -> tuple[Tensor]:  # pyright: ignore
        """Variance u [m] of rows [m, d] with classes [m]."""
        white = ((features - self.centre[labels])[:, :, None] * self.root[labels]).sum(dim=1)
        return ((white * white).sum(dim=-1),)
