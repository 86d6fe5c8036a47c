"""A detector in two: what comes before the decoder's last layer, and that layer with the head, row by row.

A row is one query of one picture. The first part runs once for all queries of a picture; the second is small,
so that its gradients are cheap. Where the layer lets queries look at each other first, that belongs to the
first part: what that attention gives a query is added to what enters, and the second needs that query alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

PICTURE = "picture"  # what enters a `WholeDetector`
PLACED = "argument"  # and a number: what a layer's arguments without a name are called
AMONG = "self_attn"  # with which the queries of a layer look at each other
NORMS = 3  # times that a decoder may normalise what its last layer gives, and one more
PARTS = ("model.decoder.layers", "class_labels_classifier", "bbox_predictor", "config.num_labels")
UNKNOWN = "Detection does not know this detector."


def first_of(output: Any) -> Tensor:
    """What a layer gives: the first of several tensors."""
    return output[0] if isinstance(output, tuple) else output


def of_query(hidden: Tensor, query: Tensor) -> Tensor:
    """One query's state of each picture, [m, Q, d] to [m, d]; which one is int64, [m]."""
    return hidden.gather(1, query[:, None, None].expand(-1, 1, hidden.shape[2]))[:, 0]


class ZeroAttention(nn.Module):
    """In place of attention among queries, whose answer has been added to what enters: zeros like it."""

    FINGERPRINT = "Silence"

    def __init__(self, like: Any) -> None:
        super().__init__()
        self.more = len(like) - 1 if isinstance(like, tuple) else None

    def forward(self, hidden_states: Tensor, *arguments: Any, **named: Any) -> Any:
        nothing = torch.zeros_like(hidden_states)
        return nothing if self.more is None else (nothing, *[None] * self.more)


class DecoderTail(nn.Module):
    """The decoder's last layer and the norm that comes so many times after it, for one query a picture."""

    FINGERPRINT = "Tail"

    def __init__(
        self,
        layer: nn.Module,
        norm: nn.Module | None,
        times: int,
        fixed: dict[str, Any],  # arguments of the layer that are no tensors
        alike: Mapping[str, Tensor],  # those that are the same for all pictures of a size, [1, ...] each
        each: frozenset[str],  # names of those with a row for each query; empty: it takes all queries
    ) -> None:
        super().__init__()
        self.layer, self.norm, self.times, self.fixed, self.each = layer, norm, times, fixed, each
        self.alike = tuple(alike)
        for name, value in alike.items():
            self.register_buffer(f"alike_{name}", value)

    def forward(self, query: Tensor, entering: dict[str, Tensor]) -> Tensor:
        """What the heads are given of one query [m] of each row, [m, d]; what enters is [m, ...], by name."""
        named, rows = {**self.fixed, **entering}, query.shape[0]
        for name in self.alike:
            value = self.get_buffer(f"alike_{name}")  # the same for all pictures, [1, ...]
            own = value[0, query][:, None] if name in self.each else value.expand(rows, *value.shape[1:])
            named.setdefault(name, own)
        count = sum(name.startswith(PLACED) for name in named)
        arguments = [named.pop(f"{PLACED}{place}") for place in range(count)]
        hidden = first_of(self.layer(*arguments, **named))
        for _ in range(self.times):
            assert self.norm is not None
            hidden = self.norm(hidden)
        return hidden[:, 0] if self.each else of_query(hidden, query)


class WholeDetector(nn.Module):
    """In place of the last layer: the detector without its heads, from the picture itself."""

    FINGERPRINT = "Whole"
    alike: tuple[str, ...] = ()
    each: frozenset[str] = frozenset()

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, query: Tensor, entering: Mapping[str, Tensor]) -> Tensor:
        """As of `DecoderTail`; what enters is the picture, [m, channels, height, width]."""
        return of_query(self.model(entering[PICTURE]).last_hidden_state, query)


