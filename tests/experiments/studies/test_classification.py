"""The classification study: its rules on made-up numbers, and a small run on stand-ins for the images."""

import copy
import json
import math
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from trustgp.metrics import auroc, class_nll, entropy
from trustgp_experiments.core.cases import IN_DOMAIN, read_tests
from trustgp_experiments.core.grid import Grid
from trustgp_experiments.core.registry import run_study
from trustgp_experiments.core.result import Setting, read_result
from trustgp_experiments.peers import ClassAnswer
from trustgp_experiments.peers.registry import CLASS_METHODS, Fitted
from trustgp_experiments.report.page import write_report
from trustgp_experiments.studies.classification.scores import (
    AXES,
    QUICK_ROWS,
    SCORES,
    UNIFORM,
    VALIDATION,
    class_findings,
    class_tables,
    foreign_to,
    make_images,
    score_method,
    shifts_of,
)
from trustgp_experiments.studies.classification.study import RATES, train_bundle

NAMES = [method.name for method in CLASS_METHODS]
COSTS = {name: {"fit_seconds": 2.0, "predict_seconds": 1e-4} for name in NAMES}


def made_up(*, nll=None, ece=None, auroc_by=None, accuracy=None) -> dict:
    """One seed's scores by method, all alike but for what is given."""

    def right(name):
        return {
            "nll": (nll or {}).get(name, 0.3),
            "ece": (ece or {}).get(name, 0.02),
            "accuracy": (accuracy or {}).get(name, 0.9),
            "brier": 0.1,
            "aurc": 0.01,
        }

    def apart(name):
        found = {f"{key}_{score}": None for key in ("auroc", "fpr95") for score in SCORES}
        found |= {"auroc_entropy": 0.7, "fpr95_entropy": 0.6}
        if name == "trustgp":
            found |= {"auroc_variance": 0.995, "fpr95_variance": 0.01}
        return found | (auroc_by or {}).get(name, {})

    return {
        name: {
            "training_free": True,
            "fit_seconds": 1.0,
            "predict_seconds": 0.001,
            "tests": {
                IN_DOMAIN: right(name),
                "mnist": apart(name),
                "rotated 45": right(name) | apart(name),
                UNIFORM: apart(name),
            },
        }
        for name in NAMES
    }


def said(*seeds: dict) -> list[str]:
    costs = Grid.of(("method",), {(): [COSTS]}, lambda part: {(name,): part[name] for name in part})
    return class_findings(collected(*seeds), costs)


def collected(*seeds: dict) -> Grid:
    return Grid.of(AXES, {("fashion_mnist",): [{"methods": seed} for seed in seeds]}, read_tests)


def test_a_variance_that_is_good_and_better_than_all_is_said_to_be():
    found = said(made_up())[0]
    assert "against MNIST" in found
    assert "0.9950 ± 0.0000, at least 0.99, and above every peer" in found


def test_a_single_score_of_a_single_peer_takes_the_lead_away():
    rival = made_up(auroc_by={"ensemble of 5": {"auroc_information": 0.996}})
    assert "not above every peer (best: ensemble of 5 by mutual information, 0.9960)" in said(rival)[0]


def test_a_variance_below_the_bar_is_said_to_be_below():
    weak = made_up(auroc_by={"trustgp": {"auroc_variance": 0.98}})
    assert "0.9800 ± 0.0000, below 0.99, and above every peer" in said(weak)[0]


def test_the_mean_over_seeds_decides():
    low, high = (made_up(auroc_by={"trustgp": {"auroc_variance": value}}) for value in (0.985, 0.999))
    assert "0.9920 ± 0.0070, at least 0.99" in said(low, high)[0]


def test_a_number_worse_than_temperature_scaling_is_named():
    for key, place in (("nll", 2), ("ece", 3)):
        assert "in 1 of 1 cases." in said(made_up())[place]
        lost = said(made_up(**{key: {"trustgp": 0.31}}))[place]
        assert "in 0 of 1 cases; not in: Fashion-MNIST (0.3100 against" in lost


