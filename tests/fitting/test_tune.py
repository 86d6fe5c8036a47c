"""The frontier: what was tried, how it was scored, and what is chosen within a budget."""

import re
from importlib import import_module

import pytest
import torch
from blobs import blobs
from blobs import fit as fit_blobs

import trustgp
from trustgp.data.quantities import Budget, parse_budget
from trustgp.data.rows import read_rows
from trustgp.experts.posteriors import Sizes
from trustgp.fitting import compress, tune
from trustgp.metrics import auroc, gaussian_nll
from trustgp.state.model_file import file_bytes
from trustgp.state.model_state import answers


@pytest.fixture(scope="module")
def held(toy):
    return toy(240, seed=7)


@pytest.fixture(scope="module")
def whole(fit_case, held):
    return fit_case(validation=held)


@pytest.fixture(scope="module")
def small_steps():
    """Steps that bite on a small case; the module's are for experts of a thousand rows."""
    return ((20, 40, 10), (10, 20, 0))


@pytest.fixture(scope="module")
def tuned(whole, held, small_steps):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compress, "STEPS", small_steps)
        return trustgp.tune(whole, held, calls=2, progress=False)


@pytest.mark.parametrize(
    ("given", "size", "seconds"),
    [
        (None, None, None),
        (1000, 1000, None),
        ("64 MiB", 64 * 2**20, None),
        ("2 ms", None, 2e-3),
        ("1.5ms", None, 1.5e-3),
        ("500 us", None, 5e-4),
        ("500 µs", None, 5e-4),
        ("3 s", None, 3.0),
        ("64 MiB, 2 ms", 64 * 2**20, 2e-3),
        ("2 ms,1 kB", 1000, 2e-3),
        ((4096, "2 ms"), 4096, 2e-3),
    ],
)
def test_budgets_are_bytes_times_or_both(given, size, seconds):
    found = parse_budget(given, name="budget")
    assert found.size == size
    assert found.seconds == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    "given",
    ["fast", "2 parsecs", "", "64", "-2 ms", "1 MB, 2 MB", "1 ms, 2 ms", (), (2.5,), True, ("2 ms", None)],
)
def test_nonsense_is_refused_with_what_to_write(given):
    with pytest.raises(ValueError, match=r'budget=.*write bytes, a text like "64 MiB".*a time like "2 ms"'):
        parse_budget(given, name="budget")


@pytest.mark.parametrize("given", ["0 ms", "0 MiB", 0, -5])
def test_a_budget_of_nothing_is_refused(given):
    with pytest.raises(ValueError, match="positive"):
        parse_budget(given, name="budget")


def test_a_budget_reads_as_it_was_meant():
    assert str(Budget(64 * 2**20, 2e-3)) == "64.0 MiB and 2 ms"
    assert str(Budget()) == "no limit"


def test_every_line_is_what_its_model_scores_on_rows_that_did_not_calibrate_it(whole, held, tuned):
    rows = read_rows(held, name="held")
    calibrating, scoring = tune.halves(rows)
    row = next(row for row in tuned.table if row.name == "rows=20, gate=40, witness=10")
    model = trustgp.compress(
        whole,
        rows=20,
        gate=40,
        witness=10,
        validation=(calibrating.inputs, calibrating.targets),
        progress=False,
    )
    p = model.predict(scoring.inputs)
    for name, said in (("nll", p), ("corrected", p.corrected)):
        expected = gaussian_nll(said.mean, said.variance, scoring.targets).mean()
        assert getattr(row, name) == pytest.approx(float(expected), rel=1e-9)
    mean = scoring.inputs.mean(dim=0)
    strange = model.predict(mean + 3 * (scoring.inputs - mean))
    assert row.auroc == pytest.approx(float(auroc(p.score, strange.score)), abs=1e-12)
    assert row.nbytes == model.nbytes
    moved = (p.expert != whole.predict(scoring.inputs).expert).double().mean()
    assert row.moved == pytest.approx(float(moved))


def test_the_size_of_the_file_is_that_of_the_file(whole, held, tmp_path):
    for model in (whole, trustgp.compress(whole, rows=9, dtype="float16", progress=False)):
        model.save(tmp_path / "model.trustgp")
        assert file_bytes(model.state) == (tmp_path / "model.trustgp").stat().st_size


def test_validation_rows_are_split_in_blocks_and_each_counts_once(held):
    one, other = tune.halves(read_rows(held, name="held"))
    assert len(one) == len(other) == 120
    both = torch.cat([one.inputs, other.inputs]).sort(dim=0).values
    assert torch.equal(both, held[0].sort(dim=0).values)
    assert torch.equal(one.inputs[:24], held[0][:24])  # a block is a stretch of the rows
    assert torch.equal(other.inputs[:24], held[0][24:48])


