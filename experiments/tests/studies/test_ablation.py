"""The ablation, small: on the simulated arm, as on a machine without data."""

import math
import sys

import pytest
import torch

import trustgp
from trustgp.experts.witness import Witness
from trustgp_experiments.core.claim import mean_spread
from trustgp_experiments.core.result import Setting, read_result
from trustgp_experiments.studies import run_study
from trustgp_experiments.studies.ablation import axes as ablation_trials
from trustgp_experiments.studies.ablation.axes import (
    DEFAULT,
    HEARD,
    KINDS,
    LEFT_OUT,
    SHARE,
    SMALL,
    Bench,
    our_axes,
    paper_axes,
    scores_of,
    sizes_of,
    trials_of,
)
from trustgp_experiments.studies.ablation.observations import (
    GAIN,
    LITTLE,
    OBSERVATIONS,
    Curve,
    grows,
    hardly_matters,
    helps,
    judge,
    moderate_hardly_hurts,
)
from trustgp_experiments.studies.ablation.study import draw_ablation

# --- the rules, on made-up numbers -----------------------------------------------------------


def curve(*nll, work=None, labels=None, kind="own"):
    """Settings that grow; a number, or one a seed."""
    seeds = [values if isinstance(values, tuple) else (values,) for values in nll]
    labels = labels or [str(2**power) for power in range(len(nll))]
    return Curve(kind, labels, seeds, [(value,) for value in work or [1.0] * len(nll)])


def test_the_nll_grows_where_the_ends_differ_in_every_seed_and_no_step_falls():
    assert grows(curve(-2.0, -1.96, -1.92)).holds
    assert grows(curve(-2.0, -2.0 - GAIN / 2, -1.92)).holds  # a step that is next to nothing
    assert not grows(curve(-2.0, -2.0 - 2 * GAIN, -1.92)).holds
    assert not grows(curve(-2.0, -2.1, -2.2)).holds
    assert not grows(curve((-2.0, -1.0), (-1.9, -1.1))).holds  # not in every seed
    assert not grows(curve(-2.0, -2.0 + GAIN / 2)).holds
    assert "work divided by 4" in grows(curve(-2.0, -1.9, work=[4, 1])).because


def test_a_size_hardly_matters_where_best_and_worst_are_near():
    assert hardly_matters(curve(-2.0, -2.0 - LITTLE, -2.01)).holds
    assert not hardly_matters(curve(-2.0, -2.01 - LITTLE, -2.0)).holds
    assert "best 2, worst 1, 0.100 apart" in hardly_matters(curve(-2.0, -2.1)).because


def test_moderate_pruning_must_be_cheap_and_extreme_pruning_dear():
    assert moderate_hardly_hurts(curve(-1.5, -1.98, -2.0)).holds
    assert not moderate_hardly_hurts(curve(-1.5, -1.9, -2.0)).holds  # moderate hurts
    assert not moderate_hardly_hurts(curve(-1.99, -1.99, -2.0)).holds  # extreme does not


def test_to_help_is_to_fall_in_every_seed_and_by_enough():
    assert helps(curve((-2.0, -1.0), (-1.0, 0.0), (-2.1, -1.1))).holds  # the ends alone are compared
    assert not helps(curve((-2.0, -1.0), (-2.5, -0.99))).holds  # not in every seed
    assert not helps(curve((-2.0, -1.0), (-2.0 - GAIN / 2, -1.0 - GAIN / 2))).holds
    assert not helps(curve((-2.1, -1.1), (-2.0, -1.0))).holds


@pytest.mark.parametrize(
    ("own", "plain", "expected"),
    [
        ((-2.0, -2.0, -2.0), [(-1.5, -2.0, -2.0)] * 2, "confirmed"),
        ((-1.5, -2.0, -2.0), [(-1.5, -2.0, -2.0), (-2.0, -2.0, -2.0)], "confirmed in part"),
        ((-1.5, -2.0, -2.0), [(-1.5, -1.5, -2.0)] * 2, "contradicted"),
    ],
)
def test_verdicts_are_by_the_plain_variance_on_every_axis(own, plain, expected):
    observation = next(one for one in OBSERVATIONS if one.rule is moderate_hardly_hurts)
    curves = {
        axis: [curve(*own), curve(*values, kind="plain")]
        for axis, values in zip(observation.axes, plain, strict=True)
    }
    verdict, sentence = judge(observation, curves, {axis: axis for axis in observation.axes})
    assert verdict == expected
    assert f"{observation.claim}, as the paper observed, is {expected}" in sentence
    assert ("(1 of 2)" in sentence) == (expected == "confirmed in part")
    assert sentence.count("Of our own: own") == 2


