"""The detection study, small: what its scores mean, and what follows from its numbers."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from detection.conftest import conditional_detr, pictures
from scipy.stats import multivariate_normal

from trustgp.detection import BoxTargets, Detection
from trustgp.metrics import auroc, fpr95
from trustgp_experiments.studies import run_study
from trustgp_experiments.studies.detection.bootstrap import (
    DRAWS,
    auroc_draws,
    caught_draws,
    figure,
    mean_draws,
    merged,
    resampled,
)
from trustgp_experiments.studies.detection.costs import OWN, PLAIN
from trustgp_experiments.studies.detection.peers import Decoder, FeatureScores, Found, find, with_background
from trustgp_experiments.studies.detection.scores import (
    LATENT,
    OURS,
    Judged,
    Methods,
    Told,
    _calibration,
    _several,
    _worst,
    edge_noises,
    hits,
    right,
    strange,
    told_apart,
    told_by_all,
)
from trustgp_experiments.studies.detection.tables import findings, tables
from trustgp_experiments.studies.detection.worlds import (
    DETECTORS,
    FAMILIAR,
    NOVEL,
    STARTS,
    TRAINED,
    PictureSet,
    first_fitted,
    make_scenes,
)
from trustgp_experiments.training.detector_network import trained

LOOSE = Detection(threshold=0.01, overlap=0.01, most=3)


@pytest.fixture(scope="module")
def seen():
    images, things = pictures(6)
    world = PictureSet(images, things, 2)
    return world, find(conditional_detr(), [conditional_detr()], world, LOOSE, passes=2)


def made_up(boxes, pictures, image=None) -> Found:
    boxes = torch.tensor(boxes, dtype=torch.float32)
    m = len(boxes)
    image = torch.zeros(m, dtype=torch.int64) if image is None else torch.tensor(image)
    logits = torch.tensor([[3.0, 0.0, 0.0]]).repeat(m, 1)
    several = (logits.softmax(dim=1).repeat(2, 1, 1), boxes.repeat(2, 1, 1))
    return Found(pictures, image, boxes, logits, torch.zeros(m, 4), torch.zeros(m, 4), several, several)


def test_a_member_that_is_the_same_network_says_the_same(seen):
    _, found = seen
    told, places = found.members
    sure = told[0, :, -1] <= told[1, :, -1] + 1e-6  # its surest query there may be another one
    torch.testing.assert_close(told[0][sure], told[1][sure])
    assert bool(sure.any())
    assert places.shape == (2, len(found.image), 4)


def test_a_pass_without_dropout_is_the_detector_itself():
    network, (images, _) = conditional_detr(), pictures(2)
    for part in network.model.decoder.modules():
        for name in ("dropout", "activation_dropout", "attention_dropout"):
            if hasattr(part, name):
                setattr(part, name, 0.0)
    decoder = Decoder(network)
    with torch.no_grad():
        found = decoder(images)
        image, query = torch.tensor([0, 1]), torch.tensor([3, 5])
        told, boxes = decoder.again(image, query, torch.tensor([48.0] * 4), 3)
    expected = with_background(found.logits, 2)[image, query].softmax(dim=1)
    assert boxes.shape == (3, 2, 4)
    torch.testing.assert_close(told, expected.expand(3, -1, -1), rtol=1e-4, atol=1e-5)
    assert not network.model.decoder.training


def test_a_thing_is_found_once_by_the_surest():
    things = BoxTargets(torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30]]), torch.tensor([0, 1]))
    world = PictureSet(torch.zeros(1, 3, 48, 48), [things], 2)
    thing, label = hits(made_up([[0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 31], [40, 40, 45, 45]], world))
    assert thing.tolist() == [0, -1, 1, -1]
    assert label.tolist() == [0, 2, 1, 2]


def test_strange_detections_lie_on_things_that_were_not_trained_on():
    things = BoxTargets(torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30]]), torch.tensor([0, 4]))
    world = PictureSet(
        torch.zeros(2, 3, 48, 48), [things, BoxTargets(torch.zeros(0, 4), torch.zeros(0).long())], 2
    )
    boxes = [[0.0, 0, 10, 10], [20, 20, 30, 28], [33, 33, 40, 40], [20, 20, 30, 30]]
    assert strange(made_up(boxes, world, [0, 0, 0, 1])).tolist() == [False, True, False, False]


def test_the_calibration_error_is_the_gap_over_bins():
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(200, generator=generator, dtype=torch.float64)
    correct = (torch.rand(200, generator=generator) < 0.5).double()
    expected = 0.0
    for k in range(10):
        inside = (confidence >= k / 10) & (confidence < (k + 1) / 10)
        if bool(inside.any()):
            gap = confidence[inside].mean() - correct[inside].mean()
            expected += float(gap.abs() * inside.sum() / 200)
    weights = torch.ones(1, 200, dtype=torch.float64)
    assert float(_calibration(confidence, correct, weights)) == pytest.approx(expected, rel=1e-9)


def test_members_that_agree_share_no_information():
    same = torch.tensor([[[0.7, 0.2, 0.1]]]).repeat(3, 5, 1)
    told = _several(same, torch.zeros(3, 5, 4))
    torch.testing.assert_close(told.scores["mutual information"], torch.zeros(5).double(), atol=1e-6, rtol=0)
    apart = torch.tensor([[[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]])
    one = _several(apart, torch.zeros(2, 1, 4)).scores["mutual information"]
    assert float(one) == pytest.approx(float(torch.tensor(2.0).log()), rel=1e-6)


def test_a_picture_is_as_foreign_as_its_most_foreign_detection():
    world = PictureSet(torch.zeros(3, 3, 48, 48), [], 2)
    found = _worst(torch.tensor([0.2, 0.7, 0.1]), made_up([[0.0] * 4] * 3, world, [0, 0, 2]))
    assert found.tolist() == pytest.approx([0.7, -torch.inf, 0.1])


def test_scores_tables_and_findings_come_from_the_numbers(seen):
    world, found = seen
    answers = {name: told_by_all(found, Methods(2.0)) for name in (FAMILIAR, NOVEL)}
    for told in answers.values():  # ours, made up: told apart perfectly
        value = torch.linspace(0, 1, len(found.image)) + (2.0 if told is answers[NOVEL] else 0.0)
        edges = torch.ones(len(found.image), 4, dtype=torch.float64), 5.0
        told[OURS] = Told(
            told["softmax"].probabilities, value, found.boxes, edges, own_scores={LATENT: value}
        )
    novel = PictureSet(world.images, [BoxTargets(t.boxes, t.labels + 2) for t in world.things], 2)
    apart = told_apart(answers, {FAMILIAR: found, NOVEL: replace(found, pictures=novel)})
    assert apart[OURS][NOVEL][LATENT]["auroc"][0] == 1.0
    assert apart["softmax"][NOVEL].keys() == {"entropy"}
    assert apart["energy"][NOVEL].keys() == {LATENT}  # the softmax is the detector's
    times = {
        name: {"over": over, "under": 5.0 / over, "peak": None, "calls": 3}
        for name, over in {PLAIN: 1.0, OWN: 1.4}.items()
    }
    judged = Judged(found, answers[FAMILIAR])
    labelled = right(judged, edge_noises(judged, judged))
    studied = {"told": apart, "ap50": {"rover": 0.5}}
    studied["right"] = {f"scenes, {name}": labelled for name in (FAMILIAR, "flight")}
    worlds = {"scenes": merged([studied, studied])}
    said = findings(worlds, times)
    assert said[0].endswith("At least 0.94 was promised: kept.")
    assert said[-1].endswith("promised were 1.5 and 3: kept.")
    assert findings(worlds, {**times, OWN: {**times[OWN], "over": 1.7}})[-1].endswith("not kept.")
    assert len(tables(worlds, times)) == 3


def test_right_scores_only_what_has_found_a_thing():
    things = [BoxTargets(torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([0])) for _ in range(30)]
    world = PictureSet(torch.zeros(30, 3, 48, 48), things, 2)
    shift = torch.linspace(-1, 1, 30)
    boxes = [[0.0, 0.0, 10.0 + float(s), 10.0] for s in shift]
    found = made_up(boxes, world, list(range(30)))
    judged = Judged(found, told_by_all(found, Methods(1.0)))
    scores = right(judged, edge_noises(judged, judged))["softmax"]
    assert scores["rows"] == [30, 30]
    assert scores["rms"][0] == pytest.approx(float((shift.square().mean() / 4).sqrt()), rel=1e-4)
    assert scores["within 0.95"][0] >= 0.95


def test_a_draw_is_the_score_of_the_pictures_that_were_drawn():
    generator = torch.Generator().manual_seed(0)
    image = {side: torch.randint(6, (20,), generator=generator) for side in ("in", "out")}
    score = {side: torch.rand(20, generator=generator).round(decimals=1) for side in image}
    counts = resampled(6, seed=3)
    assert counts.shape == (1 + DRAWS, 6)
    assert bool((counts.sum(dim=1) == 6).all())
    weights = [counts[:, image[side]] for side in ("in", "out")]
    areas = auroc_draws(score["in"], weights[0], score["out"], weights[1])
    shares = caught_draws(score["in"], weights[0], score["out"], weights[1], alarms=0.05)
    means = mean_draws(score["in"], weights[0])
    for draw in (0, 1, 17, DRAWS):
        rows = [
            torch.cat([score[side][image[side] == i].repeat(int(k)) for i, k in enumerate(counts[draw])])
            for side in ("in", "out")
        ]
        assert float(areas[draw]) == pytest.approx(float(auroc(*rows)), rel=1e-9)
        assert float(shares[draw]) == pytest.approx(1.0 - float(fpr95(*rows)), abs=1e-9)
        assert float(means[draw]) == pytest.approx(float(rows[0].double().mean()), rel=1e-6)


def test_seeds_are_averaged_and_intervals_are_of_the_draws():
    draws = [[float(k)] + [k + i / DRAWS for i in range(DRAWS)] for k in (1, 3)]
    found = figure(draws)
    assert found["mean"] == 2.0
    assert found["seeds"] == [1.0, 3.0]
    assert found["low"] == pytest.approx(2.025, abs=0.01)
    assert found["high"] == pytest.approx(2.975, abs=0.01)
    assert merged([{"a": draws[0], "b": "x"}, {"a": draws[1], "b": "y"}]) == {"a": found, "b": "x"}


def test_feature_scores_are_those_of_numpy():
    generator = np.random.default_rng(0)
    labels = torch.from_numpy(generator.integers(0, 3, 200))  # 2: nothing was found
    rows = torch.from_numpy(generator.normal(size=(200, 3))) + 4.0 * labels[:, None]
    asked = torch.from_numpy(generator.normal(size=(5, 3)))
    found = FeatureScores.fit(rows, labels, 2)(asked)
    own = [rows[labels == c].numpy() for c in range(2)]
    eye, centred = np.eye(3), np.concatenate([some - some.mean(axis=0) for some in own])

    def spread(apart):
        square = apart.T @ apart / len(apart)
        return square + (1e-3 * np.diag(square).mean() + 1e-12) * eye

    inverse = np.linalg.inv(spread(centred))
    each = [asked.numpy() - some.mean(axis=0) for some in own]
    distance = np.min([np.einsum("mi,ij,mj->m", away, inverse, away) for away in each], axis=0)
    np.testing.assert_allclose(found["Mahalanobis"][0], distance)
    density = sum(
        len(some)
        / len(centred)
        * multivariate_normal(some.mean(axis=0), spread(some - some.mean(axis=0))).pdf(asked)
        for some in own
    )
    np.testing.assert_allclose(found["DDU"][0], -np.log(density))
    known = np.concatenate(own)
    angles = (asked / asked.norm(dim=1, keepdim=True)).numpy() @ (
        known / np.linalg.norm(known, axis=1)[:, None]
    ).T
    np.testing.assert_allclose(
        found["nearest neighbours"][0], 1.0 - np.sort(angles, axis=1)[:, -5], atol=1e-12
    )


def test_each_seed_judges_another_detector():
    assert [make_scenes(seed=k, many=1, some=1).detector[0] for k in range(3)] == list(DETECTORS)


def test_every_seed_fits_to_pictures_that_trained_the_detector():
    starts = [first_fitted(seed, 5000) for seed in range(STARTS)]
    assert starts == sorted(set(starts))
    assert starts[0] == 0
    assert starts[-1] + 5000 == TRAINED
    assert first_fitted(STARTS, 5000) == 0


def test_scenes_of_the_study_are_not_those_of_the_training():
    world = make_scenes(seed=0, many=5, some=5)
    assert world.fit.known == 2
    assert not torch.equal(world.fit.images, world.validation.images)
    assert not torch.equal(world.validation.images, world.tests[FAMILIAR].images)


def test_without_pillow_nothing_runs_and_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"detection needs PIL.*trustgp\[detection\]"):
        run_study("detection", tmp_path, quick=True)
    assert not (tmp_path / "detection" / "parts").exists()


def test_weights_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="name='rovers' is unknown"):
        trained("rovers")
