"""The classification study: its rules on made-up numbers, and a small run on stand-ins for the images."""

import copy
import json
import math
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from trustgp.metrics import auroc, class_nll, entropy
from trustgp_experiments.core.cases import IN_DOMAIN, Case, costs_grid, read_tests
from trustgp_experiments.core.dropout import RATES, try_rates
from trustgp_experiments.core.grid import Grid
from trustgp_experiments.core.registry import run_study
from trustgp_experiments.core.result import Setting, read_result
from trustgp_experiments.datasets import Images
from trustgp_experiments.peers import ClassAnswer
from trustgp_experiments.peers.novelty import NOVELTY
from trustgp_experiments.peers.registry import CLASS_METHODS, Fitted
from trustgp_experiments.report.page import write_report
from trustgp_experiments.studies.classification.findings import class_findings
from trustgp_experiments.studies.classification.pairs import (
    HELD,
    LETTERS,
    QUICK_ROWS,
    TEXTURES,
    TRAINED,
    UNIFORM,
    VALIDATION,
    ImageTraining,
    foreign_to,
    looked_at,
    make_images,
    new_pairs,
    shifts_of,
    without,
)
from trustgp_experiments.studies.classification.scores import (
    DECLARED,
    ENTROPY,
    SCORES,
    score_method,
    threshold,
    told_apart,
)
from trustgp_experiments.studies.classification.study import FIRST, SLOW, train_bundle
from trustgp_experiments.studies.classification.tables import AXES, class_tables

NAMES = [method.name for method in CLASS_METHODS]
EVERY = [*NAMES, *NOVELTY]
COSTS = {
    name: {"fit_seconds": 2.0, "predict_seconds": 1e-4, "mebibytes": 3.0, "training_seconds": 0.0}
    for name in EVERY
}


def made_up(seed: int = 0, *, nll=None, auroc_of=None, accuracy=None) -> dict:
    """One seed's scores by method, all alike but for what is given; seeds differ by a little."""

    def right(name):
        value = (nll or {}).get(name, 0.3)
        return {
            "nll": value if isinstance(value, str) else value + 0.01 * seed,
            "ece": 0.02,
            "accuracy": (accuracy or {}).get(name, 0.9),
            "brier": 0.1,
            "aurc": 0.01,
        }

    def apart(name):
        value = (auroc_of or {}).get(name, 0.9) + 0.001 * seed
        shares = {f"{kind}_{percent}": 0.5 for kind in ("caught", "alarms") for percent in (1, 5)}
        return {"auroc": value, "fpr95": 0.2, **shares, "auroc_entropy": 0.7}

    def tests(name):
        told = {test: apart(name) for test in (LETTERS, TEXTURES, "mnist", UNIFORM)}
        labelled = {} if name in NOVELTY else {IN_DOMAIN: right(name), "rotated 30": right(name)}
        return labelled | told

    return {name: {"training_free": True, **COSTS[name], "tests": tests(name)} for name in EVERY}


def collected(*seeds: dict) -> Grid:
    return Grid.of(AXES, {("fashion_mnist",): [{"methods": seed} for seed in seeds]}, read_tests)


def said(*seeds: dict) -> list[str]:
    return class_findings(collected(*seeds), costs_grid(COSTS))


def both(**options) -> list[dict]:
    return [made_up(seed, **options) for seed in range(3)]


# --- findings ----------------------------------------------------------------------------------------


def test_what_speaks_against_trustgp_comes_first():
    found = said(*both(nll={"trustgp": 0.29}, auroc_of={"ViM": 0.95}))
    assert "AUROC 0.9010 ± 0.0010, worse than the best peer (ViM, 0.9510 ± 0.0010)" in found[0]
    assert "worse" in found[1]
    assert "ECE 0.0200 ± 0.0000, alike with the best peer" in found[2]
    assert "NLL 0.3000 ± 0.0100, better than the best peer" in found[3]


def test_numbers_that_do_not_differ_in_every_seed_alike_are_alike():
    first, second = made_up(0, nll={"trustgp": 0.2}), made_up(1, nll={"trustgp": 0.4})
    found = next(one for one in said(first, second) if one.startswith("Fashion-MNIST: NLL"))
    assert "alike with the best peer" in found


def test_one_seed_decides_nothing():
    assert not [one for one in said(made_up(auroc_of={"trustgp": 0.99})) if ", better than" in one]


def test_pairs_that_were_looked_at_are_told_apart_from_new_ones():
    found = said(*both())
    looked = [one for one in found if one.startswith("Looked at when choices were made.")]
    assert len(looked) == 2
    assert any("Fashion-MNIST → MNIST" in one for one in looked)
    assert not any("letters" in one for one in looked)
    assert set(new_pairs()).isdisjoint(looked_at())


