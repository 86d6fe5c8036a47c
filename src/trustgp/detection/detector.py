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

from .decoder_tail import PICTURE, PLACED, ClassTail, DecoderTail, WholeDetector, ZeroAttention, first_of

AMONG = "self_attn"  # with which the queries of a layer look at each other
NORMS = 3  # times that a decoder may normalise what its last layer gives, and one more
PARTS = ("model.decoder.layers", "class_labels_classifier", "bbox_predictor", "config.num_labels")
UNKNOWN = "Detection does not know this detector."


@dataclass(frozen=True)
class DetectorOutputs:
    """What a detector says of n pictures with Q queries each, and what goes into the decoder's last layer.

    Of those tensors that have a row for each query, [n, Q, ...], a row takes its own; `each` names them.
    """

    logits: Tensor  # of the classes, [n, Q, C]
    boxes: Tensor  # centre and size over the picture's, [n, Q, 4]
    entering: dict[str, Tensor]  # by name, [n, ...] each
    each: frozenset[str]  # empty: every row takes all

    def rows(self, names: Sequence[str], image: Tensor, query: Tensor) -> dict[str, Tensor]:
        """What the tail takes of these names, [m, ...] each, for some queries [m] of some pictures [m]."""
        own = {name: self.entering[name][image, query][:, None] for name in names if name in self.each}
        return {"query": query, **{name: own.get(name, self.entering[name][image]) for name in names}}


class Detector:
    """A transformers detector of the DETR family, watched at its last decoder layer.

    A row is to need its own query only (`alone`), or the second part is the whole detector again (`whole`):
    rows are then pictures.
    """

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
        """The second part, with what enters the last layer alike for all pictures; None: for these few.

        On them the two parts must give what the whole does. Where they do not with queries alone, rows take
        all queries from now on.
        """
        found, right = self._tail(images, alike)
        if right:
            return found.eval()
        if self.alone:
            self.alone = False
            return self.tail(images, alike)
        raise ValueError(
            f"the decoder's last layer and the head do not give what the whole detector does; {UNKNOWN}"
        )

    def _tail(self, images: Tensor, alike: Mapping[str, Tensor] | None) -> tuple[ClassTail, bool]:
        """It, and whether it is right."""
        outputs, caught = self._outputs(images)
        hidden = caught.pop("hidden")
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
        found = ClassTail(tail, self.network.class_labels_classifier, background=background)
        try:
            return found, _agrees(tail, outputs, hidden)
        except (RuntimeError, ValueError, TypeError, IndexError):
            return found, False

    @torch.no_grad()
    def _outputs(self, images: Tensor) -> tuple[DetectorOutputs, dict[str, Any]]:
        """What the detector says, and all that was caught on the way."""
        found, caught = self._watched(images)
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

    def _watched(self, images: Tensor) -> tuple[Any, dict[str, Any]]:
        """The detector's outputs; what entered the last layer, what it gave, and what the heads got."""
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
            return self.network(images.to(self.place)), caught

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
