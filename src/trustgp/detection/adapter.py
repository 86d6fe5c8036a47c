"""A detector as it is asked: logits, boxes, and what each of its queries has seen of the picture.

What a query has seen is what the last attention before the heads gives it: in the DETR family what it reads
from the picture's features, in YOLOS what its token reads from all others. It is found by watching a pass, so
that no detector need be known by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..math.calibration import check_share

ATTENTION = ("attention", "attn")  # in the name of a class, in small letters
LOGITS, BOXES = "logits", "pred_boxes"  # of what a detector returns
NEEDED = (
    "Detection takes networks that return logits [n, queries, classes] and pred_boxes [n, queries, 4], "
    "centre and size over the picture's, as transformers' detectors do: as an object, a dict, or a tuple"
)


@dataclass(frozen=True)
class Adapter:
    """What cannot be seen from outside of a detector of one's own.

    Args:
        seen: Name of the module, or names of several, whose output is what each query has seen: [n, Q, d],
            or a map [n, d, height, width] whose places are the queries, line by line; those of several, such
            as the maps of several scales, are laid end to end. None: the last attention.
        labels: How many classes it knows. None: `config.num_labels`.
        suppression: The less sure of two boxes of one class that overlap by more than this is dropped, for
            detectors that say one thing several times. None: none is.
    """

    seen: str | tuple[str, ...] | None = None
    labels: int | None = None
    suppression: float | None = None

    def __post_init__(self) -> None:
        if self.labels is not None and self.labels < 1:
            raise ValueError(f"labels={self.labels}; a detector knows at least one class.")
        if self.suppression is not None:
            check_share("suppression", self.suppression, 0.5)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the modules; empty: they are to be found."""
        return () if self.seen is None else (self.seen,) if isinstance(self.seen, str) else tuple(self.seen)


@dataclass(frozen=True)
class DetectorOutputs:
    """What a detector says of n pictures with Q queries each."""

    logits: Tensor  # of the classes and, where there is one, last of no object, [n, Q, C] or [n, Q, C + 1]
    boxes: Tensor  # centre and size over the picture's, [n, Q, 4]
    seen: Tensor  # by each query, [n, Q, d]


class Detector:
    """A detector, watched where its queries see the picture."""

    def __init__(self, network: Any, adapter: Adapter) -> None:
        self.network, self.adapter = network, adapter
        config = getattr(network, "config", None)
        labels = getattr(config, "num_labels", None) if adapter.labels is None else adapter.labels
        if not isinstance(labels, int) or labels < 1:
            raise ValueError(
                f"the network, a {type(network).__name__}, does not say how many classes it knows "
                f"(config.num_labels); pass Detection(adapter=Adapter(labels=...)). {NEEDED}."
            )
        self.labels = labels
        self.channels: int = getattr(config, "num_channels", None) or 3  # of the pictures it takes
        self.names = adapter.names
        self._modules = [_submodule(network, name) for name in self.names]

    @property
    def place(self) -> Tensor:
        """A tensor of the device and the precision that it works with."""
        return next(self.network.parameters())

    @torch.no_grad()
    def __call__(self, images: Tensor) -> DetectorOutputs:
        """One pass of pictures [n, channels, height, width]; the first shows where to watch."""
        if not self.names:
            self.names, self._modules = self._find(images[:2])
        caught: dict[str, Any] = {}
        with ExitStack() as hooks:
            for name, module in zip(self.names, self._modules, strict=True):
                hooks.enter_context(module.register_forward_hook(_keep(caught, name)))
            logits, boxes = _told(self.network(images.to(self.place)))
        self._check(logits)
        parts = [_by_query(caught.get(name), len(images), logits.shape[1]) for name in self.names]
        if any(part is None for part in parts):
            missing = [name for name, part in zip(self.names, parts, strict=True) if part is None]
            raise ValueError(
                f"'{missing[0]}' gives nothing with a row for each of {logits.shape[1]} queries."
            )
        seen = torch.cat(parts, dim=1)  # pyright: ignore
        if seen.shape[1] != logits.shape[1]:
            raise ValueError(
                f"{', '.join(self.names)}: {seen.shape[1]} places, but {logits.shape[1]} queries; name "
                "modules whose outputs have, together, a place for each."
            )
        return DetectorOutputs(logits, boxes, seen)

    def _check(self, logits: Tensor) -> None:
        if logits.shape[-1] not in (self.labels, self.labels + 1):
            raise ValueError(
                f"the detector gives {logits.shape[-1]} logits for {self.labels} classes; so many, or one "
                "more for no object, are needed: say it, Detection(adapter=Adapter(labels=...))."
            )

    @torch.no_grad()
    def _find(self, pictures: Tensor) -> tuple[tuple[str, ...], list[nn.Module]]:
        """The last attention of a pass that answers each query."""
        inner = {name: module for name, module in self.network.named_modules() if _innermost(module)}
        caught: dict[str, Any] = {}
        with ExitStack() as hooks:
            for name, module in inner.items():
                hooks.enter_context(module.register_forward_hook(_keep(caught, name)))
            logits, _ = _told(self.network(pictures.to(self.place)))
        self._check(logits)
        for name in reversed(caught):
            found = _by_query(caught[name], len(pictures), logits.shape[1])
            if found is not None and found.shape[1] == logits.shape[1]:
                return (name,), [inner[name]]
        raise ValueError(
            f"in {type(self.network).__name__} there is no attention with an answer for each of its "
            f"{logits.shape[1]} queries; name the module whose output is what they have seen of the picture: "
            'Detection(adapter=Adapter(seen="...")).'
        )


