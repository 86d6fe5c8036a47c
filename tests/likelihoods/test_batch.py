"""Predictions are batches of rows: indexing, devices, arrays, distributions, texts."""

import re
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Distribution, Independent

from trustgp.data.tables import html_table
from trustgp.likelihoods.base import ReferenceScores
from trustgp.likelihoods.detections import Detections
from trustgp.likelihoods.prediction import ClassPrediction, Prediction

N, C = 7, 2
REFERENCE = ReferenceScores(torch.linspace(0, 1, 11, dtype=torch.float64), 0.45)


def numbers(n: int = N, outputs: int | None = C, dtype: torch.dtype = torch.float32) -> Prediction:
    """Heavy tails, outliers, and lazy variants."""
    base = torch.arange(1.0, 1.0 + n * (outputs or 1), dtype=dtype)
    base = base if outputs is None else base.reshape(n, outputs)
    parts = {"epistemic": 0.5 * base, "aleatoric": 0.25 * base, "excess": 0.125 * base}
    parts |= {"novelty": torch.linspace(0, 1, n, dtype=dtype), "expert": torch.arange(n)}
    tails = {"df": 4.0 + 2.0 * torch.arange(outputs or 1, dtype=dtype), "outlier_share": 0.05}
    tails |= {"rare": torch.tensor(0.1, dtype=dtype)}
    scores = {"_score": torch.linspace(0, 1, n, dtype=torch.float64), "_threshold": 0.45}
    valid = torch.arange(n) != 2
    plain = Prediction(mean=base, **parts, valid=valid, **tails, **scores, _reference=REFERENCE)
    corrected = replace(plain, mean=base + 100)
    return replace(plain, _corrected=lambda: corrected, _plain=replace(plain, outlier_share=0.0))


def classes(n: int = N, logits: int | None = 3) -> ClassPrediction:
    drawn = torch.randn(n, logits or 1, generator=torch.Generator().manual_seed(0))
    spread = (0.5 + torch.rand(n, 1, generator=torch.Generator().manual_seed(1))).expand(drawn.shape)
    shape = (n,) if logits is None else (n, logits)
    parts = {"epistemic": spread.reshape(shape) if logits is None else spread}
    parts |= dict.fromkeys(("aleatoric", "excess"), torch.zeros(()).expand(shape))
    rows = {"novelty": torch.linspace(0, 1, n), "expert": torch.arange(n), "valid": torch.ones(n).bool()}
    scores = {"_score": torch.linspace(0, 9, n, dtype=torch.float64), "_threshold": 4.0}
    scores |= {"temperature": torch.linspace(1, 3, n, dtype=torch.float64), "_reference": REFERENCE}
    return ClassPrediction(mean=drawn.reshape(shape), **parts, **rows, **scores)


def boxes(n: int = N) -> Detections:
    edges = torch.arange(4.0 * n).reshape(n, 4)
    scores, novelty = torch.full((n, 3), 1 / 3), torch.linspace(0, 1, n)
    return Detections(edges, 1 + edges / 10, torch.arange(n), scores[:, 0], scores, novelty, True, 0.5)


MAKERS = [numbers, lambda: numbers(outputs=None), classes, lambda: classes(logits=None), boxes]
each_kind = pytest.mark.parametrize("make", MAKERS, ids=["numbers", "one", "classes", "one logit", "boxes"])
MASK = torch.tensor([True, False, False, True, True, False, False])
CHOICES = [
    (slice(3, 7), [3, 4, 5, 6]),
    (slice(None, None, -2), [6, 4, 2, 0]),
    (slice(5, 2), []),
    (3, [3]),
    (-1, [6]),
    (np.int64(2), [2]),
    (torch.tensor(4), [4]),
    (MASK, [0, 3, 4]),
    (MASK.numpy(), [0, 3, 4]),
    (MASK.tolist(), [0, 3, 4]),
    (torch.tensor([5, -7, 5]), [5, 0, 5]),
    (torch.tensor([1, 0, 1], dtype=torch.uint8), [1, 0, 1]),  # places: torch would take it for a mask
    (np.array([6, 1]), [6, 1]),
    ([2, 4], [2, 4]),
    ([], []),
]


