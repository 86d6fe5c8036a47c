"""The classification study: scores on made-up numbers, its images, and a small run."""

import pytest
import torch
from draws import Draws
from torch import nn

from trustgp.metrics import auroc, class_nll, entropy
from trustgp_experiments.core.cases import IN_DOMAIN, Case
from trustgp_experiments.core.result import Setting
from trustgp_experiments.datasets import Images
from trustgp_experiments.peers import ClassAnswer
from trustgp_experiments.peers.novelty import NOVELTY
from trustgp_experiments.peers.registry import CLASS_METHODS, Fitted
from trustgp_experiments.studies.classification import pairs
from trustgp_experiments.studies.classification import scores as scoring
from trustgp_experiments.studies.classification.pairs import (
    HELD_OUT,
    LETTERS,
    QUICK_ROWS,
    ImageTraining,
    make_images,
)
from trustgp_experiments.studies.classification.scores import SCORES, score_method, threshold
from trustgp_experiments.studies.classification.study import SLOW, train_bundle

NAMES = [method.name for method in CLASS_METHODS]
EVERY = [*NAMES, *NOVELTY]


def prediction(n: int, seed: int) -> ClassAnswer:
    draws = Draws(seed)
    logits, spread = draws.normal(n, 4), draws.uniform(n, 4)
    return ClassAnswer(logits, logits.softmax(dim=1), torch.ones(n, dtype=torch.bool), spread)


LABELS = torch.arange(40) % 4
ROWS = torch.zeros(50, 1), torch.zeros(50).long()
CASE = Case(ROWS, ROWS, {IN_DOMAIN: (torch.zeros(40, 1), LABELS), LETTERS: (torch.zeros(30, 1), None)})


def test_every_method_has_one_declared_score():
    assert set(scoring.DECLARED) == set(NAMES)
    assert set(scoring.DECLARED.values()) <= set(SCORES)
    assert scoring.DECLARED["trustgp"] == "score"
    sides = [{name: torch.rand(9).double() for name in SCORES} for _ in range(3)]
    scores = scoring.detection_scores(*sides, by=scoring.ENTROPY)
    assert scores["auroc"] == scores["auroc_entropy"]
    assert {f"auroc_{name}" for name in SCORES} < set(scores)


def test_scores_are_those_of_the_definition():
    answers = {40: prediction(40, 0), 30: prediction(30, 1), 50: prediction(50, 2)}
    fitted = Fitted("softmax", True, 0.5, lambda inputs: answers[len(inputs)])
    tests = score_method(fitted, CASE, "cpu")["tests"]
    near, far, familiar = tests[IN_DOMAIN], tests[LETTERS], answers[40]
    assert near["nll"] == pytest.approx(float(class_nll(familiar.probabilities, LABELS).mean()), abs=1e-12)
    assert near["accuracy"] == float((familiar.probabilities.argmax(dim=1) == LABELS).double().mean())
    held, here, there = (entropy(answers[n].probabilities) for n in (50, 40, 30))
    assert far["auroc"] == far["auroc_entropy"] == pytest.approx(float(auroc(here, there)), abs=1e-12)
    assert far["auroc_score"] == float(auroc(familiar.variance.mean(1), answers[30].variance.mean(1)))
    assert not {"auroc_information", "nll"} & set(far)
    limit = sorted(held.tolist())[48]  # of 50 rows the 49th: ceil(51 * 0.95)
    assert far["caught_5"] == float((there > limit).double().mean())
    assert far["alarms_5"] == float((here > limit).double().mean())
    assert score_method(fitted, CASE, "cpu", only=IN_DOMAIN)["tests"].keys() == {IN_DOMAIN}


def test_a_novelty_peer_is_scored_on_novel_images_only():
    scores = {40: torch.arange(40.0), 30: torch.arange(30.0) + 35.5, 50: torch.arange(50.0)}
    fitted = Fitted("energy", True, 0.5, lambda inputs: scores[len(inputs)])
    tests = score_method(fitted, CASE, "cpu")["tests"]
    assert set(tests) == {LETTERS}
    assert tests[LETTERS]["auroc"] == pytest.approx(float(auroc(scores[40], scores[30])))


def test_a_threshold_lets_no_more_familiar_rows_pass_than_promised():
    draws, shares = Draws(), []
    for _ in range(400):
        rows = draws.normal(1099)
        shares.append(float((rows[99:] > threshold(rows[:99], 0.05)).double().mean()))
    assert sum(shares) / len(shares) == pytest.approx(0.05, abs=0.005)
    assert threshold(torch.arange(10.0), 0.01) == 9.0  # too few: the largest


