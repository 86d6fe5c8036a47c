"""A detector's logits and boxes, features of its queries and of their boxes, and the targets that they match.

The features of a query are the output of the last attention before the heads: in the DETR family the
cross-attention to the picture's features, in YOLOS the attention of its token to all others. The features of
its box are the mean of the cells inside the box, in the last map of the picture: in the DETR family the
encoder's output. Forward hooks find both during a pass, so that no detector need be listed by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from ..data.trees import concatenate
from ..math.quantiles import check_share
from ..metrics.boxes import corners, generous_overlaps, overlaps, select_detections
from .pictures import BoxTargets

ATTENTION = ("attention", "attn")  # in the lower-case name of a class
NORMALISATION = ("layernorm", "batchnorm")  # likewise; over a whole map, as GroupNorm does, a mean is lost
LOGITS, BOXES = "logits", "pred_boxes"  # keys of a detector's outputs
NEEDED = (
    "Detectors are networks that return logits [n, queries, classes] and pred_boxes [n, queries, 4], "
    "centre and size over the picture's, as transformers' detectors do: as an object, a dict, or a tuple"
)
CLASS_COST, DISTANCE_COST, OVERLAP_COST = 1.0, 5.0, 2.0  # weights of a match, as in DETR


@dataclass(frozen=True)
class Adapter:
    """Settings of a custom detector: the modules that give its features, and its number of classes.

    Args:
        seen: Name of the module, or names of several, that output the features of each query: [n, Q, d], or
            a map [n, d, height, width] whose cells are the queries, row by row. The queries of several, such
            as maps of several scales, are concatenated. None: the last attention.
        cells: Name of the module that outputs the cells of the picture, a map [n, d, height, width]; or
            names of two, where the first gives tokens [n, height * width, d] and the second any map of that
            height and width. None: the last LayerNorm or BatchNorm with such an output; (): none.
        labels: The number of classes. None: `config.num_labels`.
        suppression: Overlap above which the less confident of two boxes of one class is dropped, for
            detectors that find an object several times. None: no box is dropped.

    Examples:
        >>> adapter = trustgp.detection.Adapter(seen=("fine", "coarse"), labels=2)
    """

    seen: str | tuple[str, ...] | None = None
    cells: str | tuple[str, ...] | None = None
    labels: int | None = None
    suppression: float | None = None

    def __post_init__(self) -> None:
        if self.labels is not None and self.labels < 1:
            raise ValueError(f"labels={self.labels}; a detector has at least one class.")
        if self.suppression is not None:
            check_share("suppression", self.suppression, 0.5)


@dataclass(frozen=True)
class DetectorOutputs:
    """Outputs of a detector for n pictures with Q queries each."""

    logits: Tensor  # of the classes, [n, Q, C], or with "no object" last, [n, Q, C + 1]
    boxes: Tensor  # centre and size over the picture's, [n, Q, 4]
    features: Tensor  # of each query, [n, Q, d]
    cells: Tensor  # of the picture, [n, height, width, D]; D = 0: there are none


class Detector:
    """A detector, with hooks on the modules that give the features of its queries."""

    def __init__(self, network: Any, adapter: Adapter) -> None:
        self.network, self.adapter = network, adapter
        config = getattr(network, "config", None)
        labels = getattr(config, "num_labels", None) if adapter.labels is None else adapter.labels
        if not isinstance(labels, int) or labels < 1:
            what = f"a {type(network).__name__} has no config.num_labels, the number of its classes"
            raise ValueError(f"{what}; pass adapter=Adapter(labels=...). {NEEDED}.")
        self.labels = labels
        self.channels: int = getattr(config, "num_channels", None) or 3  # of the pictures it takes
        self.names: tuple[str, ...] = self._checked("seen")  # of modules; empty before they are found
        self.cells: tuple[str, ...] | None = None if adapter.cells is None else self._checked("cells")

    def _checked(self, option: str) -> tuple[str, ...]:
        given = getattr(self.adapter, option)
        names = (given,) if isinstance(given, str) else given or ()
        try:
            for name in names:
                self.network.get_submodule(name)
        except AttributeError as error:
            raise ValueError(f"Adapter({option}={given!r}): the network has no such module.") from error
        return tuple(names)

    @property
    def place(self) -> Tensor:
        """A tensor with the device and precision of the network."""
        return next(self.network.parameters())

    @torch.no_grad()
    def __call__(self, images: Tensor) -> DetectorOutputs:
        """Outputs for pictures [n, channels, height, width]; the first call also finds the modules."""
        if not self.names:
            self.names = self._find(images[:2])
        if self.cells is None:
            self.cells = self._find_cells(images[:2])
        modules = {name: self.network.get_submodule(name) for name in (*self.names, *self.cells)}
        logits, boxes, captured = self._run(images, modules)
        queries = logits.shape[1]
        parts = {name: _by_query(captured.get(name), len(images), queries) for name in self.names}
        if missing := [name for name, part in parts.items() if part is None]:
            raise ValueError(f"'{missing[0]}' has no output with a row for each of {queries} queries.")
        features = torch.cat(list(parts.values()), dim=1)  # pyright: ignore
        if features.shape[1] != queries:
            what = f"{', '.join(self.names)}: {features.shape[1]} rows, but {queries} queries"
            raise ValueError(f"{what}; name modules whose outputs have, together, a row for each.")
        return DetectorOutputs(logits, boxes, features, self._cells(captured, boxes))

    def _cells(self, captured: Mapping[str, Any], boxes: Tensor) -> Tensor:
        if not self.cells:
            return boxes.new_zeros(len(boxes), 1, 1, 0)
        output, grid = captured.get(self.cells[0]), captured.get(self.cells[-1])
        if isinstance(output, Tensor) and output.ndim == 4:
            return output.permute(0, 2, 3, 1)
        shape = grid.shape[2:] if isinstance(grid, Tensor) and grid.ndim == 4 else (0, 0)
        if isinstance(output, Tensor) and output.ndim == 3 and output.shape[1] == shape[0] * shape[1]:
            return output.unflatten(1, tuple(shape))
        raise ValueError(f"Adapter(cells={self.cells!r}): no map, or no token for each of its cells.")

    def _run(self, images: Tensor, modules: Mapping[str, nn.Module]) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Logits, boxes, and the outputs of modules by name, in the order of their last calls."""
        captured: dict[str, Any] = {}

        def keep(name: str, module: nn.Module, arguments: tuple, output: Any) -> None:
            captured.pop(name, None)  # the last call counts, and comes last
            captured[name] = output[0] if isinstance(output, (tuple, list)) and output else output

        with ExitStack() as hooks:
            for name, module in modules.items():
                hooks.enter_context(module.register_forward_hook(partial(keep, name)))
            logits, boxes = _parse_outputs(self.network(images.to(self.place)))
        if logits.shape[-1] not in (self.labels, self.labels + 1):
            what = f"the detector gives {logits.shape[-1]} logits for {self.labels} classes"
            raise ValueError(f"{what} and perhaps no object; pass adapter=Adapter(labels=...).")
        return logits, boxes, captured

    def _find_cells(self, pictures: Tensor) -> tuple[str, ...]:
        """Name of the last normalisation that outputs a map, or names of one with its tokens and of a map."""
        shapes: dict[str, tuple[int, ...]] = {}

        def keep(name: str, module: nn.Module, arguments: tuple, output: Any) -> None:
            if isinstance(output, Tensor) and len(output) == len(pictures) and output.ndim in (3, 4):
                shapes.pop(name, None)
                shapes[name] = tuple(output.shape)

        with ExitStack() as hooks:
            for name, module in self.network.named_modules():
                hooks.enter_context(module.register_forward_hook(partial(keep, name)))
            queries = _parse_outputs(self.network(pictures.to(self.place)))[0].shape[1]
        maps = {shape[2] * shape[3]: name for name, shape in shapes.items() if len(shape) == 4}
        for name, shape in reversed(shapes.items()):
            kind = type(self.network.get_submodule(name)).__name__.lower()
            if not any(word in kind for word in NORMALISATION):
                continue
            if len(shape) == 4:
                return (name,)
            if shape[1] in maps and shape[1] != queries:
                return name, maps[shape[1]]
        return ()

    def _find(self, pictures: Tensor) -> tuple[str, ...]:
        """Name of the last attention module whose output has a row for each query."""
        named = dict(self.network.named_modules())
        attention = {m for m in named.values() if any(word in type(m).__name__.lower() for word in ATTENTION)}
        inner = {name: m for name, m in named.items() if attention.intersection(m.modules()) == {m}}
        logits, _, captured = self._run(pictures, inner)
        for name in reversed(captured):
            features = _by_query(captured[name], len(pictures), logits.shape[1])
            if features is not None and features.shape[1] == logits.shape[1]:
                return (name,)
        what = f"{type(self.network).__name__} has no attention with a row for each of its {logits.shape[1]}"
        raise ValueError(f'{what} queries; name the module of their features: adapter=Adapter(seen="...").')


