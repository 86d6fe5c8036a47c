"""A detector in two: what comes before the decoder's last layer, and that layer with the heads, row by row.

A row is one query of one picture. The first part runs once for all queries of a picture; the second is small,
so that its gradients are cheap.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..metrics.boxes import corners

NORMS = 3  # times that a decoder may normalise what its last layer gives, and one more


@dataclass(frozen=True)
class Seen:
    """What a detector says of n pictures with Q queries each.

    Args:
        logits: Of the classes, [n, Q, C].
        boxes: Centre and size over the picture's, [n, Q, 4].
        entering: The tensors that go into the decoder's last layer, by name, [n, ...] each.
        offset: What is added to the box head's numbers, [n, Q, 4].
    """

    logits: Tensor
    boxes: Tensor
    entering: dict[str, Tensor]
    offset: Tensor


class Detector:
    """A transformers detector of the DETR family, watched at its last decoder layer.

    Args:
        network: With `model.decoder.layers`, `class_labels_classifier` and `bbox_predictor`.
    """

    def __init__(self, network: Any) -> None:
        missing = [name for name in PARTS if not _has(network, name)]
        if missing:
            raise ValueError(
                f"the network, a {type(network).__name__}, has no '{missing[0]}'; Detection needs a detector "
                "like transformers' DetrForObjectDetection or ConditionalDetrForObjectDetection."
            )
        self.network = network
        self.layer: nn.Module = network.model.decoder.layers[-1]
        self.norm: nn.Module | None = getattr(network.model.decoder, "layernorm", None)

    @property
    def channels(self) -> int:
        """Of the pictures it takes."""
        return getattr(self.network.config, "num_channels", 3)

    @property
    def place(self) -> Tensor:
        """A tensor of the device and the precision that it works with."""
        return next(self.network.parameters())

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Seen:
        """One pass.

        Args:
            images: As the detector takes them, [n, channels, height, width].
        """
        found, caught = self._watched(images)
        entering = {name: value for name, value in caught.items() if isinstance(value, Tensor)}
        offset = torch.special.logit(found.pred_boxes.double()) - self.network.bbox_predictor(
            caught["hidden"]
        ).to(torch.float64)
        entering = {name: value for name, value in entering.items() if name not in ("given", "hidden")}
        return Seen(found.logits, found.pred_boxes, entering, offset.to(found.pred_boxes.dtype))

    def tails(self, images: Tensor, alike: Mapping[str, Tensor] | None = None) -> tuple[BoxTail, ClassTail]:
        """The second part, once for the edges of boxes in pixels and once for the classes.

        Args:
            images: A few; on them the two parts must give what the whole does.
            alike: What enters the last layer and is the same for all pictures, [1, ...] each; None: what is
                the same for `images`.
        """
        with torch.no_grad():
            found, caught = self._watched(images)
        times = self._norms(caught.pop("given"), caught.pop("hidden"))
        fixed = {name: value for name, value in caught.items() if not isinstance(value, Tensor)}
        tensors = {name: value for name, value in caught.items() if isinstance(value, Tensor)}
        if alike is None:
            same = {name for name, value in tensors.items() if bool((value == value[:1]).all())}
            alike = {name: tensors[name][:1].clone() for name in sorted(same) if len(images) > 1}
        for name, value in alike.items():
            if name not in tensors or (value.shape, value.dtype) != (
                tensors[name][:1].shape,
                tensors[name].dtype,
            ):
                raise ValueError(f"the decoder's last layer takes no '{name}' {tuple(value.shape)}.")
        tail = _Tail(self.layer, self.norm if times else None, times, fixed, alike)
        height, width = images.shape[-2:]
        background = found.logits.shape[-1] == self.network.config.num_labels
        boxes = BoxTail(tail, self.network.bbox_predictor, width=width, height=height)
        classes = ClassTail(tail, self.network.class_labels_classifier, background=background)
        return boxes.eval(), classes.eval()

    def _watched(self, images: Tensor) -> tuple[Any, dict[str, Any]]:
        """The detector's outputs; what entered the last layer, what it gave, and what the heads got."""
        caught: dict[str, Any] = {}

        def entered(module: nn.Module, arguments: tuple, named: dict[str, Any]) -> None:
            caught.update({f"argument{i}": value for i, value in enumerate(arguments)})
            caught.update(named)

        def left(module: nn.Module, arguments: tuple, output: Any) -> None:
            caught["given"] = output[0] if isinstance(output, tuple) else output

        def headed(module: nn.Module, arguments: tuple) -> None:
            caught["hidden"] = arguments[0]

        hooks = [
            self.layer.register_forward_pre_hook(entered, with_kwargs=True),
            self.layer.register_forward_hook(left),
            self.network.class_labels_classifier.register_forward_pre_hook(headed),
        ]
        try:
            return self.network(images.to(self.place)), caught
        finally:
            for hook in hooks:
                hook.remove()

    def _norms(self, given: Tensor, hidden: Tensor) -> int:
        """How often the decoder normalises what its last layer gives."""
        found = []
        for _ in range(NORMS):
            found.append(float((given - hidden).detach().abs().max()))
            given = given if self.norm is None else self.norm(given)
        best = min(range(NORMS), key=lambda times: found[times])
        if found[best] > 1e-4 * float(hidden.abs().max()):
            raise ValueError(
                "what the heads are given does not follow from the decoder's last layer and its "
                "normalisation; Detection does not know this detector."
            )
        return best


