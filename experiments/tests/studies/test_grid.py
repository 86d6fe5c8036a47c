"""Grid, Pivot and Claim: what a study measures, shows and says."""

import math
import subprocess
import sys

import pytest
from scipy import stats

from trustgp_experiments.core.claim import Check, Claim, at_most, paired, within
from trustgp_experiments.core.grid import Grid
from trustgp_experiments.core.pivot import Measure, Pivot
from trustgp_experiments.core.registry import require_extras
from trustgp_experiments.core.result import Column, Setting, StudyError

NLL = Measure("nll", Column("NLL", better="low"))
SHARE = Measure("share", Column("share", digits=1, unit="%"), factor=100.0)
METHOD = {"method": Column.text("method")}
AXES = ("trained", "method")


def one_case(setting: Setting, arm: str, seed: int) -> dict:
    if arm == "lost":
        raise FileNotFoundError("no such arm")
    scores = {"ours": {"nll": float(seed), "share": 0.5}, "theirs": {"nll": "inf", "share": None}}
    return {"made": f"{arm} {seed}", "methods": scores}


def by_method(part: dict) -> dict:
    return {(name,): scores for name, scores in part["methods"].items()}


@pytest.fixture
def grid(tmp_path) -> Grid:
    return Grid.run(Setting(tmp_path, seeds=3), one_case, [("a",), ("b",)], axes=AXES, read=by_method)


def test_parts_are_kept_and_gone_on_from(grid, tmp_path):
    files = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "parts").iterdir()}
    assert len(files) == 6
    again = Grid.run(Setting(tmp_path, seeds=3), one_case, [("a",), ("b",)], axes=AXES, read=by_method)
    assert again == grid
    assert files == {file.name: file.stat().st_mtime_ns for file in (tmp_path / "parts").iterdir()}
    assert grid.parts["b",][2]["made"] == "b 2"


def test_labels_stand_in_the_order_of_the_study(grid):
    assert grid.along("trained") == ["a", "b"]
    assert grid.along("method", trained="a") == ["ours", "theirs"]
    assert grid.along("method", "trained") == [("ours", "a"), ("theirs", "a"), ("ours", "b"), ("theirs", "b")]


def test_a_mean_is_over_seeds_and_infinite_where_a_seed_is(grid):
    assert grid.mean(("a", "ours"), "nll") == 1.0
    assert grid.mean(("a", "theirs"), "nll") == float("inf")
    assert grid.values(("a", "theirs"), "share") is None
    with pytest.raises(StudyError, match="'share' was not measured at"):
        grid.mean(("a", "theirs"), "share")


def test_what_is_missing_is_known_with_its_reason(tmp_path):
    setting, cases = Setting(tmp_path, seeds=1), [("a",), ("lost",)]
    with pytest.raises(FileNotFoundError):
        Grid.run(setting, one_case, cases, axes=AXES, read=by_method)
    seeds = [{"methods": {"x": {}, "y": {}}}, {"methods": {"x": {}}}]
    uneven = Grid.of(AXES, {("a",): seeds}, by_method)
    assert uneven.missing == {("a", "y"): "not in seed 1"}
    assert uneven.along("method") == ["x"]


def test_places_have_a_label_for_each_axis():
    with pytest.raises(StudyError, match="labels for the axes"):
        Grid.of(("method",), {("a",): [{}]}, lambda _: {("ours",): {}})


def test_a_pivot_has_rows_by_axes_and_columns_by_measures_or_places(grid):
    table = Pivot(
        "All", {"trained": Column.text("on"), **METHOD}, [NLL, SHARE], names={"a": "A"}, block="on"
    ).table(grid)
    assert table.rows[0] == ["A", "ours", [1.0, 1.0], [50.0, 0.0]]
    assert table.rows[3] == ["b", "theirs", "infinite", None]
    across = Pivot("NLL", METHOD, [NLL.at(arm, digits=1, trained=arm) for arm in ("a", "b")]).table(grid)
    assert [(column.name, column.digits) for column in across.columns] == [("method", -1), ("a", 1), ("b", 1)]
    assert across.rows[0][1] == across.rows[0][2]


