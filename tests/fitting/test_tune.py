"""The frontier: what was tried, how it was scored, and what is chosen within a budget."""

import re
from dataclasses import replace

import pytest
import torch
from blobs import blobs
from blobs import fit as fit_blobs

import trustgp
from trustgp.data.quantities import Budget, parse_budget
from trustgp.data.rows import read_rows
from trustgp.export import serving, tune
from trustgp.fitting.compress import ModelForm
from trustgp.metrics import auroc, gaussian_nll
from trustgp.state.model_file import file_bytes
from trustgp.state.model_state import answers

RANKS = (20, 10, 4)  # that bite on a small case


@pytest.fixture(scope="module")
def held(toy):
    return toy(240, seed=7)


@pytest.fixture(scope="module")
def whole(fit_case, held):
    return fit_case(validation=held)


@pytest.fixture(autouse=True, scope="module")
def few_ranks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune, "RANKS", RANKS)
        yield


@pytest.fixture(scope="module")
def tuned(whole, held, few_ranks):
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
    calibrating, scoring = tune.halves(read_rows(held, name="held"))
    row = next(row for row in tuned.table if row.name == "rank=10, no witness")
    rows = (calibrating.inputs, calibrating.targets)
    model = trustgp.compress(whole, rank=10, witness=False, validation=rows, progress=False)
    p = model.predict(scoring.inputs)
    for name, said in (("nll", p), ("corrected", p.corrected)):
        expected = gaussian_nll(said.mean, said.variance, scoring.targets).mean()
        assert getattr(row, name) == pytest.approx(float(expected), rel=1e-9)
    mean = scoring.inputs.mean(dim=0)
    strange = model.predict(mean + 3 * (scoring.inputs - mean))
    assert row.auroc == pytest.approx(float(auroc(p.score, strange.score)), abs=1e-12)
    assert row.nbytes == model.nbytes


def test_the_size_of_the_file_is_that_of_the_file(whole, tmp_path):
    for model in (whole, trustgp.compress(whole, rank=9, progress=False)):
        model.save(tmp_path / "model.trustgp")
        assert file_bytes(model.state) == (tmp_path / "model.trustgp").stat().st_size


def test_validation_rows_are_split_in_blocks_and_each_counts_once(held):
    one, other = tune.halves(read_rows(held, name="held"))
    assert len(one) == len(other) == 120
    both = torch.cat([one.inputs, other.inputs]).sort(dim=0).values
    assert torch.equal(both, held[0].sort(dim=0).values)
    assert torch.equal(one.inputs[:24], held[0][:24])  # a block is a stretch of the rows
    assert torch.equal(other.inputs[:24], held[0][24:48])


def test_all_ranks_are_tried_with_the_witness_and_without(tuned, whole):
    names = [row.name for row in tuned.table]
    ranks = ["as it is", "rank=20", "rank=10", "rank=4"]
    assert names == [*ranks, "no witness", *(f"{name}, no witness" for name in ranks[1:])]
    assert tuned.table[0].nbytes == whole.nbytes
    for k in (1, 2, 3, 5, 6, 7):
        assert tuned.table[k].nbytes < tuned.table[k - 1].nbytes


def test_limits_that_nothing_reaches_are_not_tried(fit_case):
    model = fit_case(witness=None)
    assert list(tune.forms_of(model.state)) == [ModelForm(), *map(ModelForm, RANKS)]
    small = trustgp.compress(model, rank=10, progress=False)
    assert list(tune.forms_of(small.state)) == [ModelForm(), ModelForm(4)]
    exact = fit_case(budget="none")
    assert list(tune.forms_of(exact.state)) == [ModelForm(), ModelForm(None, False)]


def test_forms_without_the_witness_share_what_the_others_hold(whole):
    forms = tune.forms_of(whole.state)
    one, other = (forms[ModelForm(10, witness)].mixtures[0].experts[0].posterior for witness in (True, False))
    assert one.basis is other.basis


