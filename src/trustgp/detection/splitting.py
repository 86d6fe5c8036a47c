"""A detector in two: what comes before the decoder's last layer, and that layer with the heads, row by row.

A row is one query of one picture. The first part runs once for all queries of a picture; the second is small,
so that its gradients are cheap. Where the layer lets queries look at each other first, that belongs to the
first part: what a query has heard from the others is added to what enters, and the second needs that query
alone.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
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
        each: Names of those among them that have a row for each query, [n, Q, ...], of which a row takes its
            own; empty: every row takes all.
        offset: What is added to the box head's numbers, [n, Q, 4].
    """

    logits: Tensor
    boxes: Tensor
    entering: dict[str, Tensor]
    each: frozenset[str]
    offset: Tensor


class Detector:
    """A transformers detector of the DETR family, watched at its last decoder layer.

    Args:
        network: With `model.decoder.layers`, `class_labels_classifier` and `bbox_predictor`.
        alone: Whether a row is to need its own query only.
    """

    def __init__(self, network: Any, *, alone: bool = True) -> None:
        missing = [name for name in PARTS if not _has(network, name)]
        if missing:
            raise ValueError(
                f"the network, a {type(network).__name__}, has no '{missing[0]}'; Detection needs a detector "
                "like transformers' DetrForObjectDetection or ConditionalDetrForObjectDetection."
            )
        self.network = network
        self.layer: nn.Module = network.model.decoder.layers[-1]
        self.norm: nn.Module | None = getattr(network.model.decoder, "layernorm", None)
        self.alone = alone and isinstance(getattr(self.layer, AMONG, None), nn.Module)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Seen:
        """One pass.

        Args:
            images: As the detector takes them, [n, channels, height, width].
        """
        return self._seen(images)[1]

    def tails(self, images: Tensor) -> tuple[BoxTail, ClassTail]:
        """The second part, once for the edges of boxes in pixels and once for the classes.

        Args:
            images: A few; on them the two parts must give what the whole does. Where they do not with
                queries alone, rows take all queries from now on.
        """
        boxes, classes, right = self._tails(images)
        if not right and self.alone:
            self.alone = False
            boxes, classes, right = self._tails(images)
        if not right:
            raise ValueError(
                "the decoder's last layer and the heads do not give what the whole detector does; Detection "
                "does not know this detector."
            )
        return boxes, classes

    def _tails(self, images: Tensor) -> tuple[BoxTail, ClassTail, bool]:
        """The two, and whether they are right."""
        caught, seen = self._seen(images)
        times = self._norms(caught["given"], caught["hidden"])
        fixed = {name: value for name, value in caught.items() if not isinstance(value, Tensor)}
        fixed.pop(AMONG, None)
        alike = {
            name: value[:1].clone()
            for name, value in seen.entering.items()
            if len(images) > 1 and bool((value == value[:1]).all())
        }
        layer = copy.deepcopy(self.layer)
        if self.alone:
            setattr(layer, AMONG, _Silence(caught[AMONG]))
        tail = _Tail(layer, self.norm if times else None, times, fixed, alike, seen.each)
        height, width = images.shape[-2:]
        background = seen.logits.shape[-1] == self.network.config.num_labels
        boxes = BoxTail(tail, self.network.bbox_predictor, width=width, height=height)
        classes = ClassTail(tail, self.network.class_labels_classifier, background=background)
        try:
            return boxes, classes, _agree(boxes, classes, seen)
        except (RuntimeError, ValueError, TypeError, IndexError):
            return boxes, classes, False

    @torch.no_grad()
    def _seen(self, images: Tensor) -> tuple[dict[str, Any], Seen]:
        """What was caught, and the same as rows are made of it."""
        found, caught = self._watched(images)
        hidden, queries = caught["hidden"], found.logits.shape[1]
        offset = torch.special.logit(found.pred_boxes.double()) - self.network.bbox_predictor(hidden).double()
        watched = ("given", "hidden", AMONG)
        entering = {k: v for k, v in caught.items() if isinstance(v, Tensor) and k not in watched}
        each: frozenset[str] = frozenset()
        memory = getattr(found, "encoder_last_hidden_state", None)
        if self.alone and (memory is None or memory.shape[1] == queries):  # which is which?
            self.alone = False
        if self.alone:
            each = frozenset(k for k, v in entering.items() if v.ndim == 3 and v.shape[1] == queries)
            first = next(k for k in ("argument0", "hidden_states") if k in entering)
            heard = caught[AMONG][0] if isinstance(caught[AMONG], tuple) else caught[AMONG]
            entering[first] = entering[first] + heard
        return caught, Seen(found.logits, found.pred_boxes, entering, each, offset.to(found.pred_boxes.dtype))

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

        def heard(module: nn.Module, arguments: tuple, output: Any) -> None:
            caught[AMONG] = output

        hooks = [
            self.layer.register_forward_pre_hook(entered, with_kwargs=True),
            self.layer.register_forward_hook(left),
            self.network.class_labels_classifier.register_forward_pre_hook(headed),
        ]
        if self.alone:
            hooks.append(self.layer.get_submodule(AMONG).register_forward_hook(heard))
        try:
            return self.network(images), caught
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


