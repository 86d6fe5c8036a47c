"""The ablation: its rules on made-up numbers, its axes and trials, and a small run on the simulated arm."""

import math

import pytest
import torch

import trustgp
from trustgp.experts.witness import Witness
from trustgp_experiments.core.result import Setting
from trustgp_experiments.core.storage import rounded
from trustgp_experiments.studies.ablation import axes
from trustgp_experiments.studies.ablation import observations as rules
from trustgp_experiments.studies.ablation.axes import DEFAULT, SMALL, our_axes, paper_axes
from trustgp_experiments.studies.ablation.observations import GAIN, OBSERVATIONS


def curve(*nll, work=None, kind="own"):
    """Settings that grow; a number, or one a seed."""
    seeds = [values if isinstance(values, tuple) else (values,) for values in nll]
    labels = [str(2**power) for power in range(len(nll))]
    return rules.SettingCurve(kind, labels, seeds, [(value,) for value in work or [1.0] * len(nll)])


@pytest.mark.parametrize(
    ("rule", "values", "holds"),
    [
        (rules.grows, (-2.0, -1.96, -1.92), True),
        (rules.grows, (-2.0, -2.0 - GAIN / 2, -1.92), True),  # a step that is next to nothing
        (rules.grows, (-2.0, -2.0 - 2 * GAIN, -1.92), False),
        (rules.grows, (-2.0, -2.1, -2.2), False),
        (rules.grows, ((-2.0, -1.0), (-1.9, -1.1)), False),  # not in every seed
        (rules.grows, (-2.0, -2.0 + GAIN / 2), False),
        (rules.hardly_matters, (-2.0, -2.0 - rules.SMALL_COST, -2.01), True),
        (rules.hardly_matters, (-2.0, -2.01 - rules.SMALL_COST, -2.0), False),
        (rules.moderate_hardly_hurts, (-1.5, -1.98, -2.0), True),
        (rules.moderate_hardly_hurts, (-1.5, -1.9, -2.0), False),  # moderate hurts
        (rules.moderate_hardly_hurts, (-1.99, -1.99, -2.0), False),  # extreme does not
        (rules.helps, ((-2.0, -1.0), (-1.0, 0.0), (-2.1, -1.1)), True),  # the ends alone are compared
        (rules.helps, ((-2.0, -1.0), (-2.5, -0.99)), False),  # not in every seed
        (rules.helps, ((-2.0, -1.0), (-2.0 - GAIN / 2, -1.0 - GAIN / 2)), False),
        (rules.helps, ((-2.1, -1.1), (-2.0, -1.0)), False),
    ],
)
def test_a_rule_holds_by_the_means_and_in_every_seed(rule, values, holds):
    assert rule(curve(*values)).holds is holds


@pytest.mark.parametrize(
    ("own", "plain", "expected"),
    [
        ((-2.0, -2.0, -2.0), [(-1.5, -2.0, -2.0)] * 2, "confirmed."),
        ((-1.5, -2.0, -2.0), [(-1.5, -2.0, -2.0), (-2.0, -2.0, -2.0)], "confirmed in part (1 of 2)."),
        ((-1.5, -2.0, -2.0), [(-1.5, -1.5, -2.0)] * 2, "contradicted."),
    ],
)
def test_verdicts_are_by_the_plain_variance_on_every_axis(own, plain, expected):
    observation = next(one for one in OBSERVATIONS if one.rule is rules.moderate_hardly_hurts)
    pairs = zip(observation.axes, plain, strict=True)
    curves = {axis: [curve(*own), curve(*values, kind="plain")] for axis, values in pairs}
    sentence = rules.judge(observation, curves, {axis: axis for axis in observation.axes})
    assert f"{observation.claim}, as the paper observed, is {expected}" in sentence
    assert sentence.count("Of our own: own") == 2


@pytest.mark.parametrize("quick", [True, False])
def test_every_axis_has_its_default_no_setting_twice_and_trials_of_one_name_are_one(quick):
    paper, ours = paper_axes(quick), our_axes(quick)
    assert {axis.name for axis in paper} == {name for one in OBSERVATIONS for name in one.axes}
    for axis in (*paper, *ours):
        labels = list(axis.trials)
        assert axis.default in labels, axis.name
        assert len(labels) >= 2, axis.name
    trials = {trial.name: trial for trial in axes.trials_of([*paper, *ours])}
    assert all(trials[one.name] == one for axis in (*paper, *ours) for one in axis.trials.values())
    different = {(repr(t.options), t.small, t.validated) for t in trials.values()}
    assert len(different) == len(trials) <= 60


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRUSTGP_DATA", raising=False)
        made = axes.Bench(0, Setting(tmp_path_factory.mktemp("bench"), quick=True))
        assert made.rows.source == "arm_slow"
    return made


def test_small_trials_share_a_random_part_of_the_rows(bench):
    inputs, targets = bench.train(small=True)
    assert len(inputs) == len(targets) == len(bench.rows.train[0]) // axes.SMALL_SHARE
    assert torch.equal(inputs, bench.train(small=True)[0])
    rows = {tuple(row) for row in torch.cat([*bench.rows.train], dim=1).tolist()}
    assert all(tuple(row) in rows for row in torch.cat([inputs, targets], dim=1).tolist())


def test_the_default_trial_is_what_fit_gives_and_leave_one_out_uses_no_validation_rows(bench):
    """Would catch a trial whose options differ from the library's defaults."""
    without, with_witness = bench.fitted(DEFAULT), bench.fitted(DEFAULT, witness=Witness())
    options = {"validation": bench.rows.validation, "num_experts": axes.QUICK_EXPERTS, "budget": "none"}
    expected = trustgp.fit(bench.network, bench.rows.train, progress=False, **options)
    inputs = bench.rows.test[0]
    ours, theirs = with_witness.predict(inputs), expected.predict(inputs)
    for one, other in ((ours, theirs), (ours.corrected, theirs.corrected)):
        assert torch.equal(one.mean, other.mean)
        assert torch.equal(one.variance, other.variance)
    assert without.witness is None
    assert not torch.equal(without.predict(inputs).variance, ours.variance)
    model = bench.fitted(axes.LEAVE_ONE_OUT)
    assert model.memory.validation is None
    own, corrected, *left_out = model.calibrations
    assert [own, corrected] == left_out  # as the training rows have them


def test_a_trial_reports_the_nll_of_all_test_rows_and_its_sizes(bench, small_run):
    """Would catch wrong scores; and randomness, since the small run measured the same trials."""
    (stored,) = small_run("ablation")[1].numbers["seeds"]
    inputs, targets = bench.rows.test
    for trial in (DEFAULT, SMALL):
        measured = bench.measure(trial, witness=True)
        del measured["fit_seconds"]
        assert rounded(measured).items() <= stored[trial.name].items(), trial.name
        model = bench.fitted(trial)
        for name, one in (("own", model.predict(inputs)), ("plain", model.predict(inputs).plain)):
            squared = (targets - one.mean) ** 2
            nll = 0.5 * (math.log(2 * math.pi) + one.variance.log() + squared / one.variance)
            assert measured["nll"][name] == pytest.approx(float(nll.double().mean()), rel=1e-5)
        rows = [len(expert.rows) for mixture in model.mixtures for expert in mixture.experts]
        assert measured["held_rows"] == pytest.approx(sum(rows) / len(rows))
        assert measured["work"] == sum(count**3 for count in rows)