def test_features_are_made_once_for_all_forms(whole, held, monkeypatch):
    made, tangents = [], whole.mixtures[0].tangents
    original = type(tangents).with_outputs

    def counted(self, inputs, **more):
        made.append(len(inputs))
        return original(self, inputs, **more)

    monkeypatch.setattr(type(tangents), "with_outputs", counted)
    forms = list(tune.forms_of(whole.state).values())
    rows = read_rows(held, name="held")
    with tune.reporting(enabled=False) as report:
        forms = tune.recalibrate_forms(forms, rows, report)
        assert made == [240]
        tune.scores(forms, rows, held[0], report)
    assert made == [240] * 3


def trial(name, nll, score, size=1, fits=True):
    return tune.Trial(name, nll, nll, score, size, size, 1.0, fits)


def test_a_form_that_is_blind_to_novel_rows_is_not_chosen():
    table = [
        trial("best likelihood, blind", -3.0, 0.95),
        trial("beyond the budget", -9.0, 0.99, fits=False),
        trial("large", -2.0, 0.97, 5),
        trial("small", -2.0, 0.965, 2),
        trial("worse", -1.0, 0.97, 1),
    ]
    chosen = {by: table[tune._best(table, Budget(), by, None)].name for by in tune.SCORES}
    assert chosen == {"nll": "small", "corrected": "small", "auroc": "worse"}


@pytest.mark.parametrize("by", ["nll", "corrected", "auroc"])
def test_within_a_budget_the_best_that_fits_is_chosen(whole, held, tuned, by):
    limit = sorted(row.nbytes for row in tuned.table)[2]
    found = trustgp.tune(whole, held, budget=limit, by=by, calls=1, progress=False)
    fitting = [row for row in found.table if row.nbytes <= limit]
    assert [row.name for row in found.table if row.fits] == [row.name for row in fitting]
    assert [row.name for row in found.table if row.milliseconds is not None] == [row.name for row in fitting]
    able = [row for row in fitting if row.auroc >= max(row.auroc for row in fitting) - 0.01]
    sign = -1 if by == "auroc" else 1
    assert found.chosen == min(able, key=lambda row: (sign * getattr(row, by), row.nbytes)).name
    assert found.best.nbytes <= limit
    assert found.best.origin.compressed == found.chosen


def test_the_chosen_model_is_calibrated_on_all_validation_rows(tuned, held):
    assert len(tuned.best.held_scores) == len(held[0])
    best = tuned.best
    rows = best.origin.likelihood.calibration_rows(*answers(best.state, held[0]), held[1])
    again = best.origin.likelihood.recalibrate(rows, best.shape, best.calibrations)
    assert torch.allclose(again[0].level, tuned.best.calibrations[0].level, rtol=1e-6)


def test_where_nothing_fits_the_error_says_what_the_smallest_and_the_fastest_take(whole, held, tuned):
    least = min(row.nbytes for row in tuned.table)
    with pytest.raises(
        trustgp.BudgetError, match=r"nothing fits within 100 B.*the smallest .* holds"
    ) as error:
        trustgp.tune(whole, held, budget=100, calls=1, progress=False)
    assert re.search(rf"holds {least / 1024:.1f} KiB", str(error.value))
    assert error.value.model is whole
    with pytest.raises(ValueError, match=r"nothing fits within 1e-06 ms.*the fastest"):
        trustgp.tune(whole, held, budget="0.000001 ms", calls=1, progress=False)


def test_the_model_that_was_given_stays_as_it_is(whole, held, state_of):
    before = {name: value.clone() for name, value in state_of(whole).items()}
    trustgp.tune(whole, held, calls=1, progress=False)
    after = state_of(whole)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_given_novel_rows_are_those_that_are_told_apart(whole, held):
    far = trustgp.tune(whole, held, novel=50 * held[0], calls=1, progress=False)
    same = trustgp.tune(whole, held, novel=held[0], calls=1, progress=False)
    assert far.table[0].auroc > 0.95 > same.table[0].auroc
    assert "given rows" in far.strange