PARTS = ("model.decoder.layers", "class_labels_classifier", "bbox_predictor", "config.num_labels")


def _has(network: Any, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(network, name):
            return False
        network = getattr(network, name)
    return True


class _Tail(nn.Module):
    """The decoder's last layer and the normalisation after it, for one query of each picture.

    Args:
        layer: The decoder's last.
        norm: Of the decoder; None: there is none.
        times: How often it is applied.
        fixed: Arguments of the layer that are no tensors.
        alike: Those that are the same for all pictures of a size, such as positions, [1, ...] each.
    """

    def __init__(
        self,
        layer: nn.Module,
        norm: nn.Module | None,
        times: int,
        fixed: dict[str, Any],
        alike: Mapping[str, Tensor],
    ) -> None:
        super().__init__()
        self.layer, self.norm, self.times, self.fixed = layer, norm, times, fixed
        self.alike = tuple(alike)
        for name, value in alike.items():
            self.register_buffer(f"alike_{name}", value)

    def forward(self, query: Tensor, entering: dict[str, Tensor]) -> Tensor:
        """What the heads are given, [m, d].

        Args:
            query: Which of each row's queries is meant, int64, [m].
            entering: By name, [m, ...] each.
        """
        alike = {name: self.get_buffer(f"alike_{name}") for name in self.alike}
        known = {name: value.expand(query.shape[0], *value.shape[1:]) for name, value in alike.items()}
        given = {**self.fixed, **known, **entering}
        places = sorted(
            (name for name in given if name.startswith("argument")), key=lambda name: int(name[8:])
        )
        named = {name: value for name, value in given.items() if not name.startswith("argument")}
        found = self.layer(*(given[name] for name in places), **named)
        found = found[0] if isinstance(found, tuple) else found
        for _ in range(self.times):
            assert self.norm is not None
            found = self.norm(found)
        return found.gather(1, query[:, None, None].expand(-1, 1, found.shape[2]))[:, 0]


class BoxTail(nn.Module):
    """Left, top, right and bottom edge of one query's box, in pixels, [m, 4]."""

    def __init__(self, tail: _Tail, head: nn.Module, *, width: int, height: int) -> None:
        super().__init__()
        self.tail, self.head = copy.deepcopy(tail), copy.deepcopy(head)
        self.register_buffer("size", torch.tensor([width, height, width, height], dtype=torch.float32))

    def forward(self, query: Tensor, offset: Tensor, **entering: Tensor) -> Tensor:
        found = (self.head(self.tail(query, entering)) + offset).sigmoid()
        return corners(found) * self.get_buffer("size")


class ClassTail(nn.Module):
    """Logits of one query's classes and, last, of no object, [m, C + 1].

    They are shifted, which changes no probability, so that they add up to the log odds of an object: what
    `likelihoods.Finding` makes its kernel of.

    Args:
        tail: The layer.
        head: Gives the logits.
        background: Whether they lack one for no object, since each is the logit of a yes or no: its place is
            taken by 0, which leaves the odds of each class as they are.
    """

    def __init__(self, tail: _Tail, head: nn.Module, *, background: bool) -> None:
        super().__init__()
        self.tail, self.head, self.background = copy.deepcopy(tail), copy.deepcopy(head), background

    def forward(self, query: Tensor, offset: Tensor, **entering: Tensor) -> Tensor:
        found = self.head(self.tail(query, entering))
        found = nn.functional.pad(found, (0, 1)) if self.background else found
        odds = found[:, :-1].logsumexp(dim=1, keepdim=True) - found[:, -1:]
        return found + (odds - found.sum(dim=1, keepdim=True)) / found.shape[1]
