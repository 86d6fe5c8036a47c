"""The ablation in words: its protocol, what our axes show, and what stands under table and figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.arm import arm_recipe
from ...core.grid import Grid
from ...core.result import Setting
from ...core.statistics import change, words
from .axes import NUM_EXPERTS, QUICK_EXPERTS, Axis
from .observations import GAIN, LITTLE, OBSERVATIONS
from .trials import SHARE


def on_our_axes(axes: Sequence[Axis], grid: Grid) -> list[str]:
    """What the default of each axis costs against its best setting, and what the witness brings.

    Args:
        axes: Ours.
        grid: Of the study.
    """
    found = [_on_axis(axis, grid) for axis in axes if axis.name != "witness"]

    def heard(kind: str) -> str:
        places = ("witness", "off", kind), ("witness", "on", f"heard_{kind}")
        without, with_ = (grid.values(place, "nll") or () for place in places)
        return change(without, with_, digits=3)

    found.append(
        f"Witness: beside the default experts, the NLL of the network's own prediction {heard('own')}; that "
        f"of the corrected one {heard('corrected')}."
    )
    return found


def _on_axis(axis: Axis, grid: Grid) -> str:
    def reached(kind: str) -> str:
        labels = grid.along("setting", axis=axis.name, kind=kind)
        known = {label: grid.spread((axis.name, label, kind), "nll") for label in labels}
        default = known[axis.default]
        label = min(known, key=lambda label: known[label][0])
        rank = "the lowest" if label == axis.default else f"{default[0] - known[label][0]:.3f} above {label}"
        return f"{words(default, 3)} ({rank})"

    return (
        f"{axis.title.capitalize()}: the default, {axis.default}, brings the network's own prediction to an "
        f"NLL of {reached('own')} without the witness, and of {reached('heard_own')} with it."
    )


def protocol(setting: Setting, about: Mapping[str, Any]) -> list[str]:
    """How it was measured, a paragraph each.

    Args:
        setting: Of the study.
        about: The rows of the first seed.
    """
    experts = QUICK_EXPERTS if setting.quick else NUM_EXPERTS
    return [
        f"Data: {about['about']} Every test row is scored.",
        f"Network: {arm_recipe(setting.quick).words()}, trained once a seed and shared by all settings. One "
        f"setting is turned at a time; all others stay at the library's defaults, with {experts} experts.",
        "On the paper's axes (experts, subset, both stages of pruning, active rows) the experts speak "
        "alone, without the witness, so that they are what is measured. Three predictions are scored: the "
        "network's own, the corrected one, and the plain variance, which is the paper's: evidence only. On "
        "our axes the same experts are scored a second time with the witness beside them.",
        "Gradient rows are costly, so pruning and the kinds of gradients are measured on a random part, one "
        f"row in {SHARE} ({about['rows']['small']} rows), with one random mix of the torques as the kernel "
        "(outputs='pseudo'). Stage (i) keeps the parameters of largest size for all experts, stage (ii) "
        "those columns of them whose sum over an expert's rows is largest. Rows that keep every parameter "
        "have the very kernel of the factors, which stand for them.",
        "Active rows are chosen by their variance given the rows already chosen: from each neighbour, as a "
        "share of an average expert's rows, and of an expert's own, as many as the model's budget holds.",
        f"When an observation of the paper counts as confirmed, for each of the three predictions: "
        f"{_rules()}. To help means that the mean NLL falls by {GAIN} or more and that it falls in every "
        f"seed; costs up to {LITTLE} count as little. It is confirmed in part where the rule holds for some "
        "of the predictions and axes only, contradicted where it holds for none.",
        f"Seeds: {setting.seeds}, of split, network, division and the random part.",
    ]


def _rules() -> str:
    return "; ".join(f"({n}) {one.rule_words}" for n, one in enumerate(OBSERVATIONS, 1))


NOTE = (
    "NLL per torque in units of its standard deviation, lower is better; mean ± standard deviation over "
    "seeds. Own: about the network's output. Corrected: about the corrected mean. Plain: the paper's "
    "variance. Rows of one: that an expert holds, on average. MiB and time to fit: without the witness."
)
CAPTION = (
    "Mean over seeds, and the spread as a band or a bar; the shaded strip is the default. Filled: the "
    "experts alone; hollow: with the witness. Every panel has its own scale."
)