def test_the_first_line_is_the_model_itself_and_the_ladder_only_goes_down(tuned, whole):
    assert tuned.table[0].name == "as it is"
    assert tuned.table[0].moved == 0
    assert tuned.table[0].nbytes == whole.nbytes
    assert all(row.nbytes <= whole.nbytes for row in tuned.table)
    assert len({row.name for row in tuned.table}) == len(tuned.table) >= 6


def test_limits_that_nothing_reaches_are_not_tried(fit_case, held):
    found = compress.ladder(fit_case(validation=held, witness=None))
    assert all(sizes.witness is None for sizes in found)
    assert all(sizes.rows is None or sizes.rows < 160 for sizes in found)
    assert len(set(found)) == len(found)
    assert found[0] == Sizes()


def test_without_a_limit_the_best_score_is_chosen(tuned):
    assert tuned.chosen == min(tuned.table, key=lambda row: row.nll).name
    assert all(row.fits for row in tuned.table)


@pytest.mark.parametrize("by", ["nll", "corrected", "auroc"])
def test_within_a_budget_the_best_that_fits_is_chosen(whole, held, tuned, small_steps, by, monkeypatch):
    monkeypatch.setattr(compress, "STEPS", small_steps)
    limit = sorted(row.nbytes for row in tuned.table)[2]
    found = trustgp.tune(whole, held, budget=limit, by=by, calls=1, progress=False)
    fitting = [row for row in found.table if row.nbytes <= limit]
    assert [row.name for row in found.table if row.fits] == [row.name for row in fitting]
    sign = -1 if by == "auroc" else 1
    assert found.chosen == min(fitting, key=lambda row: (sign * getattr(row, by), row.nbytes)).name
    assert found.best.nbytes <= limit
    assert found.best.origin.compressed == found.chosen


def test_the_chosen_model_is_calibrated_on_all_validation_rows(tuned, held):
    assert len(tuned.best.held_scores) == len(held[0])
    best = tuned.best
    rows = best.origin.likelihood.calibration_rows(*answers(best.state, held[0]), held[1])
    again = best.origin.likelihood.recalibrate(rows, best.shape, best.calibrations)
    assert torch.allclose(again[0].level, tuned.best.calibrations[0].level, rtol=1e-6)


def test_where_nothing_fits_the_error_says_what_the_smallest_and_the_fastest_take(
    whole, held, tuned, small_steps, monkeypatch
):
    monkeypatch.setattr(compress, "STEPS", small_steps)
    least = min(row.nbytes for row in tuned.table)
    with pytest.raises(ValueError, match=r"nothing fits within 100 B.*the smallest .* holds") as error:
        trustgp.tune(whole, held, budget=100, calls=1, progress=False)
    assert re.search(rf"holds {least / 1024:.1f} KiB", str(error.value))
    with pytest.raises(ValueError, match=r"nothing fits within 1e-06 ms.*the fastest"):
        trustgp.tune(whole, held, budget="0.000001 ms", calls=1, progress=False)


def test_the_model_that_was_given_stays_as_it_is(whole, held, state_of, monkeypatch, small_steps):
    monkeypatch.setattr(compress, "STEPS", small_steps)
    before = {name: value.clone() for name, value in state_of(whole).items()}
    trustgp.tune(whole, held, calls=1, progress=False)
    after = state_of(whole)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_given_novel_rows_are_those_that_are_told_apart(whole, held, tuned, monkeypatch, small_steps):
    monkeypatch.setattr(compress, "STEPS", small_steps)
    far = trustgp.tune(whole, held, novel=50 * held[0], calls=1, progress=False)
    same = trustgp.tune(whole, held, novel=held[0], calls=1, progress=False)
    assert far.table[0].auroc > 0.95 > same.table[0].auroc
    assert "given rows" in far.strange


def test_models_take_turns_while_they_are_timed(held, monkeypatch):
    order = []

    def predict(state, inputs):
        assert len(inputs) == 1
        order.append(state.name)

    monkeypatch.setattr(tune, "predict", predict)

    class Clocked:
        device = torch.device("cpu")

        def __init__(self, name):
            self.name = name

    spent = tune.times([Clocked("a"), Clocked("b")], read_rows(held, name="held"), calls=3)
    assert order == ["a", "b"] * 4  # the first round warms up
    assert all(seconds > 0 for seconds in spent)