def _parse_outputs(outputs: Any) -> tuple[Tensor, Tensor]:
    if isinstance(outputs, Mapping):
        pair = outputs.get(LOGITS), outputs.get(BOXES)
    elif hasattr(outputs, LOGITS):
        pair = getattr(outputs, LOGITS), getattr(outputs, BOXES, None)
    else:
        pair = outputs[:2] if isinstance(outputs, (tuple, list)) and len(outputs) >= 2 else (None, None)
    logits, boxes = pair
    if isinstance(logits, Tensor) and isinstance(boxes, Tensor) and boxes.shape == (*logits.shape[:2], 4):
        return logits, boxes
    shapes = [tuple(one.shape) if isinstance(one, Tensor) else type(one).__name__ for one in pair]
    raise ValueError(f"the network gives logits {shapes[0]} and boxes {shapes[1]}. {NEEDED}.")


def _by_query(output: Any, n: int, queries: int) -> Tensor | None:
    """The output of a module as [n, rows, d], where rows are queries; None: it has no such form."""
    if not isinstance(output, Tensor) or output.ndim not in (3, 4) or not output.is_floating_point():
        return None
    if output.ndim == 4:  # a map
        return output.flatten(2).transpose(1, 2) if len(output) == n else None
    if len(output) == n:
        # queries among other tokens are the last ones
        return output[:, -queries:] if output.shape[1] > queries else output
    return output.transpose(0, 1) if output.shape[:2] == (queries, n) else None