def _submodule(network: nn.Module, name: str) -> nn.Module:
    try:
        return network.get_submodule(name)
    except AttributeError as error:
        raise ValueError(f"Adapter(seen={name!r}): the network has no such module.") from error


def _innermost(module: nn.Module) -> bool:
    """Whether this is attention, without attention inside."""
    parts = [one for one in module.modules() if any(name in type(one).__name__.lower() for name in ATTENTION)]
    return parts == [module]


def _keep(caught: dict[str, Any], name: str):
    def hook(module: nn.Module, arguments: tuple, output: Any) -> None:
        caught.pop(name, None)  # the last call counts, and comes last
        caught[name] = output[0] if isinstance(output, (tuple, list)) and output else output

    return hook


def _told(found: Any) -> tuple[Tensor, Tensor]:
    """Logits and boxes of what a detector returns."""
    if isinstance(found, Mapping):
        pair = found.get(LOGITS), found.get(BOXES)
    elif hasattr(found, LOGITS):
        pair = getattr(found, LOGITS), getattr(found, BOXES, None)
    else:
        pair = found[:2] if isinstance(found, (tuple, list)) and len(found) >= 2 else (None, None)
    logits, boxes = pair
    if isinstance(logits, Tensor) and isinstance(boxes, Tensor) and boxes.shape == (*logits.shape[:2], 4):
        return logits, boxes
    shapes = [tuple(one.shape) if isinstance(one, Tensor) else type(one).__name__ for one in pair]
    raise ValueError(f"the network gives logits {shapes[0]} and boxes {shapes[1]}. {NEEDED}.")


def _by_query(found: Any, n: int, queries: int) -> Tensor | None:
    """What a module gave as [n, places, d]; None: it has nothing for each query."""
    if not isinstance(found, Tensor) or found.ndim not in (3, 4) or not found.is_floating_point():
        return None
    if found.ndim == 4:  # a map
        return found.flatten(2).transpose(1, 2) if len(found) == n else None
    if len(found) == n:
        # queries among other tokens are the last ones
        return found[:, -queries:] if found.shape[1] > queries else found
    return found.transpose(0, 1) if found.shape[:2] == (queries, n) else None