def test_models_take_turns_while_a_thread_is_timed(whole, held, monkeypatch):
    order, clock = [], iter(range(1000))

    def predict(state, inputs):
        assert len(inputs) == 1
        assert torch.get_num_threads() == 1
        order.append(state.provenance.seed)
        for _ in range(state.provenance.seed):
            next(clock)

    def named(number):
        return replace(whole.state, provenance=replace(whole.state.provenance, seed=number))

    monkeypatch.setattr(serving, "predict", predict)
    monkeypatch.setattr(serving.time, "thread_time", lambda: float(next(clock)))
    spent = serving.times([named(2), named(5)], read_rows(held, name="held"), calls=3)
    assert order == [2, 5] * 4  # the first round warms up
    assert spent == [3.0, 6.0]


def test_times_may_be_those_of_onnxruntime(fit_case, held, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("trustgp.export.tune.RANKS", (16,))  # each form is exported, so there are but two
    model = fit_case(validation=held, witness=None, num_experts=2)
    found = trustgp.tune(model, held, calls=1, runtime="onnx", progress=False)
    assert len(found.table) == 2
    assert all(row.milliseconds > 0 for row in found.table)
    assert "ms, onnx" in str(found)


def test_a_compiled_model_is_what_is_served(whole, toy, tmp_path, monkeypatch):
    made = []

    def compile(model, path, example):
        made.append((path, len(example)))
        return path

    monkeypatch.setattr(serving.compiled, "compile", compile)
    monkeypatch.setattr(
        serving.compiled, "open_compiled", lambda path: lambda rows: f"{path.name} {len(rows)}"
    )
    run = serving.served(whole.state, "compiled", toy(4, seed=1)[0], tmp_path / "0")
    assert run(toy(1, seed=2)[0]) == "0.pt2 1"
    assert made == [(tmp_path / "0.pt2", 4)]


def test_the_table_reads_well_and_the_figure_is_drawn(whole, held, tuned, tmp_path):
    pytest.importorskip("matplotlib")
    text = str(tuned)
    assert "Within no limit, by nll" in text
    assert all(row.name in text for row in tuned.table)
    assert "120 rows calibrate, 120 score" in text
    tuned.plot(tmp_path / "frontier.png")
    assert (tmp_path / "frontier.png").stat().st_size > 10_000
    some = replace(tuned, table=[replace(tuned.table[0], milliseconds=None), *tuned.table[1:]])
    some.plot(tmp_path / "some.png")
    assert (tmp_path / "some.png").stat().st_size > 10_000


def test_classifiers_are_tuned_by_the_likelihood_of_their_classes():
    case = blobs()
    found = trustgp.tune(fit_blobs(case), case.validation, budget="64 KiB", calls=1, progress=False)
    assert found.best.nbytes <= 64 * 1024
    assert all(row.nll == row.corrected for row in found.table)
    assert torch.equal(found.best.predict(case.test[0]).classes, case.network(case.test[0]).argmax(1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "mse"}, 'by="mse"; allowed are nll'),
        ({"calls": 0}, "calls=0"),
        ({"budget": "soon"}, "write bytes"),
        ({"runtime": "tvm"}, 'runtime="tvm"; allowed are eager, onnx, compiled'),
    ],
)
def test_settings_without_sense_are_refused(whole, held, options, message):
    with pytest.raises(ValueError, match=message):
        trustgp.tune(whole, held, progress=False, **options)


def test_a_runtime_whose_packages_are_missing_says_which(whole, held, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(ImportError, match="onnx"):
        trustgp.tune(whole, held, runtime="onnx", progress=False)


def test_too_few_rows_are_refused(whole, held):
    with pytest.raises(ValueError, match="12 validation rows; tuning splits them"):
        trustgp.tune(whole, (held[0][:12], held[1][:12]), progress=False)


def test_whole_numbers_cannot_be_made_strange():
    rows = trustgp.Rows(torch.zeros(4, 2, dtype=torch.int64), torch.zeros(4, 1))
    with pytest.raises(ValueError, match="pass novel="):
        tune.made_strange(rows)