def answers(p) -> dict[str, torch.Tensor]:
    """Everything that has a value for each row."""
    if isinstance(p, Detections):
        return {n: getattr(p, n) for n in (*p.ARRAYS, "is_novel", "entropy")}
    values = {name: getattr(p, name) for name in (*p.ARRAYS, "score", "is_novel", "novelty_rank")}
    values = {name: value for name, value in values.items() if value is not None}
    values |= {name: values[name].expand_as(p.mean) for name in ("rare", "df") if name in values}
    if isinstance(p, ClassPrediction):
        return {**values, "log_prob": p.log_prob(torch.zeros(len(p)))}
    inner = {"corrected": p.corrected.mean, "of corrected": p.corrected.std, "plain": p.plain.std}
    return {**values, **inner, "log_prob": p.log_prob(p.mean + 1), "upper": p.interval(0.9)[1]}


@each_kind
def test_chosen_rows_are_as_they_were_among_the_others(make):
    whole = make()
    for index, places in CHOICES:
        part = whole[index]
        assert type(part) is type(whole)
        assert len(part) == len(places)
        values = answers(part)
        for name, value in answers(whole).items():
            torch.testing.assert_close(values[name], value[places], rtol=1e-9, atol=0, msg=f"{name} {index}")
    rows = list(whole)
    assert [len(row) for row in rows] == [1] * N
    if isinstance(whole, Prediction):
        joined = answers(Prediction.cat(rows))
        for name, value in answers(whole).items():
            torch.testing.assert_close(joined[name], value, rtol=1e-9, atol=0, msg=name)


REFUSED = [
    (N, IndexError, "row 7 of 7"),
    (-N - 1, IndexError, "row -8 of 7"),
    (torch.tensor([0, 9]), IndexError, "row 9 of 7"),
    (torch.ones(3, dtype=torch.bool), IndexError, "one entry for each"),
    (True, IndexError, "one entry for each"),
    ((1, 0), TypeError, r"p\.mean\[3, 1\]"),
    ("mean", TypeError, "a slice"),
    (1.0, TypeError, "an integer"),
    (torch.zeros(2, 2, dtype=torch.int64), TypeError, r"integers \[k\]"),
]


@each_kind
def test_other_indices_are_refused(make):
    for index, error, message in REFUSED:
        with pytest.raises(error, match=message):
            make()[index]


def test_one_variance_for_all_logits_stays_a_view():
    p = classes(logits=50)
    for index in (slice(1, 4), MASK):
        assert p[index].epistemic.stride(1) == p[index].aleatoric.stride(1) == 0


@pytest.mark.parametrize("make", [numbers, classes, boxes])
def test_another_precision_or_device_has_all_tensors(make):
    p = make().to(torch.float64)
    tensors = {f.name: getattr(p, f.name) for f in fields(p) if isinstance(getattr(p, f.name), torch.Tensor)}
    assert {value.dtype for value in tensors.values() if value.is_floating_point()} == {torch.float64}
    assert tensors.get("valid", MASK).dtype == torch.bool
    for name, value in answers(make()).items():
        torch.testing.assert_close(answers(p)[name], value, check_dtype=False, rtol=1e-5, atol=1e-6, msg=name)
    p = make().to("meta")
    assert {getattr(p, name).device.type for name in tensors} == {"meta"}
    assert make().cpu()[0] is not None
    if make is numbers:
        assert p.corrected.mean.device.type == p.plain.epistemic.device.type == "meta"


def test_in_half_precision_there_is_the_mean_alone():
    p = numbers(dtype=torch.float64).to(dtype=torch.bfloat16)
    assert p.mean.dtype == p.corrected.mean.dtype == torch.bfloat16
    assert p.epistemic.dtype == p.novelty.dtype == p.std.dtype == torch.float32
    assert p.score.dtype == torch.float64
    assert p.numpy()["mean"].dtype == np.float32
    assert classes().to(torch.float32).temperature.dtype == torch.float64
    with pytest.raises(TypeError, match="floating dtype"):
        numbers().to(torch.int64)


@each_kind
def test_arrays_are_copies(make):
    p, before = make(), make().numpy()
    assert set(before) == {name for name in p.ARRAYS if getattr(p, name) is not None}
    for name, value in p.numpy().items():
        np.testing.assert_array_equal(value, np.asarray(getattr(p, name)))
        value.fill(0)
    for name, value in p.numpy().items():
        assert isinstance(value, np.ndarray)
        np.testing.assert_array_equal(value, before[name])