@dataclass(frozen=True)
class Detection:
    """Settings of a fitted detector: the options of `trustgp.detection.fit`.

    Examples:
        >>> settings = trustgp.Detection(threshold=0.3)
    """

    threshold: float = 0.5
    overlap: float = 0.5
    most: int = 100
    adapter: Adapter = Adapter()

    def __post_init__(self) -> None:
        check_share("threshold", self.threshold, 0.5)
        check_share("overlap", self.overlap, 0.5)
        if self.most < 1:
            raise ValueError(f"most={self.most}; at least one query must be kept.")
        if not isinstance(self.adapter, Adapter):
            raise ValueError(f"adapter={self.adapter!r}; trustgp.detection.Adapter(...) is needed.")


@dataclass(frozen=True)
class QueryRows:
    """Rows of queries with labels, and features of the pictures that they belong to."""

    features: Tensor  # of the query, [m, d]
    logits: Tensor  # of the classes and, last, of no object, [m, C + 1]
    picture: Tensor  # number of the picture, int64, [m]
    errors: Tensor  # its edges less the target's, in pixels, [m, 4]; nan where the query matches none
    labels: Tensor  # true classes, int64, [m]; the last one, "no object", where it matches none
    kept: Tensor  # whether it is confident enough to be a detection, bool, [m]
    pictures: Tensor  # mean features of all queries of each picture, [n, d]
    inside: Tensor  # mean of the cells inside its box, [m, D]
    cells: Tensor  # mean of all cells of each picture, [n, D]
    boxes: Tensor  # centre and size over the picture's, [m, 4]

    @classmethod
    def joined(cls, parts: Sequence[QueryRows]) -> QueryRows:
        """Rows of all parts, concatenated, with the pictures numbered in this order."""
        table = {one.name: torch.cat([getattr(part, one.name) for part in parts]) for one in fields(cls)}
        starts = accumulate((len(part.pictures) for part in parts), initial=0)
        numbers = [part.picture + start for part, start in zip(parts, starts, strict=False)]
        return cls(**{**table, "picture": torch.cat(numbers)})

    @property
    def predicted(self) -> Tensor:
        """The class that the detector predicts, int64, [m]."""
        return self.logits[:, :-1].argmax(dim=1)

    @property
    def matched(self) -> Tensor:
        """Indices of rows that match a target."""
        return torch.isfinite(self.errors).all(dim=1).nonzero().flatten()

    @property
    def one_class(self) -> Tensor:
        """Class of each picture, always 0 as pictures have one class, int64, [n]."""
        return torch.zeros(len(self.pictures), dtype=torch.int64)


def probabilities(logits: Tensor, num_labels: int) -> Tensor:
    """Class probabilities without "no object", [n, Q, C]: softmax if that has a logit, else sigmoids."""
    return logits.sigmoid() if logits.shape[-1] == num_labels else logits.softmax(dim=-1)[..., :num_labels]


def with_background(logits: Tensor, num_labels: int) -> Tensor:
    """Logits with "no object" last; where classes are sigmoids, its logit is 0, which keeps their odds."""
    return torch.nn.functional.pad(logits, (0, 1)) if logits.shape[-1] == num_labels else logits