def test_the_parts_share_no_image_and_are_scaled_by_the_training_pixels(monkeypatch):
    monkeypatch.delenv("TRUSTGP_DATA", raising=False)
    pytest.importorskip("matplotlib")
    case = make_images("fashion_mnist", seed=1, quick=True)
    assert case.made
    pixels = torch.cat([case.train[0], case.validation[0]]).flatten(1)
    assert len(pixels.unique(dim=0)) == len(pixels)
    assert float(case.train[0].mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(case.train[0].std()) == pytest.approx(1.0, abs=1e-5)
    assert pairs.shifts_of(list(case.tests)) == ["rotated 30", "noisy 0.2"]
    assert all(case.tests[name][1] is None for name in (LETTERS, pairs.TEXTURES, "mnist"))
    assert torch.equal(case.tests["rotated 30"][1], case.tests[IN_DOMAIN][1])
    eight = make_images("mnist-8", seed=3, quick=True)
    assert set(eight.tests) == {IN_DOMAIN, HELD_OUT}
    assert int(eight.train[1].max()) == 7
    assert len(eight.tests[IN_DOMAIN][0]) + len(eight.tests[HELD_OUT][0]) == QUICK_ROWS["test"]


def test_classes_are_renumbered_without_those_held_out():
    images = Images(torch.arange(10, dtype=torch.uint8)[:, None, None].expand(10, 2, 2), torch.arange(10))
    (pixels, labels), (novel, kinds) = pairs.without(images, (6, 2))
    assert labels.tolist() == list(range(8))
    assert (255 * pixels[:, 0, 0, 0]).round().int().tolist() == [0, 1, 3, 4, 5, 7, 8, 9]
    assert kinds.tolist() == [2, 6]
    assert len(novel) == 2
    (_, same), (none, _) = pairs.without(images, ())
    assert same.tolist() == list(range(10))
    assert len(none) == 0


def test_five_seeds_hold_out_every_class_once_and_ten_no_pair_twice():
    training = ImageTraining.of("fashion_mnist-8")
    held_out = [training.held_out(seed) for seed in range(10)]
    assert sorted(label for pair in held_out[:5] for label in pair) == list(range(10))
    assert len({frozenset(pair) for pair in held_out}) == 10
    assert ImageTraining.of("mnist").held_out(3) == ()
    assert [ImageTraining.of(name).classes for name in pairs.TRAINED] == [10, 10, 8, 8]


def test_all_images_are_used_and_the_seed_chooses_those_that_validate(data_root):
    if not (data_root / "mnist").is_dir():
        pytest.skip("no images here")
    one, other = (make_images("mnist-8", seed=seed, quick=False) for seed in (0, 5))
    assert one.sizes["validation"] == pairs.VALIDATION
    assert 40_000 < one.sizes["train"] + one.sizes["validation"] < 60_000
    assert one.sizes[IN_DOMAIN] + one.sizes[HELD_OUT] == 10_000
    assert other.sizes["train"] != one.sizes["train"]


def test_the_seed_decides_all_networks_and_only_one_has_dropout(tmp_path, monkeypatch):
    monkeypatch.delenv("TRUSTGP_DATA", raising=False)
    case = make_images("mnist-8", seed=0, quick=True)
    setting, training = Setting(tmp_path, quick=True), ImageTraining.of("mnist-8")
    first, again = (train_bundle(setting, case, training, 0, {"0.1": 2.0, "0.2": 1.0}) for _ in range(2))
    for one, other in ((first.network, again.network), (first.dropping, again.dropping)):
        assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())
    weights = [network.state_dict()["0.weight"] for network in (first.network, *first.members)]
    assert len(weights) == 5
    assert not torch.equal(weights[0], weights[1])
    assert {one.p for one in first.dropping.modules() if isinstance(one, nn.Dropout)} == {0.2}
    assert not any(isinstance(one, nn.Dropout) for one in first.network.modules())


def test_a_small_run_on_stand_ins_scores_every_method(small_run):
    result = small_run("classification")[1]
    assert "STAND-INS" in result.protocol[0]
    assert [row[0] for row in result.tables[0].rows] == [name for name in NAMES if name not in SLOW]
    assert all(cell is not None for row in result.tables[0].rows for cell in row)
    first, eight = result.numbers["runs"]
    assert (first["trained"], eight["trained"]) == ("fashion_mnist", "mnist-8")
    assert list(first["seeds"][0]["methods"]) == [name for name in EVERY if name not in SLOW]
    assert first["seeds"][0]["sizes"][IN_DOMAIN] == QUICK_ROWS["test"]