class ClassTail(nn.Module):
    """Logits of one query's classes and, last, of no object, [m, C + 1].

    They are shifted, which changes no probability, so that they add up to the log odds of an object: what
    `likelihoods.Finding` makes its kernel of. Where the head has no logit for no object (`background`), since
    each is that of a yes or no, its place is taken by 0, which leaves the odds of each class as they are.
    """

    def __init__(self, tail: DecoderTail | WholeDetector, head: nn.Module, *, background: bool) -> None:
        super().__init__()
        self.tail, self.head, self.background = copy.deepcopy(tail), copy.deepcopy(head), background

    def forward(self, query: Tensor, **entering: Tensor) -> Tensor:
        logits = self.head(self.tail(query, entering))
        logits = nn.functional.pad(logits, (0, 1)) if self.background else logits
        odds = logits[:, :-1].logsumexp(dim=1, keepdim=True) - logits[:, -1:]
        return logits + (odds - logits.sum(dim=1, keepdim=True)) / logits.shape[1]


@dataclass(frozen=True)
class DetectorOutputs:
    """What a detector says of n pictures with Q queries each, and what goes into the decoder's last layer. Of
    those tensors that have a row for each query, [n, Q, ...], a row takes its own; `each` names them."""

    logits: Tensor  # of the classes, [n, Q, C]
    boxes: Tensor  # centre and size over the picture's, [n, Q, 4]
    entering: dict[str, Tensor]  # by name, [n, ...] each
    each: frozenset[str]  # empty: every row takes all

    def rows(self, names: Sequence[str], image: Tensor, query: Tensor) -> dict[str, Tensor]:
        """What the tail takes of these names, [m, ...] each, for some queries [m] of some pictures [m]."""
        own = {name: self.entering[name][image, query][:, None] for name in names if name in self.each}
        return {"query": query, **{name: own.get(name, self.entering[name][image]) for name in names}}