def test_every_peer_is_counted_and_the_one_that_wins_most_is_named_first():
    found = next(one for one in said(*both(auroc_of={"kNN, cosine": 0.95})) if one.startswith("AUROC on new"))
    assert "of 2 places: kNN, cosine 2/0/0" in found
    assert all(name in found for name in EVERY if name != "trustgp")


def test_classes_that_changed_are_noticed():
    assert any("in 2 of 2 sets" in one for one in said(*both()))
    assert any("in 0 of 2 sets" in one for one in said(*both(accuracy={"trustgp": 0.8999})))


def test_an_infinite_cost_is_shown_and_loses():
    lost = both(nll={"trustgp": "inf"})
    assert "NLL infinite, worse than the best peer" in said(*lost)[0]
    table = class_tables(collected(*lost), costs_grid(COSTS))[0]
    assert table.rows[-1][2] == "infinite"


# --- tables ------------------------------------------------------------------------------------------


def test_the_tables_hold_every_method_and_say_which_pairs_are_new():
    tables = {table.title: table for table in class_tables(collected(*both()), costs_grid(COSTS))}
    near = tables["Fashion-MNIST: test images like those that trained"]
    assert [row[0] for row in near.rows] == NAMES
    new = tables["Novel images told, on pairs with which nothing was chosen: AUROC"]
    assert [row[0] for row in new.rows] == EVERY
    assert [column.name for column in new.columns[1:]] == [
        "Fashion-MNIST → letters",
        "Fashion-MNIST → textures",
    ]
    old = tables["Looked at when choices were made: novel images told: AUROC"]
    assert "Fashion-MNIST → MNIST" in [column.name for column in old.columns]
    costs = tables["What it costs, and what it is worth"]
    worth = dict(zip(EVERY, costs.rows, strict=True))
    assert worth["ViM"][-2:] == [None, pytest.approx(0.901)]
    assert worth["trustgp"][-2] == pytest.approx(0.31)


def test_differences_are_paired_over_seeds():
    seeds = both(nll={"trustgp": 0.2}, auroc_of={"energy": 0.95})
    table = next(t for t in class_tables(collected(*seeds), costs_grid(COSTS)) if "less each" in t.title)
    rows = {row[0]: row[1:] for row in table.rows}
    assert "trustgp" not in rows
    assert rows["softmax"][0].startswith("better: -0.1000")
    assert rows["energy"][0] is None
    assert rows["energy"][1].startswith("worse: -0.0500")


# --- scores --------------------------------------------------------------------------------------


def prediction(n: int, seed: int) -> ClassAnswer:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    spread = torch.rand(n, 4, generator=generator, dtype=torch.float64)
    return ClassAnswer(logits, logits.softmax(dim=1), torch.ones(n, dtype=torch.bool), spread)


def case_of(sizes: dict[str, int], labels: torch.Tensor) -> Case:
    rows = torch.zeros(sizes["held"], 1), torch.zeros(sizes["held"]).long()
    tests = {IN_DOMAIN: (torch.zeros(len(labels), 1), labels), LETTERS: (torch.zeros(sizes["new"], 1), None)}
    return Case(rows, rows, tests)


def test_every_method_has_one_declared_score():
    assert set(DECLARED) == set(NAMES)
    assert set(DECLARED.values()) <= set(SCORES)
    assert DECLARED["trustgp"] == "score"


def test_scores_are_those_of_the_definition():
    answers = {40: prediction(40, 0), 30: prediction(30, 1), 50: prediction(50, 2)}
    fitted = Fitted("softmax", True, 0.5, lambda inputs: answers[len(inputs)])
    labels = torch.arange(40) % 4
    found = score_method(fitted, case_of({"held": 50, "new": 30}, labels), "cpu")
    near, far = found["tests"][IN_DOMAIN], found["tests"][LETTERS]
    here, there, held = answers[40], answers[30], answers[50]
    assert near["nll"] == pytest.approx(float(class_nll(here.probabilities, labels).mean()), abs=1e-12)
    assert near["accuracy"] == float((here.classes == labels).double().mean())
    told = [entropy(one.probabilities) for one in (held, here, there)]
    assert far["auroc"] == far["auroc_entropy"] == pytest.approx(float(auroc(told[1], told[2])), abs=1e-12)
    assert far["auroc_score"] == float(auroc(here.variance.mean(1), there.variance.mean(1)))
    assert "auroc_information" not in far
    assert "nll" not in far
    limit = sorted(told[0].tolist())[48]  # of 50 rows the 49th: ceil(51 * 0.95)
    assert far["caught_5"] == float((told[2] > limit).double().mean())
    assert far["alarms_5"] == float((told[1] > limit).double().mean())
    assert sum(found["curves"][IN_DOMAIN][0]) == 40
    assert score_method(fitted, case_of({"held": 50, "new": 30}, labels), "cpu", only=IN_DOMAIN)[
        "tests"
    ].keys() == {IN_DOMAIN}


