"""Grid, Pivot, paired differences and claims: what a study measures, shows and concludes."""

import math
import os
import subprocess
import sys

import pytest
from scipy import stats
from scipy.stats import ttest_rel
from study_parts import drawn

from trustgp_experiments.core.claim import (
    Check,
    Claim,
    Difference,
    correct,
    mean_spread,
    paired,
    tally,
    versus,
    within,
    words,
)
from trustgp_experiments.core.dropout import FIRST, RATES, best_rate, try_rates
from trustgp_experiments.core.grid import Grid, keep_part, run_parallel
from trustgp_experiments.core.pivot import Measure, Pivot
from trustgp_experiments.core.result import Column, Setting, StudyError

NLL = Measure("nll", Column("NLL", better="low"))
SHARE = Measure("share", Column("share", digits=1, unit="%"), factor=100.0)
METHOD = {"method": Column.text("method")}
AXES = ("trained", "method")


def one_case(setting: Setting, arm: str, seed: int) -> dict:
    scores = {"ours": {"nll": float(seed), "share": 0.5}, "theirs": {"nll": "inf", "share": None}}
    return {"made": f"{arm} {seed}", "methods": scores}


def by_method(part: dict) -> dict:
    return {(name,): scores for name, scores in part["methods"].items()}


@pytest.fixture
def grid(tmp_path) -> Grid:
    return Grid.run(Setting(tmp_path, seeds=3), one_case, [("a",), ("b",)], axes=AXES, read=by_method)


def test_parts_are_kept_and_resumed_from(grid, tmp_path):
    files = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "parts").iterdir()}
    assert len(files) == 6
    again = Grid.run(Setting(tmp_path, seeds=3), one_case, [("a",), ("b",)], axes=AXES, read=by_method)
    assert again == grid == Grid.of_runs(AXES, grid.runs(), by_method)
    assert files == {file.name: file.stat().st_mtime_ns for file in (tmp_path / "parts").iterdir()}
    assert grid.parts["b",][2]["made"] == "b 2"


def test_labels_keep_the_order_of_the_study(grid):
    assert grid.along("trained") == ["a", "b"]
    assert grid.along("method", trained="a") == ["ours", "theirs"]
    assert grid.along("method", "trained") == [("ours", "a"), ("theirs", "a"), ("ours", "b"), ("theirs", "b")]


def test_a_mean_is_over_seeds_and_infinite_where_a_seed_is(grid):
    assert grid.mean(("a", "ours"), "nll") == 1.0
    assert grid.mean(("a", "theirs"), "nll") == float("inf")
    assert grid.values(("a", "theirs"), "share") is None
    with pytest.raises(StudyError, match="'share' was not measured at"):
        grid.mean(("a", "theirs"), "share")


def test_a_place_that_a_seed_lacks_is_left_out_and_places_have_a_label_for_each_axis():
    seeds = [{"methods": {"x": {}, "y": {}}}, {"methods": {"x": {}}}]
    assert Grid.of(AXES, {("a",): seeds}, by_method).along("method") == ["x"]
    with pytest.raises(StudyError, match="labels for the axes"):
        Grid.of(("method",), {("a",): [{}]}, lambda _: {("ours",): {}})


def test_a_pivot_has_rows_by_axes_and_columns_by_measures_or_places(grid):
    rows = {"trained": Column.text("on"), **METHOD}
    table = Pivot("All", rows, [NLL, SHARE], names={"a": "A"}, block="on").table(grid)
    assert table.rows[0] == ["A", "ours", [1.0, 1.0], [50.0, 0.0]]
    assert table.rows[3] == ["b", "theirs", "infinite", None]
    across = Pivot("NLL", METHOD, [NLL.at(arm, digits=1, trained=arm) for arm in ("a", "b")]).table(grid)
    assert [(column.name, column.digits) for column in across.columns] == [("method", -1), ("a", 1), ("b", 1)]
    assert across.rows[0][1] == across.rows[0][2]


def test_a_row_without_any_of_the_measures_is_left_out_and_statistics_may_differ(grid):
    assert Pivot("None", METHOD, [Measure("mse", Column("mse"))], at={"trained": "a"}).table(grid).rows == []
    text = Measure("share", Column.text("sure"), words=lambda value: "half" if value == 0.5 else "no")
    best = Measure("nll", Column("best"), statistic=min)
    rows = Pivot("Two", METHOD, [text, best], at={"trained": "a"}).table(grid).rows
    assert rows == [["ours", "half", 0.0], ["theirs", None, "infinite"]]


def test_a_claim_counts_the_cases_and_names_those_in_which_it_fails():
    claim = Claim("Ours covers", [within("a", 0.95, 0.9, 1.0), within("b", 0.89, 0.9, 1.0)])
    assert claim.sentence == "Ours covers: in 1 of 2 cases; not in: b (89.0 %)."
    assert (claim.count, claim.verdict) == (1, "confirmed in part")
    assert Claim("It is", [Check("a", True)]).sentence == "It is: in 1 of 1 cases."
    assert Claim("It is", [Check("a", False)]).verdict == "contradicted"
    assert Claim("It is", []).verdict == "confirmed"
    passed = [within("a", share, 0.9, 0.985).holds for share in (0.89, 0.9, 0.985, 0.99)]
    assert passed == [False, True, True, False]