def test_the_paper_made_four_observations_on_axes_that_are_turned():
    assert len(OBSERVATIONS) == 4
    for quick in (True, False):
        names = {axis.name for axis in paper_axes(quick)}
        assert names == {name for one in OBSERVATIONS for name in one.axes}


# --- axes and trials -------------------------------------------------------------------------


def test_every_axis_has_its_default_and_no_setting_twice():
    for axis in (axis for quick in (True, False) for axis in [*paper_axes(quick), *our_axes(quick)]):
        labels = [point.label for point in axis.points]
        assert axis.default in labels, axis.name
        assert len(set(labels)) == len(labels) >= 2, axis.name


def test_trials_of_one_name_are_one_trial():
    for quick in (True, False):
        axes = [*paper_axes(quick), *our_axes(quick)]
        trials = {trial.name: trial for trial in trials_of(axes)}
        assert all(trials[point.trial.name] == point.trial for axis in axes for point in axis.points)
        different = {(repr(t.options), t.small, t.validated) for t in trials.values()}
        assert len(different) == len(trials) <= 60


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRUSTGP_DATA", raising=False)
        found = Bench(0, Setting(tmp_path_factory.mktemp("bench"), quick=True))
        assert found.rows.source == "arm_slow"
    return found


def test_small_trials_share_a_random_part_of_the_rows(bench):
    inputs, targets = bench.train(small=True)
    again = bench.train(small=True)
    assert len(inputs) == len(targets) == len(bench.rows.train[0]) // SHARE
    assert torch.equal(inputs, again[0])
    together = torch.cat([*bench.rows.train], dim=1)
    rows = {tuple(row) for row in together.tolist()}
    assert all(tuple(row) in rows for row in torch.cat([inputs, targets], dim=1).tolist())


def test_the_same_experts_with_the_witness_are_what_fit_gives(bench):
    alone = bench.fitted(DEFAULT)
    heard = bench.fitted(DEFAULT, witness=Witness())
    expected = trustgp.fit(
        bench.network,
        bench.rows.train,
        validation=bench.rows.validation,
        num_experts=ablation_trials.QUICK_EXPERTS,
        budget="none",
        progress=False,
    )
    inputs = bench.rows.test[0]
    assert alone.witness is None
    for found, wanted in (
        (heard.predict(inputs), expected.predict(inputs)),
        (heard.predict(inputs).corrected, expected.predict(inputs).corrected),
    ):
        assert torch.equal(found.mean, wanted.mean)
        assert torch.equal(found.variance, wanted.variance)
    assert not torch.equal(alone.predict(inputs).variance, heard.predict(inputs).variance)


def test_leave_one_out_sees_no_validation_rows(bench):
    model = bench.fitted(LEFT_OUT)
    assert model.memory.validation is None
    own, corrected, *left_out = model.calibrations
    assert [own, corrected] == left_out  # as the training rows have them
    assert bench.fitted(SMALL).memory.validation is not None


def test_sizes_count_every_row_that_an_expert_holds(fitted):
    rows = [len(expert.rows) for expert in fitted.mixtures[0].experts]
    found = sizes_of(fitted)
    assert found["experts"] == len(rows) == 4
    assert found["held_rows"] == pytest.approx(sum(rows) / 4)
    assert found["work"] == sum(count**3 for count in rows)
    assert found["failed"] == 0


def test_scores_are_those_of_all_rows_and_outputs(fitted, toy):
    inputs, targets = toy(30, 7)
    prediction = fitted.predict(inputs)
    found = scores_of({"own": prediction, "plain": prediction.plain}, targets)
    for name, one in (("own", prediction), ("plain", prediction.plain)):
        squared = (targets - one.mean) ** 2
        nll = 0.5 * (math.log(2 * math.pi) + one.variance.log() + squared / one.variance)
        assert found["nll"][name] == pytest.approx(float(nll.mean()), rel=1e-10)
        assert found["mse"][name] == pytest.approx(float(squared.mean()), rel=1e-10)
    assert 0 <= found["coverage"]["own"] <= 1