def test_a_novelty_peer_is_scored_on_novel_images_only():
    scores = {40: torch.arange(40.0), 30: torch.arange(30.0) + 35.5, 50: torch.arange(50.0)}
    fitted = Fitted("energy", True, 0.5, lambda inputs: scores[len(inputs)])
    found = score_method(fitted, case_of({"held": 50, "new": 30}, torch.arange(40) % 4), "cpu")
    assert set(found["tests"]) == {LETTERS}
    assert found["tests"][LETTERS]["auroc"] == pytest.approx(float(auroc(scores[40], scores[30])))
    assert found["curves"] == {}


def test_a_threshold_lets_no_more_familiar_rows_pass_than_promised():
    generator = torch.Generator().manual_seed(0)
    shares = []
    for _ in range(400):
        rows = torch.randn(1099, generator=generator, dtype=torch.float64)
        shares.append(float((rows[99:] > threshold(rows[:99], 0.05)).double().mean()))
    assert sum(shares) / len(shares) == pytest.approx(0.05, abs=0.005)
    assert threshold(torch.arange(10.0), 0.01) == 9.0  # too few: the largest


def test_the_declared_score_decides_and_others_are_kept():
    sides = [{name: torch.rand(9).double() for name in SCORES} for _ in range(3)]
    found = told_apart(*sides, by=ENTROPY)
    assert found["auroc"] == found["auroc_entropy"]
    assert {f"auroc_{name}" for name in SCORES} < set(found)


# --- the rate of dropout -----------------------------------------------------------------------------


@pytest.mark.parametrize("best", RATES)
def test_the_grid_is_widened_until_no_end_of_it_wins(best):
    tried = {
        float(rate): loss for rate, loss in try_rates(lambda rate: abs(rate - best), first=FIRST).items()
    }
    assert min(tried, key=tried.get) == best
    place = RATES.index(best)
    assert set(RATES[max(0, place - 1) : place + 2]) <= set(tried)
    assert {0.1, 0.2, 0.3} <= set(tried)


def test_where_the_start_holds_the_best_nothing_more_is_tried():
    assert list(try_rates(lambda rate: abs(rate - 0.2), first=FIRST)) == ["0.1", "0.2", "0.3"]


# --- images -----------------------------------------------------------------------------------------