def test_distorted_images_are_compared_with_temperature_scaling_and_the_ensemble():
    found = said(made_up(nll={"trustgp": 0.29, "ensemble of 5": 0.2}))
    assert "lower NLL than temperature scaling: in 1 of 1 cases." in found[4]
    assert (
        "lower NLL than ensemble of 5: in 0 of 1 cases; not in: rotated 45 (0.290 against 0.200)." in found[5]
    )


def test_classes_that_changed_are_noticed():
    assert "in 2 of 2 sets" in said(made_up())[6]
    assert "in 0 of 2 sets" in said(made_up(accuracy={"trustgp": 0.8999}))[6]


def test_the_tables_hold_every_method_and_leave_gaps_where_a_score_is_missing():
    tables = class_tables(collected(made_up(), made_up()))
    assert [row[0] for row in tables[0].rows] == NAMES
    foreign = next(table for table in tables if "is MNIST told" in table.title)
    softmax = dict(zip([column.name for column in foreign.columns], foreign.rows[0], strict=True))
    assert softmax["AUROC by entropy"] == [0.7, 0.0]
    assert softmax["AUROC by logit variance"] is None
    labelled = next(table for table in tables if table.title.startswith("Probabilities"))
    assert {row[0] for row in labelled.rows} == {IN_DOMAIN, "rotated 45"}


def test_an_infinite_cost_is_shown_and_loses():
    lost = made_up(nll={"trustgp": "inf"})
    assert "in 0 of 1 cases" in said(lost)[2]
    table = class_tables(collected(lost))[0]
    assert table.rows[-1][2] == "infinite"


# --- scores --------------------------------------------------------------------------------------


def prediction(n: int, seed: int, *, variance: bool) -> ClassAnswer:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    spread = torch.rand(n, 4, generator=generator, dtype=torch.float64) if variance else None
    return ClassAnswer(logits, logits.softmax(dim=1), torch.ones(n, dtype=torch.bool), spread)


@pytest.mark.parametrize("variance", [False, True])
def test_scores_are_those_of_the_definition(variance):
    here, there = prediction(40, 0, variance=variance), prediction(30, 1, variance=variance)
    fitted = Fitted("made up", True, 0.5, lambda inputs: here if len(inputs) == 40 else there)
    labels = torch.arange(40) % 4
    tests = {IN_DOMAIN: (torch.zeros(40, 1), labels), "mnist": (torch.zeros(30, 1), None)}
    found = score_method(fitted, tests, "mnist", "cpu")
    near, far = found["tests"][IN_DOMAIN], found["tests"]["mnist"]
    assert near["nll"] == pytest.approx(float(class_nll(here.probabilities, labels).mean()), abs=1e-12)
    assert near["accuracy"] == float((here.classes == labels).double().mean())
    expected = float(auroc(entropy(here.probabilities), entropy(there.probabilities)))
    assert far["auroc_entropy"] == pytest.approx(expected, abs=1e-12)
    assert "nll" not in far
    if variance:
        assert far["auroc_variance"] == float(auroc(here.variance.mean(1), there.variance.mean(1)))
    else:
        assert far["auroc_variance"] is None
    assert far["fpr95_information"] is None
    curves = found["curves"]["mnist"]
    assert set(curves) == ({"entropy", "variance"} if variance else {"entropy"})
    for curve in curves.values():
        assert math.fsum(curve["in"]) == pytest.approx(1.0)
        assert math.fsum(curve["out"]) == pytest.approx(1.0)
        wrong = int((here.classes != labels).sum()) + 30  # every foreign one counts as wrong
        assert curve["risk"][-1] == pytest.approx(wrong / 70)
    assert sum(found["curves"][IN_DOMAIN]["reliability"][0]) == 40


# --- images -----------------------------------------------------------------------------------------