def test_a_difference_is_judged_seed_by_seed_by_students_t():
    ours, theirs = [1.0, 2.1, 3.0, 4.2, 5.1], [1.2, 2.2, 3.3, 4.3, 5.2]
    gap = paired(ours, theirs)
    test = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (gap.low, gap.high) == pytest.approx((test.low, test.high))
    assert gap.mean == pytest.approx(-0.16)
    assert (gap.verdict, paired(theirs, ours).verdict) == ("better", "worse")
    assert paired(ours, theirs, lower_is_better=False).verdict == "worse"
    assert paired([1.0, 2.0], [1.1, 1.8]).verdict == "alike"
    assert paired([1.0], [2.0]).verdict == "alike"  # one seed decides nothing
    assert gap.words() == f"-0.16 ({test.low:+.2f} to {test.high:+.2f})"
    assert gap.p == pytest.approx(ttest_rel(ours, theirs).pvalue)
    wider = paired(ours, theirs, overlap=0.1)  # Nadeau and Bengio: 1/n becomes 1/n + overlap
    assert (wider.high - wider.low) / (gap.high - gap.low) == pytest.approx((0.3 / 0.2) ** 0.5)


def test_verdicts_are_corrected_for_the_number_of_rivals_by_holms_method():
    """Of 0.01, 0.02, 0.03 and 0.04 only the first is below 0.05 / 4: the others fall with the second."""
    p = {"d": 0.04, "a": 0.01, "c": 0.03, "b": 0.02}
    corrected = correct({name: Difference(1.0, 0.5, 1.5, p=value) for name, value in p.items()})
    assert list(corrected) == list(p)
    assert [corrected[name].holm for name in "abcd"] == pytest.approx([0.04, 0.06, 0.06, 0.06])
    assert tally(list(corrected.values())) == "4 / 0 / 0 (1 / 3 / 0)"
    assert tally([]) is None


def test_an_infinite_cost_is_worse_than_any_other():
    assert paired([math.inf, 1.0], [2.0, 2.0]).verdict == "worse"
    assert paired([2.0, 2.0], [math.inf, 1.0]).verdict == "better"
    assert paired([math.inf, 1.0], [math.inf, 9.0]).verdict == "alike"


def test_cases_are_counted_and_losses_named_the_largest_first():
    gaps = {"a": paired([1.0, 1.1], [0.0, 0.1]), "b": paired([0.0, 1.0], [1.0, 0.0])}
    gaps |= {"c": paired([3.0, 3.1], [0.0, 0.1]), "d": paired([0.0, 0.1], [3.0, 3.1])}
    text = versus(gaps, digits=1)
    assert text.startswith("worse in 2 (c by +3.0 (")
    assert "; a by +1.0 (" in text
    assert text.endswith("alike in 1, better in 1 of 4 cases")


def test_spread_is_over_seeds():
    assert mean_spread([1.0, 2.0, 6.0]) == pytest.approx([3.0, 7.0**0.5])
    assert words([1.234, 0.056]) == "1.23 ± 0.06"


@pytest.mark.parametrize("best", RATES)
def test_rates_of_dropout_are_tried_until_both_neighbours_of_the_best_were(best):
    losses = try_rates(lambda rate: abs(RATES.index(rate) - RATES.index(best)))
    place = RATES.index(best)
    assert best_rate(losses) == best
    assert {str(rate) for rate in (*FIRST, *RATES[max(0, place - 1) : place + 2])} <= set(losses)


def test_the_list_of_studies_imports_nothing_heavy():
    code = "import sys, trustgp_experiments.studies; print({'torch', 'numpy', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# --- processes ---------------------------------------------------------------------------------


def broken(setting: Setting, number: int) -> None:
    raise RuntimeError(f"part {number} broke")


def test_parts_of_other_processes_are_kept_and_are_those_of_this_one(tmp_path):
    """Would catch parts that cannot be sent to a process, or that depend on it."""
    setting = Setting(tmp_path / "two", quick=True, jobs=2)
    run_parallel(setting, keep_part, [(drawn, ("toy",), 0), (drawn, ("toy",), 1)])
    files = {file.name: file.stat().st_mtime_ns for file in (setting.out / "parts").glob("*.json")}
    assert len(files) == 2
    first, second = (keep_part(setting, drawn, ("toy",), seed) for seed in (0, 1))
    assert first != second
    assert files == {file.name: file.stat().st_mtime_ns for file in (setting.out / "parts").glob("*.json")}
    assert first == keep_part(Setting(tmp_path / "one", quick=True), drawn, ("toy",), 0)
    others = [(drawn, ("toy",), seed) for seed in (2, 3)]
    with pytest.raises(KeyError, match="nothing"):
        run_parallel(setting, keep_part, [(drawn, ("nothing",), 0), (drawn, ("nothing",), 1), *others])
    assert len(list((setting.out / "parts").glob("*.json"))) == 4, (
        "a part that fails does not stop the others"
    )


def test_with_one_job_nothing_is_done_in_other_processes(tmp_path):
    run_parallel(Setting(tmp_path), broken, [(1,), (2,)])
    assert os.listdir(tmp_path) == []