def _agree(boxes: BoxTail, classes: ClassTail, seen: Seen) -> bool:
    """Whether the tails give what the whole detector said of a few queries of each picture."""
    n, queries = seen.logits.shape[:2]
    image = torch.arange(n, device=seen.logits.device)
    query = (image * 7) % queries
    names = tuple(name for name in seen.entering if name not in boxes.tail.alike)
    rows = rows_of(seen, names, image, query)
    with torch.no_grad():
        edges, logits = boxes(**rows), classes(**rows)
    true = corners(seen.boxes)[image, query] * boxes.get_buffer("size")
    said = seen.logits[image, query]
    said = nn.functional.pad(said, (0, 1)) if classes.background else said
    pairs = ((edges, true), (logits.log_softmax(dim=1), said.log_softmax(dim=1)))
    return all(torch.allclose(own, whole, rtol=1e-3, atol=1e-3) for own, whole in pairs)


def rows_of(seen: Seen, names: Sequence[str], image: Tensor, query: Tensor) -> dict[str, Tensor]:
    """What the tails take, [m, ...] each.

    Args:
        seen: What the detector said.
        names: Of the tensors that differ from picture to picture.
        image, query: Which rows, [m] each.
    """
    entering = {
        name: seen.entering[name][image, query][:, None] if name in seen.each else seen.entering[name][image]
        for name in names
    }
    return {"query": query, "offset": seen.offset[image, query], **entering}


AMONG = "self_attn"  # with which the queries of a layer look at each other
PARTS = ("model.decoder.layers", "class_labels_classifier", "bbox_predictor", "config.num_labels")


def _has(network: Any, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(network, name):
            return False
        network = getattr(network, name)
    return True


class _Silence(nn.Module):
    """In place of attention among queries, whose answer has been added to what enters: nothing more.

    Args:
        like: Its answer, a tensor or a tuple that begins with one.
    """

    def __init__(self, like: Any) -> None:
        super().__init__()
        self.more = len(like) - 1 if isinstance(like, tuple) else None

    def forward(self, hidden_states: Tensor, *arguments: Any, **named: Any) -> Any:
        nothing = torch.zeros_like(hidden_states)
        return nothing if self.more is None else (nothing, *[None] * self.more)


class _Tail(nn.Module):
    """The decoder's last layer and the normalisation after it, for one query of each picture.

    Args:
        layer: The decoder's last.
        norm: Of the decoder; None: there is none.
        times: How often it is applied.
        fixed: Arguments of the layer that are no tensors.
        alike: Those that are the same for all pictures of a size, such as positions, [1, ...] each.
        each: Names of arguments with a row for each query; empty: the layer takes all queries.
    """

    def __init__(
        self,
        layer: nn.Module,
        norm: nn.Module | None,
        times: int,
        fixed: dict[str, Any],
        alike: dict[str, Tensor],
        each: frozenset[str],
    ) -> None:
        super().__init__()
        self.layer, self.norm, self.times, self.fixed, self.each = layer, norm, times, fixed, each
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
        known = {
            name: value[0, query][:, None]
            if name in self.each
            else value.expand(query.shape[0], *value.shape[1:])
            for name, value in alike.items()
        }
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
        if self.each:
            return found[:, 0]
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