class Detector:
    """A transformers detector of the DETR family, watched at its last decoder layer. A row is to need its own
    query only (`alone`), or the second part is the whole detector again (`whole`): rows are then pictures."""

    def __init__(self, network: Any, *, alone: bool = True, whole: bool = False) -> None:
        for name in PARTS:
            try:
                attrgetter(name)(network)
            except AttributeError as error:
                raise ValueError(
                    f"the network, a {type(network).__name__}, has no '{name}'; Detection needs a detector "
                    "like transformers' DetrForObjectDetection or ConditionalDetrForObjectDetection."
                ) from error
        self.network = network
        self.layer: nn.Module = network.model.decoder.layers[-1]
        self.norm: nn.Module | None = getattr(network.model.decoder, "layernorm", None)
        self.channels: int = getattr(network.config, "num_channels", 3)  # of the pictures it takes
        self.labels: int = network.config.num_labels
        self.whole = whole
        self.alone = alone and not whole and isinstance(getattr(self.layer, AMONG, None), nn.Module)

    @property
    def place(self) -> Tensor:
        """A tensor of the device and the precision that it works with."""
        return next(self.network.parameters())

    def __call__(self, images: Tensor) -> DetectorOutputs:
        """One pass of pictures [n, channels, height, width]."""
        return self._outputs(images)[0]

    def tail(self, images: Tensor, alike: Mapping[str, Tensor] | None = None) -> ClassTail:
        """The second part, with what enters the last layer alike for all pictures; None: for these few. On
        them the two parts must give what the whole does. Where they do not with queries alone, rows take all
        queries from now on."""
        outputs, caught = self._outputs(images)
        given, hidden = alike, caught.pop("hidden")
        times = self._norms(first_of(caught.pop("given")), hidden)
        attended = caught.pop(AMONG, None)
        fixed = {name: value for name, value in caught.items() if not isinstance(value, Tensor)}
        if self.whole or (alike is None and len(images) < 2):
            alike = {}
        if alike is None:
            same = {name: value[:1] for name, value in outputs.entering.items() if (value == value[:1]).all()}
            alike = {name: same[name].clone() for name in sorted(same)}
        for name, value in alike.items():
            like = outputs.entering.get(name)
            if like is None or (value.shape, value.dtype) != (like[:1].shape, like.dtype):
                raise ValueError(f"the decoder's last layer takes no '{name}' {tuple(value.shape)}.")
        if self.whole:
            tail = WholeDetector(self.network.model)
        else:
            layer = copy.deepcopy(self.layer)
            if self.alone:
                setattr(layer, AMONG, ZeroAttention(attended))
            tail = DecoderTail(layer, self.norm if times else None, times, fixed, alike, outputs.each)
        background = outputs.logits.shape[-1] == self.labels
        try:
            right = _agrees(tail, outputs, hidden)
        except (RuntimeError, ValueError, TypeError, IndexError):
            right = False
        if right:
            return ClassTail(tail, self.network.class_labels_classifier, background=background).eval()
        if self.alone:
            self.alone = False
            return self.tail(images, given)
        raise ValueError(
            f"the decoder's last layer and the head do not give what the whole detector does; {UNKNOWN}"
        )

    @torch.no_grad()
    def _outputs(self, images: Tensor) -> tuple[DetectorOutputs, dict[str, Any]]:
        """What the detector says; what entered the last layer, what it gave, and what the heads got."""
        caught: dict[str, Any] = {}

        def enters(module: nn.Module, arguments: tuple, named: dict[str, Any]) -> None:
            caught.update({f"{PLACED}{i}": value for i, value in enumerate(arguments)} | named)

        def leaves(name: str) -> Callable[[nn.Module, tuple, Any], None]:
            return lambda module, arguments, output: caught.update({name: output})

        heads = self.network.class_labels_classifier
        with ExitStack() as hooks:
            hooks.enter_context(self.layer.register_forward_pre_hook(enters, with_kwargs=True))
            hooks.enter_context(self.layer.register_forward_hook(leaves("given")))
            hooks.enter_context(heads.register_forward_pre_hook(lambda _, got: caught.update(hidden=got[0])))
            if self.alone:
                hooks.enter_context(self.layer.get_submodule(AMONG).register_forward_hook(leaves(AMONG)))
            found = self.network(images.to(self.place))
        queries = found.logits.shape[1]
        leaving = ("given", "hidden", AMONG)
        entering = {k: v for k, v in caught.items() if isinstance(v, Tensor) and k not in leaving}
        memory = getattr(found, "encoder_last_hidden_state", None)
        if memory is None or memory.shape[1] == queries:  # which is which?
            self.alone = False
        each: frozenset[str] = frozenset()
        if self.whole:
            entering = {PICTURE: images.to(self.place)}
        if self.alone:
            each = frozenset(k for k, v in entering.items() if v.ndim == 3 and v.shape[1] == queries)
            first = next(k for k in (f"{PLACED}0", "hidden_states") if k in entering)
            entering[first] = entering[first] + first_of(caught[AMONG])
        return DetectorOutputs(found.logits, found.pred_boxes, entering, each), caught

    def _norms(self, given: Tensor, hidden: Tensor) -> int:
        """How often the decoder normalises what its last layer gives."""
        found = []
        for _ in range(NORMS):
            found.append(float((given - hidden).detach().abs().max()))
            given = given if self.norm is None else self.norm(given)
        best = found.index(min(found))
        if found[best] > 1e-4 * float(hidden.abs().max()):
            raise ValueError(
                "what the heads are given does not follow from the decoder's last layer and its "
                f"normalisation; {UNKNOWN}"
            )
        return best


def _agrees(tail: DecoderTail | WholeDetector, outputs: DetectorOutputs, hidden: Tensor) -> bool:
    """Whether a query of each picture comes out as in the whole detector, [n, Q, d]."""
    image = torch.arange(len(hidden), device=hidden.device)
    query = (image * 7) % hidden.shape[1]
    rows = outputs.rows(tuple(name for name in outputs.entering if name not in tail.alike), image, query)
    with torch.no_grad():
        own = tail(rows.pop("query"), rows)
    return torch.allclose(own, hidden[image, query], rtol=1e-3, atol=1e-3 * float(hidden.abs().max()))