def test_the_parts_share_no_image_and_are_scaled_by_the_training_pixels(monkeypatch):
    monkeypatch.delenv("TRUSTGP_DATA", raising=False)
    case = make_images("fashion_mnist", seed=1, quick=True)
    assert case.made
    pixels = torch.cat([case.train[0], case.validation[0]]).flatten(1)
    assert len(pixels.unique(dim=0)) == len(pixels)
    assert float(case.train[0].mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(case.train[0].std()) == pytest.approx(1.0, abs=1e-5)
    assert shifts_of(list(case.tests)) == ["rotated 45", "noisy 0.2"]
    assert case.tests["mnist"][1] is None
    assert case.tests[UNIFORM][1] is None
    assert torch.equal(case.tests["rotated 45"][1], case.tests[IN_DOMAIN][1])


def test_all_images_are_used_and_the_seed_chooses_those_that_validate(data_root):
    if not (data_root / "mnist").is_dir():
        pytest.skip("no images here")
    one, other = (make_images("mnist", seed=seed, quick=False) for seed in (0, 1))
    assert one.sizes == {"train": 60_000 - VALIDATION, "validation": VALIDATION, IN_DOMAIN: 10_000,
                         "fashion_mnist": 10_000}  # fmt: skip
    assert not torch.equal(one.validation[1], other.validation[1])
    assert torch.equal(one.tests[IN_DOMAIN][1], other.tests[IN_DOMAIN][1])


def test_each_set_is_foreign_to_the_other():
    assert foreign_to("mnist") == "fashion_mnist"
    assert foreign_to("fashion_mnist") == "mnist"


def test_the_same_seed_gives_the_same_networks_and_members_differ(tmp_path, monkeypatch):
    monkeypatch.delenv("TRUSTGP_DATA", raising=False)
    case = make_images("mnist", seed=0, quick=True)
    setting = Setting(tmp_path, quick=True)
    (first, rate), (again, _) = (train_bundle(setting, case, 0) for _ in range(2))
    for one, other in ((first.network, again.network), (first.dropping, again.dropping)):
        for name, value in one.state_dict().items():
            assert torch.equal(value, other.state_dict()[name])
    weights = [network.state_dict()["0.weight"] for network in (first.network, *first.members)]
    assert len(weights) == 5
    assert not torch.equal(weights[0], weights[1])
    assert rate in RATES
    assert {one.p for one in first.dropping.modules() if isinstance(one, nn.Dropout)} == {rate}
    assert not any(isinstance(one, nn.Dropout) for one in first.network.modules())


# --- a small run --------------------------------------------------------------------------------------


def without_times(value):
    """The numbers of a result that a rerun must give again."""
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if not key.endswith("_seconds")}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.skipif(find_spec("laplace") is None, reason="laplace-torch is not installed")
def test_a_small_run_is_whole_goes_on_and_stands_in_the_report(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.delenv("TRUSTGP_DATA", raising=False)
    result = run_study("classification", tmp_path, seeds=1, quick=True)
    folder = tmp_path / "classification"
    assert read_result(folder / "result.json").title == result.title
    assert all((folder / figure.file).stat().st_size > 5000 for figure in result.figures)
    assert "STAND-INS" in result.protocol[0]
    assert [row[0] for row in result.tables[0].rows] == NAMES
    assert all(cell is not None for row in result.tables[0].rows for cell in row)
    runs = json.loads((folder / "result.json").read_text())["numbers"]["runs"]
    assert [run["trained"] for run in runs] == ["fashion_mnist", "mnist"]
    assert runs[0]["seeds"][0]["sizes"][IN_DOMAIN] == QUICK_ROWS["test"]
    # a part that is lost is done again, the other is read, and the numbers stay
    lost = next((folder / "parts").glob("mnist-0-*.json"))
    before = {file.name: file.stat().st_mtime_ns for file in (folder / "parts").iterdir() if file != lost}
    lost.unlink()
    again = run_study("classification", tmp_path, seeds=1, quick=True)
    after = {file.name: file.stat().st_mtime_ns for file in (folder / "parts").iterdir() if file != lost}
    assert before == after
    assert without_times(copy.deepcopy(dict(again.numbers))) == without_times(dict(result.numbers))
    page = write_report(tmp_path).read_text()
    assert result.title in page
    assert result.findings[0][:60] in page