# --- the figure ------------------------------------------------------------------------------


def test_the_figure_has_a_panel_for_each_axis_and_copes_with_gaps(tmp_path):
    pytest.importorskip("matplotlib")
    axes = [*paper_axes(False), *our_axes(False)]
    cells = {
        axis.name: {
            point.label: {column: [-2.0 - place / 10, 0.01] for column in point.scores}
            for place, point in enumerate(axis.points)
        }
        for axis in axes
    }
    shown = {axis.name: (*KINDS, *HEARD) for axis in axes}
    draw_ablation(axes, cells, shown, tmp_path / "full.png")
    draw_ablation(axes[:1], cells, shown, tmp_path / "one.png")
    sizes = [int.from_bytes((tmp_path / name).read_bytes()[20:24]) for name in ("full.png", "one.png")]
    assert sizes[0] > 2 * sizes[1]  # three rows of panels, and one


# --- the study -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Its folder and its result."""
    pytest.importorskip("matplotlib")
    out = tmp_path_factory.mktemp("ablation")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRUSTGP_DATA", raising=False)
        return out, run_study("ablation", out, quick=True, seeds=1)


def test_the_result_is_valid_and_says_what_it_was_made_from(quick):
    out, result = quick
    stored = read_result(out / "ablation" / "result.json")
    assert stored.findings == list(result.findings)
    assert [table.block for table in stored.tables] == ["axis", "axis"]
    assert "Simulated arm" in stored.protocol[0]
    assert str(LITTLE) in " ".join(stored.protocol)
    assert stored.provenance["data"] == "arm_slow"
    assert (out / "ablation" / stored.figures[0].file).stat().st_size > 20_000


def test_every_setting_has_its_row_and_the_defaults_are_marked(quick):
    for axes, table in zip((paper_axes(True), our_axes(True)), quick[1].tables, strict=True):
        points = [(axis, point) for axis in axes for point in axis.points]
        assert len(table.rows) == len(points)
        for (axis, point), row in zip(points, table.rows, strict=True):
            assert row[0] == axis.title
            assert row[1].startswith(point.label)
            assert ("(default)" in row[1]) == (point.label == axis.default)


def test_cells_are_the_means_of_what_was_measured(quick):
    numbers = quick[1].numbers
    default = [seed["default"]["nll"] for seed in numbers["seeds"]]
    cells = numbers["axes"]["experts"][str(ablation_trials.QUICK_EXPERTS)]
    assert cells["own"] == mean_spread([nll["own"] for nll in default])
    assert numbers["axes"]["witness"]["on"] == {
        kind: mean_spread([nll[kind] for nll in default]) for kind in HEARD
    }
    evidence = numbers["axes"]["calibration"]["evidence only"]
    assert evidence == {"own": mean_spread([nll["plain"] for nll in default])}


def test_each_observation_has_a_verdict_that_its_sentence_repeats(quick):
    verdicts = quick[1].numbers["observations"]
    against, *sentences = quick[1].findings
    assert against.startswith("Against us: ")
    for one, sentence in zip(OBSERVATIONS, sentences, strict=False):
        assert verdicts[one.claim] in ("confirmed", "confirmed in part", "contradicted")
        assert f"{one.claim}, as the paper observed, is {verdicts[one.claim]}" in sentence


def test_the_same_seed_gives_the_same_numbers(quick, bench):
    """On rows and a network made anew, for a trial of either size."""
    (before,) = quick[1].numbers["seeds"]
    for trial in (DEFAULT, SMALL):
        again = bench.measure(trial, heard=True)
        assert timeless(again) == timeless(before[trial.name]), trial.name


def timeless(numbers):
    return {key: value for key, value in numbers.items() if not key.endswith("_seconds")}


def test_a_finished_part_is_not_done_again(quick, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("no network is needed")

    monkeypatch.delenv("TRUSTGP_DATA", raising=False)
    monkeypatch.setattr(ablation_trials, "arm_recipe", refuse)
    monkeypatch.setattr(ablation_trials, "arm_rows", refuse)
    out, result = quick
    assert run_study("ablation", out, quick=True, seeds=1).numbers == result.numbers


def test_without_matplotlib_nothing_runs_and_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"trustgp\[plots\]"):
        run_study("ablation", tmp_path, quick=True)
    assert not (tmp_path / "ablation" / "parts").exists()
