"""What the ablation turns: one axis for each setting of the method, and the trials its points stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trustgp.data.quantities import Budget, parse_bytes
from trustgp.experts.gate import Division
from trustgp.experts.neighbours import Patchwork
from trustgp.tangents import JacobianRows, LayerFactors

KINDS = {"own": "own", "corrected": "corrected", "plain": "plain"}
"""Predictions of the experts alone: about the network's output, about the corrected mean, the paper's."""
HEARD = {"heard_own": "own, witness", "heard_corrected": "corrected, witness"}
"""The same experts with the witness beside them."""

ALL = "all"
NUM_EXPERTS, QUICK_EXPERTS = 12, 4
KEPT, QUICK_KEPT = 8192, 512  # parameters kept for all experts where stage (ii) is turned
PER_EXPERT, QUICK_PER_EXPERT = 2048, 128  # of these, columns that an expert keeps in the pruned rows
VALUES: dict[str, Sequence[Any]] = {
    "experts": (3, 6, NUM_EXPERTS, 24, 48, 96),
    "subset": (64, 128, 256, 512, 1024, 2048),
    "stage_one": (128, 512, 2048, KEPT, ALL),
    "stage_two": (128, 512, PER_EXPERT, ALL),
    "fraction": (0.0, 0.05, 0.1, 0.2, 0.5),
    "budget": ("64 MiB", "128 MiB", "256 MiB", ALL),
    "components": (2, 4, 8, 16, 32),
    "neighbours": (1, 2, 4, 8),
}
QUICK_VALUES: dict[str, Sequence[Any]] = {
    "experts": (2, QUICK_EXPERTS),
    "subset": (64, 512),
    "stage_one": (QUICK_KEPT, ALL),
    "stage_two": (QUICK_PER_EXPERT, ALL),
    "fraction": (0.0, 0.1),
    "budget": ("2 MiB", ALL),
    "components": (2, 8),
    "neighbours": (1, 4),
}


@dataclass(frozen=True)
class AblationTrial:
    """One fit.

    Args:
        name: Of its part of the results: letters, digits, dots and dashes.
        options: Of `trustgp.fit`; what is not named is the library's default, but for the witness.
        small: On a third of the rows, with the pseudo kernel: what gradient rows can afford.
        validated: Whether it may see the validation rows.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    small: bool = False
    validated: bool = True


@dataclass(frozen=True)
class Point:
    """A setting on an axis.

    Args:
        label: Of the setting.
        trial: What is fitted for it.
        scores: By column, of `KINDS` and `HEARD`: the score of the trial that stands there.
    """

    label: str
    trial: AblationTrial
    scores: Mapping[str, str] = field(default_factory=lambda: {name: name for name in (*KINDS, *HEARD)})


@dataclass(frozen=True)
class Axis:
    """A setting that is turned while all others stay at their defaults.

    Args:
        name: In the numbers.
        title: For people.
        points: In order.
        default: Label of the library's default.
        ordered: Whether the points are numbers that grow.
    """

    name: str
    title: str
    points: Sequence[Point]
    default: str
    ordered: bool = True


DEFAULT = AblationTrial("default")
SMALL = AblationTrial("small", small=True)
LEFT_OUT = AblationTrial("leave-one-out", validated=False)


def paper_axes(quick: bool) -> list[Axis]:
    """What the paper turns."""
    most, kept = (QUICK_EXPERTS, QUICK_KEPT) if quick else (NUM_EXPERTS, KEPT)
    each = f"pruning (ii), an expert's, of {kept}"
    turned = _Turning(quick)
    return [
        turned("experts", "experts", most, lambda value: {"num_experts": value}),
        turned("subset", "subset of the gate", 512, lambda value: {"division": Division(subset=value)}),
        turned("stage_one", "pruning (i), parameters for all", ALL, base=SMALL, trial=_rows),
        turned("stage_two", each, ALL, base=_rows(kept), trial=lambda value: _rows(kept, value)),
        turned(
            "fraction",
            "active fraction of a neighbour",
            0.1,
            lambda value: {"patchwork": Patchwork(fraction=value)},
        ),
        turned(
            "budget",
            "active own rows, by budget",
            ALL,
            lambda value: {"budget": Budget(parse_bytes(value, name="budget"), during_fit=True)},
        ),
    ]


def our_axes(quick: bool) -> list[Axis]:
    """What is ours to choose."""
    turned = _Turning(quick)
    return [
        turned("components", "components of the gate", 8, lambda v: {"division": Division(components=v)}),
        turned("neighbours", "neighbours", 4, lambda value: {"patchwork": Patchwork(neighbours=value)}),
        _outputs(),
        _tangents(quick),
        _witness(),
        _calibration(),
    ]


def trials_of(axes: Sequence[Axis]) -> list[AblationTrial]:
    """Every trial once, in order."""
    return list({point.trial.name: point.trial for axis in axes for point in axis.points}.values())


@dataclass(frozen=True)
class _Turning:
    """Makes axes of values, of which the default is the base trial.

    Args:
        quick: Two values of each.
    """

    quick: bool

    def __call__(
        self,
        name: str,
        title: str,
        default: Any,
        options: Callable[[Any], dict[str, Any]] = dict,
        *,
        base: AblationTrial = DEFAULT,
        trial: Callable[[Any], AblationTrial] | None = None,
    ) -> Axis:
        """An axis; `options` are those of `fit` for a value, or `trial` is the whole trial."""

        def turned(value: Any) -> AblationTrial:
            return AblationTrial(f"{name}-{value}".replace(" ", ""), options(value))

        values = (QUICK_VALUES if self.quick else VALUES)[name]
        points = [Point(str(v), base if v == default else (trial or turned)(v)) for v in values]
        return Axis(name, title, points, str(default))


def _rows(kept: int, each: int | None = None) -> AblationTrial:
    """Gradient rows after stage (i), and (ii) where `each` is given: points of several axes."""
    name = f"kept-{kept}" if each is None else f"kept-{kept}-each-{each}"
    return AblationTrial(name, {"tangents": JacobianRows(keep=kept, keep_per_expert=each)}, small=True)


def _outputs() -> Axis:
    others = [Point(kind, AblationTrial(kind, {"outputs": kind})) for kind in ("separate", "pseudo")]
    return Axis("outputs", "outputs", [Point("shared", DEFAULT), *others], "shared", ordered=False)


def _tangents(quick: bool) -> Axis:
    """Rows with every parameter kept have the kernel of the factors, so they are no point of their own."""
    kept, each = (QUICK_KEPT, QUICK_PER_EXPERT) if quick else (KEPT, PER_EXPERT)
    points = [
        Point("factors", SMALL),
        Point(f"rows, {kept}", _rows(kept)),
        Point(f"rows, {kept}/{each}", _rows(kept, each)),
        Point("last layer", AblationTrial("last-layer", {"tangents": LayerFactors("last")}, small=True)),
    ]
    return Axis("tangents", "gradients", points, "factors", ordered=False)


def _witness() -> Axis:
    alone, heard = ({name: name for name in names} for names in (KINDS, HEARD))
    points = [Point("off", DEFAULT, alone), Point("on", DEFAULT, heard)]
    return Axis("witness", "witness", points, "on", ordered=False)


def _calibration() -> Axis:
    points = [
        Point("validation rows", DEFAULT),
        Point("leave-one-out", LEFT_OUT),
        Point("evidence only", DEFAULT, {"own": "plain"}),
    ]
    return Axis("calibration", "calibration", points, "validation rows", ordered=False)