def test_the_distribution_of_numbers_is_one_of_torch():
    p = numbers(dtype=torch.float64)
    d, y = p.distribution, p.mean + 1
    assert isinstance(d, Distribution)
    assert d.batch_shape == p.mean.shape
    assert torch.equal(d.log_prob(y), p.log_prob(y))
    torch.testing.assert_close(d.variance, p.variance, rtol=1e-12, atol=0)
    torch.testing.assert_close(d.stddev, p.std, rtol=1e-12, atol=0)
    assert torch.equal(d.mean, p.mean)
    torch.testing.assert_close(d.icdf(torch.tensor(0.9)), p.quantile(0.9))
    torch.testing.assert_close(d.cdf(d.icdf(torch.tensor(0.3))), torch.full((N, C), 0.3, dtype=torch.float64))
    assert d.sample((3, 2)).shape == (3, 2, N, C)
    assert d.sample().shape == (N, C)
    assert torch.equal(Independent(d, 1).log_prob(y), p.log_prob(y).sum(1))
    # other shapes are computed by other vector instructions
    torch.testing.assert_close(d.expand((4, N, C)).log_prob(y), p.log_prob(y).expand(4, N, C))
    assert len(repr(d)) < 500


@pytest.mark.parametrize("logits", [None, 1, 3])
def test_the_distribution_of_classes_is_categorical(logits):
    p = classes(logits=logits)
    d, labels = p.distribution, p.classes
    assert isinstance(d, Categorical)
    torch.testing.assert_close(d.probs, p.probabilities.double(), rtol=1e-5, atol=1e-7)
    expected = p.probabilities.double()[torch.arange(N), labels].log()
    torch.testing.assert_close(p.log_prob(labels), expected, rtol=1e-5, atol=1e-6)
    draws = p.sample(4000, torch.Generator().manual_seed(0))
    assert draws.shape == (4000, N)
    share = (draws == 1).double().mean(0)
    assert float((share - d.probs[:, 1]).abs().max()) < 5 * 0.5 / 4000**0.5
    for refused in (p.interval, lambda: p.quantile(0.5), lambda: p.crps(labels)):
        with pytest.raises(TypeError, match="conformal"):
            refused()


TEXTS = [
    (numbers(10_000), "Prediction of 10,000 rows, 2 outputs, 100 % of them valid"),
    (numbers(4, 900), "Prediction of 4 rows, 900 outputs, 75 % of them valid"),
    (numbers(1, None), "Prediction of 1 row, 1 output, all valid"),
    (classes(2000, 1000), "ClassPrediction of 2,000 rows, 1,000 classes, all valid"),
    (classes(9, None), "ClassPrediction of 9 rows, 2 classes, all valid"),
    (boxes(300), "300 detections in a picture"),
    (numbers()[:0], "Prediction of 0 rows"),
    (classes()[:0], "ClassPrediction of 0 rows"),
    (boxes()[:0], "0 detections"),
]


@pytest.mark.parametrize(("p", "title"), TEXTS, ids=lambda value: str(value)[:20])
def test_a_text_is_short_and_has_the_number_of_rows(p, title):
    text, page = repr(p), p._repr_html_()
    assert text.startswith(title)
    assert title in page
    assert len(text.splitlines()) <= 8
    assert len(text) < 700
    assert page.count("<tr>") <= 6
    assert ("more" in text) is (len(p) > 5)


def test_a_text_shows_the_first_means_with_their_errors():
    p = numbers(dtype=torch.float64)
    first = repr(p).splitlines()[2]
    assert f"{float(p.mean[0, 0]):.4g} \u00b1 {float(p.std[0, 0]):.2g}" in first
    cells = re.findall("<td>(.*?)</td>", p._repr_html_())
    assert cells[2] == f"{float(p.mean[0, 1]):.4g} \u00b1 {float(p.std[0, 1]):.2g}"


def test_markup_in_a_table_is_shown_and_not_obeyed():
    evil = "<img src=x onerror=alert(1)>&'\""
    page = html_table(evil, [evil], [[evil]], evil)
    assert "<img" not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;&amp;&#x27;&quot;") == 4
