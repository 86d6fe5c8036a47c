"""One call, every score: what may be passed, what comes back, and what is refused before any work is done."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest
import torch
from draws import normal
from many import each
from metrics.by_hand import make
from scipy import stats
from shared_fixtures import toy_rows
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import trustgp
from trustgp import Evaluation, Prediction, evaluate, metrics
from trustgp.math.predictive import MAX_DF
from trustgp.metrics import evaluate as evaluating
from trustgp.metrics.evaluation import RegressionScores

NAMES, UNSEEN = ["hip", "knee"], toy_rows(80, seed=9)
CURVES = ("levels", "observed", "kept", "risk", "oracle_risk")


def drawn(n: int = 120, seed: int = 0, outputs: int = 2) -> tuple[Prediction, Tensor]:
    """A prediction and its targets."""
    mean, variance = normal(n, outputs, seed=seed), normal(n, outputs, seed=seed + 1).exp()
    novelty = normal(n, seed=seed + 3).sigmoid()
    return make(mean, variance, novelty=novelty), mean + variance.sqrt() * normal(n, outputs, seed=seed + 2)


class Counting:
    """A method that answers by a formula, and says how often it was asked."""

    def __init__(self, outputs: int = 2) -> None:
        self.outputs = outputs
        self.rows: list[int] = []

    def predict(self, inputs: Tensor) -> Prediction:
        self.rows.append(len(inputs))
        mean = inputs[:, :1].sin().expand(-1, self.outputs)
        return make(mean, 0.1 + inputs[:, :1].square().expand(-1, self.outputs))


@pytest.fixture(scope="module")
def whole(fitted) -> Evaluation:
    """The fitted model on its test rows, against foreign ones."""
    return evaluate(fitted, UNSEEN, (4 * UNSEEN[0], UNSEEN[1]), names=NAMES)


def log_density(p: Prediction, targets: Tensor) -> Tensor:
    """Of the targets, by scipy, in float64."""
    mean, spread, excess = (v.double().numpy() for v in (p.mean, p.epistemic + p.aleatoric, p.excess))
    df = MAX_DF if p.df is None else p.df.double().numpy()
    scale = p.scale.double().numpy()
    sides = [stats.t.pdf(targets.numpy(), df, mean + way * excess**0.5, scale) for way in (-1, 1)]
    rare = 0.0 if p.rare is None else p.rare.numpy() / p.outlier_share
    far = stats.norm.pdf(targets.numpy(), mean, (spread + excess + rare) ** 0.5)
    return torch.from_numpy((1 - p.outlier_share) * sum(sides) / 2 + p.outlier_share * far).log()


def same(one: Evaluation, other: Evaluation) -> bool:
    curves = all(torch.equal(getattr(one, name), getattr(other, name)) for name in CURVES)
    return curves and one.to_dict() == other.to_dict()


def test_the_scores_of_an_output_are_those_of_its_column_alone(whole):
    for c, name in enumerate(NAMES):
        p, q = whole.prediction, whole.ood_prediction
        cut = []
        for x in (p, q):
            columns = (x.mean, x.epistemic + x.aleatoric, x.excess, x.rare, x.df)
            *spread, rare, df = (column[:, [c]] for column in columns)
            cut.append(make(*spread, rare=rare, df=df, outlier_share=x.outlier_share))
        alone = evaluate(cut[0], whole.targets[:, c], (cut[1], whole.ood_targets[:, c]))
        for field in dataclasses.fields(RegressionScores):
            scored, expected = (getattr(scores, field.name) for scores in (whole.outputs[name], alone))
            if "novelty" in field.name:  # it belongs to the row, and to no output
                assert scored is None
            else:
                # widths are scored to 1e-10, in as many steps as the slowest entry takes
                close = 1e-9 if field.name == "sharpness" else 1e-12
                assert scored == pytest.approx(expected, rel=close), field.name


def test_each_score_is_that_of_the_metrics(whole):
    p, targets = whole.prediction, whole.targets
    gaussian = metrics.gaussian_nll(p.mean, p.variance, targets)
    assert whole.gaussian_nll == pytest.approx(float(gaussian.mean()), rel=1e-12)
    assert whole.nll == pytest.approx(-float(log_density(p, targets).mean()), rel=1e-9)
    assert whole.nll != whole.gaussian_nll
    assert whole.crps == pytest.approx(float(p.crps(targets).mean()), rel=1e-12)
    assert whole.mse == pytest.approx(float(metrics.squared_error(p.mean, targets).mean()), rel=1e-12)
    assert whole.coverage == pytest.approx(float(metrics.coverage(p, targets)), abs=1e-15)
    lower, upper = p.interval(0.95)
    assert whole.sharpness == pytest.approx(float((upper - lower).double().mean()), rel=1e-6)
    curve = metrics.coverage_curve(p, targets)
    assert torch.equal(whole.observed, curve[1])
    error = float(metrics.calibration_error(*curve).mean())
    assert whole.calibration_error == pytest.approx(error, rel=1e-12)
    q = whole.ood_prediction
    for mark, own, foreign in (("std", p.std.mean(1), q.std.mean(1)), ("novelty", p.novelty, q.novelty)):
        assert getattr(whole, f"auroc_{mark}") == float(metrics.auroc(own, foreign))
        assert getattr(whole, f"fpr95_{mark}") == float(metrics.fpr95(own, foreign))
    assert whole.auroc_novelty > 0.8


def test_the_kept_risk_curve_holds_the_exact_risk_at_its_shares():
    for n in (7, 100, 120, 333):
        prediction, targets = drawn(n)
        scored = evaluate(prediction, targets)
        errors = metrics.squared_error(prediction.mean, targets)
        risk = metrics.selective_risk(prediction.std[:, 1], errors[:, 1])
        rows = (scored.kept * n).round().long()
        torch.testing.assert_close(rows.double() / n, scored.kept, rtol=1e-15, atol=0)
        assert torch.equal(scored.risk[:, 1], risk[rows - 1])
        assert int(rows[-1]) == n
        assert scored.outputs["output 1"].aurc == pytest.approx(float(risk.mean()), rel=1e-12)


def test_the_corrected_mean_is_scored_without_predicting_anew(fitted):
    counted = Counting()
    counted.predict = lambda inputs: (counted.rows.append(len(inputs)), fitted.predict(inputs))[1]
    scored = evaluate(counted, UNSEEN, 4 * UNSEEN[0])
    assert counted.rows == [80, 80]
    own, foreign = (fitted.predict(x).corrected for x in (UNSEEN[0], 4 * UNSEEN[0]))
    assert same(scored.corrected, evaluate(own, UNSEEN[1], foreign))
    assert scored.corrected.nll != scored.nll
    assert counted.rows == [80, 80]


@each(
    "form",
    [
        lambda x, y: (x.numpy(), y.numpy()),
        lambda x, y: [x, y],
        lambda x, y: TensorDataset(x, y),
        lambda x, y: DataLoader(TensorDataset(x, y), batch_size=13),
        lambda x, y: trustgp.Rows(x, y),
    ],
)
def test_rows_may_come_in_every_form_that_fit_takes(fitted, whole, form):
    inputs, targets = UNSEEN
    scored = evaluate(fitted, form(inputs, targets), form(4 * inputs, targets), names=NAMES)
    assert same(scored, whole)


@each(
    "form",
    [
        lambda x: x,
        lambda x: x.numpy(),
        lambda x: (x,),
        lambda x: TensorDataset(x),
        lambda x: DataLoader(x, batch_size=9),
        lambda x: DataLoader(TensorDataset(x), batch_size=9),
    ],
)
def test_foreign_rows_need_no_targets(fitted, whole, form):
    scored = evaluate(fitted, UNSEEN, form(4 * UNSEEN[0]))
    assert scored.auroc_std == whole.auroc_std
    assert scored.auroc_novelty == whole.auroc_novelty
    assert scored.ood_nll is None
    assert "foreign rows: NLL" not in str(scored)


class TwoInputs:
    def predict(self, inputs):
        first, second = inputs
        return make(first + second, torch.ones_like(first) + second.square())


def test_a_pair_of_inputs_is_not_taken_for_inputs_and_targets():
    pair, targets = (normal(20, 1), normal(20, 1, seed=1)), normal(20, 1, seed=2)
    alone = evaluate(TwoInputs(), (pair, targets), pair)
    both = evaluate(TwoInputs(), (pair, targets), (pair, targets))
    assert alone.ood_nll is None
    assert alone.auroc_std == both.auroc_std == 0.5
    assert both.ood_nll == pytest.approx(both.nll, rel=1e-12)


def test_predictions_are_scored_as_their_model_is(fitted, whole):
    inputs, targets = UNSEEN
    own, foreign = fitted.predict(inputs), fitted.predict(4 * inputs)
    for data in (targets, targets.numpy(), (inputs, targets)):
        assert same(evaluate(own, data, (foreign, targets), names=NAMES), whole)
    assert evaluate(own, targets, foreign).auroc_std == whole.auroc_std
    assert evaluate(fitted, UNSEEN, foreign).auroc_std == whole.auroc_std


def test_many_rows_are_predicted_lot_by_lot(monkeypatch):
    inputs, targets = normal(25, 3), normal(25, 2, seed=1)
    once = evaluate(Counting(), (inputs, targets), inputs)
    monkeypatch.setattr(evaluating, "CHUNK_ROWS", 10)
    model = Counting()
    assert same(evaluate(model, (inputs, targets), inputs), once)
    assert model.rows == [10, 10, 5] * 2


@each(("mean", "variance"), [(math.nan, math.inf), (math.nan, math.nan), (0.0, math.inf)])
def test_rows_without_a_prediction_are_counted_and_cost_infinitely_much(mean, variance):
    prediction, targets = drawn()
    given = zip((prediction.mean, prediction.variance), (mean, variance), strict=True)
    prediction = make(*(part.index_fill(0, torch.tensor([3, 50]), value) for part, value in given))
    scored = evaluate(prediction, targets, (prediction, targets))
    assert scored.nll == scored.gaussian_nll == scored.crps == scored.ood_nll == math.inf
    assert (scored.invalid, scored.ood_invalid) == (2, 2)
    assert "2 of 120 rows and 2 of 120 foreign rows" in str(scored)
    assert not any(math.isnan(value) for value in vars(scored).values() if isinstance(value, float))
    stored = json.loads(json.dumps(scored.to_dict(), allow_nan=False))
    assert (stored["scores"]["all"]["nll"], stored["invalid"]) == ("inf", 2)


def test_the_dict_holds_every_score_and_curve(whole):
    scored = json.loads(json.dumps(whole.to_dict(), allow_nan=False))
    assert list(scored["scores"]) == ["all", *NAMES]
    for name, scores in whole.scores.items():
        assert scored["scores"][name] == dataclasses.asdict(scores)
    assert scored["rows"] == scored["ood_rows"] == 80
    assert scored["coverage_curve"]["observed"]["knee"] == whole.observed[:, 1].tolist()
    assert scored["risk_curve"]["risk"]["all"] == whole.risk.mean(1).tolist()
    assert len(scored["risk_curve"]["kept"]) == len(scored["risk_curve"]["oracle"]["hip"]) == 100


def test_a_notebook_shows_the_same_table_and_obeys_no_markup(whole):
    page = whole._repr_html_()
    assert f"{whole.nll:.4g}" in str(whole)
    cells = re.findall("<t[hd]>(.*?)</t[hd]>", page)
    columns = whole.table().columns
    expected = [str(one) for line in zip(*(column.cells for column in columns), strict=True) for one in line]
    assert cells == [str(column.header) for column in columns] + expected
    prediction, targets = drawn()
    names = ["<script>alert(1)</script>", "a & b"]
    page = evaluate(prediction, targets, names=names)._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    many = evaluate(*drawn(outputs=9))  # of more than eight the lowest and highest are shown
    nll = [scores.nll for scores in many.outputs.values()]
    cells = [next(iter(column.cells)) for column in many.table().columns]
    assert cells[2:] == [f"{value:.4g}" for value in (many.nll, min(nll), max(nll))]


GOOD = (normal(20, 3), normal(20, 2, seed=1))


def spoiled(row: int, value: float) -> Tensor:
    return GOOD[1].index_fill(0, torch.tensor([row]), value)


@each(
    ("data", "ood", "error", "match"),
    [
        ((GOOD[0], spoiled(4, math.nan)), None, ValueError, "data targets are NaN or infinite in 1 of 20"),
        ((GOOD[0], GOOD[1][:19]), None, ValueError, "20 inputs but 19 targets"),
        ((GOOD[0][:0], GOOD[1][:0]), None, ValueError, "data holds no rows"),
        ((GOOD[0], GOOD[1] > 0), None, ValueError, "real numbers"),
        (GOOD[0], None, TypeError, r"pass \(inputs, targets\)"),
        (GOOD, (GOOD[0], spoiled(4, math.inf)), ValueError, "ood targets are NaN or infinite in 1 of 20"),
        (GOOD, (GOOD[0], GOOD[1][:, :1]), ValueError, "ood has 1 targets a row but data has 2"),
        (GOOD, (GOOD[0], GOOD[1][:5]), ValueError, "20 inputs but 5 targets"),
        (GOOD, GOOD[0][:0], ValueError, "ood holds no rows"),
        (GOOD, GOOD[0][:, :2], ValueError, "ood inputs have 2 columns but those of data 3"),
        (GOOD, torch.full((4, 3), math.nan), ValueError, "ood inputs are NaN or infinite in 4 of 4 rows"),
        (GOOD, [], ValueError, "structure"),
        (GOOD, "rows", TypeError, "str"),
        (GOOD, drawn(5, outputs=3)[0], ValueError, "ood: the prediction is"),
        (GOOD, (drawn(5)[0], normal(4, 2)), ValueError, "ood: the prediction is"),
    ],
)
def test_bad_rows_are_refused_before_anything_is_predicted(data, ood, error, match):
    model = Counting()
    with pytest.raises(error, match=match):
        evaluate(model, data, ood)
    assert model.rows == []


@each(
    ("data", "ood", "error", "match"),
    [
        (normal(7, 2), None, ValueError, r"the prediction is \[120, 2\] but the targets are \[7, 2\]"),
        (normal(120), None, ValueError, r"the targets are \[120, 1\]"),
        (torch.tensor(1.0), None, ValueError, "targets have shape"),
        ([1.0] * 120, None, TypeError, "targets are a list"),
        (np.full((120, 2), np.nan), None, ValueError, "data targets are NaN"),
        (drawn()[1], GOOD[0], TypeError, "ood is a Tensor, but predictions were given"),
        (TensorDataset(drawn()[1], drawn()[1]), None, TypeError, "targets are a TensorDataset"),
    ],
)
def test_predictions_need_targets_of_their_own_shape(data, ood, error, match):
    with pytest.raises(error, match=match):
        evaluate(drawn()[0], data, ood)


class Foreign(Counting):
    def predict(self, inputs):
        return inputs.numpy()


def test_other_models_and_names_are_refused(case):
    with pytest.raises(TypeError, match=r"Sequential has no predict\(\); pass what trustgp.fit"):
        evaluate(case.network, GOOD)
    with pytest.raises(TypeError, match=r"Foreign returned a ndarray; a trustgp.Prediction is needed"):
        evaluate(Foreign(), GOOD)
    for names in (["a"], ["a", "a"], ["a", "all"], ["a", "b", "c"]):
        with pytest.raises(ValueError, match="names="):
            evaluate(Foreign(), GOOD, names=names)  # before it predicts