def test_the_table_reads_well_and_the_figure_is_drawn(tuned, tmp_path):
    pytest.importorskip("matplotlib")
    text = str(tuned)
    assert "Within no limit, by nll" in text
    assert all(row.name in text for row in tuned.table)
    assert "120 rows calibrate, 120 score" in text
    tuned.plot(tmp_path / "frontier.png")
    assert (tmp_path / "frontier.png").stat().st_size > 10_000


def test_with_the_training_rows_other_models_are_fitted_and_tried(case, whole, held, monkeypatch):
    monkeypatch.setattr(compress, "STEPS", ())
    monkeypatch.setattr("trustgp.fitting.tune.WIDTHS", (64,))
    found = trustgp.tune(whole, held, train=(case.inputs, case.targets), calls=1, progress=False)
    names = {row.name for row in found.table}
    assert {'outputs="pseudo"', "Sketch(64)", "last layer"} <= names
    smallest = min(found.table, key=lambda row: row.nbytes)
    assert smallest.nbytes < found.table[0].nbytes


def test_classifiers_are_tuned_by_the_likelihood_of_their_classes(monkeypatch):
    monkeypatch.setattr(compress, "STEPS", ((12, 30, 0),))
    case = blobs()
    found = trustgp.tune(fit_blobs(case), case.validation, budget="64 KiB", calls=1, progress=False)
    assert found.best.nbytes <= 64 * 1024
    assert all(row.nll == row.corrected for row in found.table)
    assert torch.equal(found.best.predict(case.test[0]).classes, case.network(case.test[0]).argmax(1))


def test_a_fit_within_a_time_is_tuned_on_its_validation_rows(fit_case, held, monkeypatch, small_steps):
    monkeypatch.setattr(compress, "STEPS", small_steps)
    seen = {}
    original = tune.times

    def slow_first(models, rows, *, calls):  # as if the clock said so
        spent = [5.0, *[1e-3] * (len(models) - 1)]
        seen["models"] = len(original(models, rows, calls=1))
        return spent

    monkeypatch.setattr("trustgp.fitting.tune.times", slow_first)
    model = fit_case(validation=held, budget="2 ms")
    assert seen["models"] > 3
    assert model.origin.compressed


def test_a_fit_within_bytes_is_the_best_form_that_fits(fit_case, whole, held, monkeypatch, small_steps):
    monkeypatch.setattr(compress, "STEPS", small_steps)
    limit = whole.nbytes // 2
    model = fit_case(validation=held, budget=limit)
    assert model.origin.compressed
    assert model.nbytes <= limit
    within = fit_case(budget=limit)  # nothing to compare forms on: rows are left out from the start
    assert not within.origin.compressed
    assert within.nbytes <= limit
    strict = fit_case(validation=held, budget=Budget(limit, during_fit=True))
    assert not strict.origin.compressed
    assert strict.nbytes <= limit


def test_a_fit_within_bytes_keeps_to_them_from_the_start_where_memory_is_short(fit_case, held, monkeypatch):
    module = import_module("trustgp.fitting.pipeline")
    original = module.choose_plan

    def short(ready, rows, options):
        if options.budget.size is None:
            raise MemoryError("as if there were no room for a model without a limit")
        return original(ready, rows, options)

    monkeypatch.setattr(module, "choose_plan", short)
    model = fit_case(validation=held, budget="200 KiB")
    assert not model.origin.compressed
    assert model.nbytes <= 200 * 1024


def test_a_fit_within_a_time_needs_validation_rows_and_says_so(fit_case):
    with pytest.raises(ValueError, match=r"budget='2 ms' names a time: pass validation="):
        fit_case(budget="2 ms")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "mse"}, 'by="mse"; allowed are nll'),
        ({"calls": 0}, "calls=0"),
        ({"budget": "soon"}, "write bytes"),
    ],
)
def test_settings_without_sense_are_refused(whole, held, options, message):
    with pytest.raises(ValueError, match=message):
        trustgp.tune(whole, held, progress=False, **options)


def test_too_few_rows_and_models_that_were_compressed_are_refused(whole, held):
    with pytest.raises(ValueError, match="12 validation rows; tuning splits them"):
        trustgp.tune(whole, (held[0][:12], held[1][:12]), progress=False)
    small = trustgp.compress(whole, rows=9, progress=False)
    with pytest.raises(ValueError, match="compressed before"):
        trustgp.tune(small, held, progress=False)


def test_whole_numbers_cannot_be_made_strange():
    rows = trustgp.Rows(torch.zeros(4, 2, dtype=torch.int64), torch.zeros(4, 1))
    with pytest.raises(ValueError, match="pass novel="):
        tune.made_strange(rows)