def test_the_parts_share_no_image_and_are_scaled_by_the_training_pixels(monkeypatch):
    monkeypatch.delenv("TRUSTGP_DATA", raising=False)
    pytest.importorskip("matplotlib")
    case = make_images("fashion_mnist", seed=1, quick=True)
    assert case.made
    pixels = torch.cat([case.train[0], case.validation[0]]).flatten(1)
    assert len(pixels.unique(dim=0)) == len(pixels)
    assert float(case.train[0].mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(case.train[0].std()) == pytest.approx(1.0, abs=1e-5)
    assert shifts_of(list(case.tests)) == ["rotated 30", "noisy 0.2"]
    for name in (LETTERS, TEXTURES, "mnist", UNIFORM):
        assert case.tests[name][1] is None
    assert torch.equal(case.tests["rotated 30"][1], case.tests[IN_DOMAIN][1])


def test_held_out_classes_are_nowhere_but_among_the_novel_images(monkeypatch):
    monkeypatch.delenv("TRUSTGP_DATA", raising=False)
    case = make_images("mnist-8", seed=3, quick=True)
    assert set(case.tests) == {IN_DOMAIN, HELD}
    assert int(case.train[1].max()) == 7
    assert len(case.tests[IN_DOMAIN][0]) + len(case.tests[HELD][0]) == QUICK_ROWS["test"]


def test_classes_are_numbered_anew_without_those_held_out():
    images = Images(torch.arange(10, dtype=torch.uint8)[:, None, None].expand(10, 2, 2), torch.arange(10))
    (pixels, labels), (novel, kinds) = without(images, (6, 2))
    assert labels.tolist() == list(range(8))
    assert (255 * pixels[:, 0, 0, 0]).round().int().tolist() == [0, 1, 3, 4, 5, 7, 8, 9]
    assert kinds.tolist() == [2, 6]
    assert len(novel) == 2
    (_, same), (none, _) = without(images, ())
    assert same.tolist() == list(range(10))
    assert len(none) == 0


def test_five_seeds_hold_out_every_class_once_and_ten_no_pair_twice():
    training = ImageTraining.of("fashion_mnist-8")
    pairs = [training.held_out(seed) for seed in range(10)]
    assert sorted(label for pair in pairs[:5] for label in pair) == list(range(10))
    assert len({frozenset(pair) for pair in pairs}) == 10
    assert ImageTraining.of("mnist").held_out(3) == ()
    assert [ImageTraining.of(name).classes for name in TRAINED] == [10, 10, 8, 8]


def test_all_images_are_used_and_the_seed_chooses_those_that_validate(data_root):
    if not (data_root / "mnist").is_dir():
        pytest.skip("no images here")
    one, other = (make_images("mnist-8", seed=seed, quick=False) for seed in (0, 5))
    total = one.sizes["train"] + one.sizes["validation"]
    assert one.sizes["validation"] == VALIDATION
    assert 40_000 < total < 60_000
    assert one.sizes[IN_DOMAIN] + one.sizes[HELD] == 10_000
    assert other.sizes["train"] != one.sizes["train"]


def test_each_set_is_foreign_to_the_other():
    assert foreign_to("mnist") == "fashion_mnist"
    assert foreign_to("fashion_mnist") == "mnist"


def test_the_same_seed_gives_the_same_networks_and_members_differ(tmp_path, monkeypatch):
    monkeypatch.delenv("TRUSTGP_DATA", raising=False)
    case = make_images("mnist-8", seed=0, quick=True)
    setting, training = Setting(tmp_path, quick=True), ImageTraining.of("mnist-8")
    first, again = (train_bundle(setting, case, training, 0, {"0.1": 2.0, "0.2": 1.0}) for _ in range(2))
    for one, other in ((first.network, again.network), (first.dropping, again.dropping)):
        for name, value in one.state_dict().items():
            assert torch.equal(value, other.state_dict()[name])
    weights = [network.state_dict()["0.weight"] for network in (first.network, *first.members)]
    assert len(weights) == 5
    assert not torch.equal(weights[0], weights[1])
    assert {one.p for one in first.dropping.modules() if isinstance(one, nn.Dropout)} == {0.2}
    assert not any(isinstance(one, nn.Dropout) for one in first.network.modules())
    assert set(first.seconds) == {"network", "ensemble", "dropout"}


# --- a small run --------------------------------------------------------------------------------------


def without_times(value):
    """The numbers of a result that a rerun must give again."""
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if not key.endswith("_seconds")}
    return [without_times(inner) for inner in value] if isinstance(value, list | tuple) else value


@pytest.mark.skipif(find_spec("laplace") is None, reason="laplace-torch is not installed")
def test_a_small_run_is_whole_goes_on_and_stands_in_the_report(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.delenv("TRUSTGP_DATA", raising=False)
    result = run_study("classification", tmp_path, seeds=1, quick=True)
    folder = tmp_path / "classification"
    assert read_result(folder / "result.json").title == result.title
    assert all((folder / figure.file).stat().st_size > 5000 for figure in result.figures)
    assert "STAND-INS" in result.protocol[0]
    assert [row[0] for row in result.tables[0].rows] == [name for name in NAMES if name not in SLOW]
    assert all(cell is not None for row in result.tables[0].rows for cell in row)
    numbers = json.loads((folder / "result.json").read_text())["numbers"]
    runs = {(run["trained"],): run["seeds"] for run in numbers["runs"]}
    assert list(runs) == [("fashion_mnist",), ("mnist-8",)]
    assert list(runs["fashion_mnist",][0]["methods"]) == [name for name in EVERY if name not in SLOW]
    assert runs["fashion_mnist",][0]["sizes"][IN_DOMAIN] == QUICK_ROWS["test"]
    assert math.isfinite(numbers["dropout"]["mnist-8"]["0.1"])
    # tables and findings follow from what is stored
    grid, costs = Grid.of(AXES, runs, read_tests), costs_grid(numbers["costs"])
    assert class_findings(grid, costs) == result.findings
    assert class_tables(grid, costs) == result.tables
    # a part that is lost is done again, the others are read, and the numbers stay
    lost = next((folder / "parts").glob("mnist-8-0-*.json"))
    before = {file.name: file.stat().st_mtime_ns for file in (folder / "parts").iterdir() if file != lost}
    lost.unlink()
    again = run_study("classification", tmp_path, seeds=1, quick=True)
    after = {file.name: file.stat().st_mtime_ns for file in (folder / "parts").iterdir() if file != lost}
    assert before == after
    assert without_times(copy.deepcopy(dict(again.numbers))) == without_times(dict(result.numbers))
    page = write_report(tmp_path).read_text()
    assert result.title in page