def kept(chances: Tensor, boxes: Tensor, settings: Detection) -> tuple[Tensor, Tensor]:
    """Picture and query of each detection, the most confident of a picture first, int64, [m] each, from
    probabilities [n, Q, C] and boxes, centre and size, [n, Q, 4]."""
    best, labels = chances.max(dim=2)
    limits = {"threshold": settings.threshold, "most": settings.most}
    return select_detections(best, labels, corners(boxes), **limits, suppress=settings.adapter.suppression)


def cell_weights(boxes: Tensor, height: int, width: int) -> Tensor:
    """Weights of the cells of a map, [..., height * width], in boxes [..., 4], centre and size over the
    picture's: equal for cells whose centre is at most half a cell outside the box, 0 for the others."""
    sides = []
    for axis, count in ((0, width), (1, height)):
        centre = (torch.arange(count, device=boxes.device, dtype=boxes.dtype) + 0.5) / count
        away = (centre - boxes[..., axis, None]).abs()
        sides.append((away <= 0.5 * boxes[..., axis + 2, None] + 0.5 / count).to(boxes.dtype))
    inside = (sides[1][..., :, None] * sides[0][..., None, :]).flatten(-2)
    return inside / inside.sum(dim=-1, keepdim=True).clamp_min(1.0)


def mean_inside(outputs: DetectorOutputs, picture: Tensor, query: Tensor) -> Tensor:
    """Mean of the cells inside the box of each query, [m, D]; queries must be in the order of pictures."""
    cells = outputs.cells
    weights = cell_weights(outputs.boxes[picture, query].to(cells), *cells.shape[1:3])
    parts = weights.split(torch.bincount(picture, minlength=len(cells)).tolist())
    return torch.cat([part @ own.flatten(0, 1) for part, own in zip(parts, cells, strict=True)])


def match(probabilities: Tensor, boxes: Tensor, targets: BoxTargets, *, side: float) -> tuple[Tensor, Tensor]:
    """Query of each target [k], -1 where queries are too few, and the overlap of its box [k]: the Hungarian
    assignment by class probabilities [Q, C] and boxes in pixels [Q, 4]; distances are divided by `side`."""
    from scipy.optimize import linear_sum_assignment  # half a second to import

    if len(targets.labels) == 0:
        return torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    boxes, probabilities = boxes.detach().cpu().double(), probabilities.detach().cpu().double()
    true = targets.boxes.cpu().double()
    cost = (
        -CLASS_COST * probabilities[:, targets.labels.cpu()]
        + DISTANCE_COST * torch.cdist(boxes, true, p=1) / side
        - OVERLAP_COST * generous_overlaps(boxes, true)
    )
    query, target = (torch.from_numpy(part) for part in linear_sum_assignment(cost.numpy()))
    matched, shared = torch.full((len(true),), -1), true.new_zeros(len(true))
    matched[target], shared[target] = query, overlaps(boxes, true)[query, target]
    return matched, shared


def labelled_rows(
    detector: Detector, images: Tensor, targets: Sequence[BoxTargets], settings: Detection
) -> QueryRows:
    """Rows of the queries that match a target, and of the detections that match none."""
    outputs, parts = detector(images), []
    height, width = images.shape[2:]
    size = torch.tensor([width, height, width, height], dtype=torch.float32)
    chances = probabilities(outputs.logits, detector.labels)
    picture, query = (part.cpu() for part in kept(chances, outputs.boxes, settings))
    chances, edges = chances.cpu(), corners(outputs.boxes).cpu() * size
    for i, true in enumerate(targets):
        detected = query[picture == i]
        matched, shared = match(chances[i], edges[i], true, side=float(max(height, width)))
        hit = (shared >= settings.overlap) & (matched >= 0)
        false = detected[~torch.isin(detected, matched[hit])]
        every = torch.cat([matched[hit], false])
        off = (edges[i][matched[hit]] - true.boxes[hit]).float()
        errors = torch.cat([off, off.new_full((len(false), 4), torch.nan)])
        labels = torch.cat([true.labels[hit], torch.full_like(false, detector.labels)])
        parts.append((torch.full_like(every, i), every, errors, labels, torch.isin(every, detected)))
    image, every, errors, labels, counts = concatenate(parts)
    place = image.to(outputs.logits.device), every.to(outputs.logits.device)
    features, logits = outputs.features[place], with_background(outputs.logits[place], detector.labels)
    pictures, cells = outputs.features.mean(dim=1).cpu(), outputs.cells.mean(dim=(1, 2)).cpu()
    own = features.cpu(), logits.cpu(), image, errors, labels, counts, pictures
    return QueryRows(*own, mean_inside(outputs, *place).cpu(), cells, outputs.boxes[place].cpu())