def test_a_row_without_any_of_the_measures_is_left_out_and_statistics_may_differ(grid):
    assert Pivot("None", METHOD, [Measure("mse", Column("mse"))], at={"trained": "a"}).table(grid).rows == []
    said = Measure("share", Column.text("sure"), words=lambda value: "half" if value == 0.5 else "no")
    best = Measure("nll", Column("best"), statistic=min)
    rows = Pivot("Two", METHOD, [said, best], at={"trained": "a"}).table(grid).rows
    assert rows == [["ours", "half", 0.0], ["theirs", None, "infinite"]]


def test_a_claim_says_where_it_holds_and_the_numbers_where_it_does_not():
    claim = Claim("Ours is lower", [at_most("a", 1.0, 2.0), at_most("b", 3.0, 2.0, of="nll", rival="theirs")])
    assert claim.sentence == "Ours is lower: in 1 of 2 cases; not in: b (nll 3 against 2 of theirs)."
    assert (claim.held, claim.lost, claim.verdict) == (1, [claim.checks[1]], "confirmed in part")
    assert Claim("It is", [Check("a", True)]).sentence == "It is: in 1 of 1 cases."
    assert Claim("It is", [Check("a", False)]).verdict == "contradicted"
    assert Claim("It is", []).verdict == "confirmed"


def test_a_tie_may_count_or_not_and_bounds_are_inside():
    assert at_most("a", 1.0, 1.0).holds
    assert not at_most("a", 1.0, 1.0, strict=True).holds
    assert at_most("a", 1.1, 1.0, slack=0.2).holds
    assert [within("a", share, 0.9, 0.985).holds for share in (0.89, 0.9, 0.985, 0.99)] == [
        False,
        True,
        True,
        False,
    ]
    assert str(within("a", 0.89, 0.9, 1.0, of="ours")) == "a (ours 89.0 %)"


def test_a_missing_extra_is_named_with_the_command_that_brings_it(monkeypatch):
    for module in ("matplotlib", "laplace"):
        monkeypatch.setitem(sys.modules, module, None)
    require_extras("Nothing", ())
    with pytest.raises(ImportError, match=r'study toy needs matplotlib, .* pip install "trustgp\[plots\]"$'):
        require_extras("The study toy", ("plots",))
    with pytest.raises(
        ImportError, match=r"needs matplotlib, laplace.*\[plots,peers\].*--no-deps laplace-torch"
    ):
        require_extras("A study", ("plots", "peers"))


def test_the_list_of_studies_imports_nothing_heavy():
    code = "import sys, trustgp_experiments.studies; print({'torch', 'numpy', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_difference_is_judged_seed_by_seed_by_students_t():
    ours, theirs = [1.0, 2.1, 3.0, 4.2, 5.1], [1.2, 2.2, 3.3, 4.3, 5.2]
    found = paired(ours, theirs)
    test = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((test.low, test.high))
    assert found.mean == pytest.approx(-0.16)
    assert (found.verdict, paired(theirs, ours).verdict) == ("better", "worse")
    assert paired(ours, theirs, lower_is_better=False).verdict == "worse"
    assert paired([1.0, 2.0], [1.1, 1.8]).verdict == "alike"
    assert paired([1.0], [2.0]).verdict == "alike"  # one seed says nothing
    assert found.words() == f"-0.16 ({test.low:+.2f} to {test.high:+.2f})"


def test_an_infinite_cost_is_worse_than_any_other():
    assert paired([math.inf, 1.0], [2.0, 2.0]).verdict == "worse"
    assert paired([2.0, 2.0], [math.inf, 1.0]).verdict == "better"
    assert paired([math.inf, 1.0], [math.inf, 9.0]).verdict == "alike"
