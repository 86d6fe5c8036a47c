"""The detection study: its scores against definitions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from detection.conftest import conditional_detr, pictures
from torch.nn.functional import normalize

from trustgp.detection import BoxTargets, Detection
from trustgp.metrics import auroc, fpr95
from trustgp_experiments.peers.novelty import Gaussians
from trustgp_experiments.studies.detection import bootstrap, peers, worlds
from trustgp_experiments.studies.detection import scores as scoring
from trustgp_experiments.studies.detection.bootstrap import DRAWS
from trustgp_experiments.studies.detection.peers import Detected, find, tempered
from trustgp_experiments.studies.detection.scores import LATENT, OURS, Answer
from trustgp_experiments.studies.detection.worlds import FAMILIAR, NOVEL, PictureSet
from trustgp_experiments.training.detector_network import trained

LOOSE = Detection(threshold=0.01, overlap=0.01, most=3)


@pytest.fixture(scope="module")
def detected():
    images, things = pictures(6)
    return find(conditional_detr(), [conditional_detr()], PictureSet(images, things, 2), LOOSE, passes=2)


def made_up(boxes, things, image=None) -> Detected:
    """Detections of blank pictures with these objects."""
    boxes = torch.tensor(boxes, dtype=torch.float32)
    m, world = len(boxes), PictureSet(torch.zeros(len(things), 3, 48, 48), things, 2)
    image = torch.zeros(m, dtype=torch.int64) if image is None else torch.tensor(image)
    logits = torch.tensor([[3.0, 0.0, 0.0]]).repeat(m, 1)
    several = (logits.softmax(dim=1).repeat(2, 1, 1), boxes.repeat(2, 1, 1))
    return Detected(world, image, boxes, logits, torch.zeros(m, 4), torch.zeros(m, 4), several, several)


def objects(*labels):
    """Boxes of ten pixels, the k-th at 20 k."""
    corners = [[20.0 * k, 20.0 * k, 20.0 * k + 10, 20.0 * k + 10] for k in range(len(labels))]
    return BoxTargets(torch.tensor(corners).reshape(-1, 4), torch.tensor(labels, dtype=torch.int64))


def test_a_member_that_is_the_same_network_gives_the_same_probabilities(detected):
    chances, places = detected.members
    sure = chances[0, :, -1] <= chances[1, :, -1] + 1e-6  # its surest query there may be another one
    torch.testing.assert_close(chances[0][sure], chances[1][sure])
    assert bool(sure.any())
    assert places.shape == (2, len(detected.image), 4)


def test_a_pass_without_dropout_is_the_detector_itself():
    network, (images, _) = conditional_detr(), pictures(2)
    for part in network.model.decoder.modules():
        for name in ("dropout", "activation_dropout", "attention_dropout"):
            if hasattr(part, name):
                setattr(part, name, 0.0)
    decoder = peers.Decoder(network)
    with torch.no_grad():
        output = decoder(images)
        image, query = torch.tensor([0, 1]), torch.tensor([3, 5])
        chances, boxes = decoder.again(image, query, torch.tensor([48.0] * 4), 3)
    expected = peers.with_background(output.logits, 2)[image, query].softmax(dim=1)
    assert boxes.shape == (3, 2, 4)
    torch.testing.assert_close(chances, expected.expand(3, -1, -1), rtol=1e-4, atol=1e-5)
    assert not network.model.decoder.training


def test_an_object_is_found_once_by_the_surest_detection():
    boxes = [[0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 31], [40, 40, 45, 45]]
    target, label = scoring.hits(made_up(boxes, [objects(0, 1)]))
    assert target.tolist() == [0, -1, 1, -1]
    assert label.tolist() == [0, 2, 1, 2]


def test_foreign_detections_lie_on_objects_of_unknown_classes():
    boxes = [[0.0, 0, 10, 10], [20, 20, 30, 28], [33, 33, 40, 40], [20, 20, 30, 30]]
    mask = scoring.on_novel(made_up(boxes, [objects(0, 4), objects()], [0, 0, 0, 1]))
    assert mask.tolist() == [False, True, False, False]


def test_the_calibration_error_is_the_gap_over_bins(generator):
    confidence = torch.rand(200, generator=generator, dtype=torch.float64)
    correct = (torch.rand(200, generator=generator) < 0.5).double()
    expected = 0.0
    for k in range(10):
        inside = (confidence >= k / 10) & (confidence < (k + 1) / 10)
        if bool(inside.any()):
            expected += float((confidence[inside] - correct[inside]).mean().abs() * inside.sum() / 200)
    weights = torch.ones(1, 200, dtype=torch.float64)
    assert float(scoring.calibration_error(confidence, correct, weights)) == pytest.approx(expected, rel=1e-9)


def test_members_that_agree_share_no_information():
    same = torch.tensor([[[0.7, 0.2, 0.1]]]).repeat(3, 5, 1)
    none = scoring._several(same, torch.zeros(3, 5, 4)).scores["mutual information"]
    torch.testing.assert_close(none, torch.zeros(5).double(), atol=1e-6, rtol=0)
    different = torch.tensor([[[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]])
    one = scoring._several(different, torch.zeros(2, 1, 4)).scores["mutual information"]
    assert float(one) == pytest.approx(float(torch.tensor(2.0).log()), rel=1e-6)


def test_a_picture_has_the_novelty_of_its_most_novel_detection():
    pictures_of = made_up([[0.0] * 4] * 3, [objects()] * 3, [0, 0, 2])
    largest = scoring.largest_by_picture(torch.tensor([0.2, 0.7, 0.1]), pictures_of)
    assert largest.tolist() == pytest.approx([0.7, -torch.inf, 0.1])


def test_scores_that_are_larger_on_novel_things_separate_them(detected):
    answers = {name: scoring.all_answers(detected, scoring.Methods(2.0)) for name in (FAMILIAR, NOVEL)}
    for shift, methods in zip((0.0, 2.0), answers.values(), strict=True):
        value = torch.linspace(0, 1, len(detected.image)) + shift
        chances = methods["softmax"].probabilities
        methods[OURS] = Answer(chances, value, detected.boxes, novelty={LATENT: value})
    world = detected.pictures
    novel = PictureSet(world.images, [BoxTargets(t.boxes, t.labels + 2) for t in world.things], 2)
    separated = scoring.separation(answers, {FAMILIAR: detected, NOVEL: replace(detected, pictures=novel)})
    assert separated[OURS][NOVEL][LATENT]["auroc"][0] == 1.0
    assert separated["softmax"][NOVEL].keys() == {"entropy"}
    assert separated["energy"][NOVEL].keys() == {LATENT}  # the softmax is the detector's


def test_calibration_scores_only_detections_of_an_object():
    shift = torch.linspace(-1, 1, 30)
    boxes = [[0.0, 0.0, 10.0 + float(s), 10.0] for s in shift]
    detections = made_up(boxes, [objects(0)] * 30, list(range(30)))
    judged = scoring.Judged(detections, scoring.all_answers(detections, scoring.Methods(1.0)))
    scores = scoring.calibration(judged, scoring.edge_noises(judged, judged))["softmax"]
    assert scores["rows"] == [30, 30]
    assert scores["rms"][0] == pytest.approx(float((shift.square().mean() / 4).sqrt()), rel=1e-4)
    assert scores["within 0.95"][0] >= 0.95


def test_a_draw_is_the_score_of_the_pictures_that_were_drawn(generator):
    images = [torch.randint(6, (20,), generator=generator) for _ in range(2)]
    scores = [torch.rand(20, generator=generator).round(decimals=1) for _ in range(2)]
    counts = bootstrap.resampled(6, seed=3)
    assert counts.shape == (1 + DRAWS, 6)
    assert bool((counts.sum(dim=1) == 6).all())
    here, there = (counts[:, image] for image in images)
    areas = bootstrap.auroc_draws(scores[0], here, scores[1], there)
    shares = bootstrap.caught_draws(scores[0], here, scores[1], there, alarms=0.05)
    means = bootstrap.mean_draws(scores[0], here)
    for draw in (0, 1, 17, DRAWS):
        rows = [
            torch.cat([score[image == i].repeat(int(k)) for i, k in enumerate(counts[draw])])
            for score, image in zip(scores, images, strict=True)
        ]
        assert float(areas[draw]) == pytest.approx(float(auroc(*rows)), rel=1e-9)
        assert float(shares[draw]) == pytest.approx(1.0 - float(fpr95(*rows)), abs=1e-9)
        assert float(means[draw]) == pytest.approx(float(rows[0].double().mean()), rel=1e-6)


def test_seeds_are_averaged_and_intervals_are_of_the_draws():
    draws = [[float(k)] + [k + i / DRAWS for i in range(DRAWS)] for k in (1, 3)]
    one = bootstrap.figure(draws)
    assert one["mean"] == 2.0
    assert one["seeds"] == [1.0, 3.0]
    assert (one["low"], one["high"]) == pytest.approx((2.025, 2.975), abs=0.01)
    assert bootstrap.merged([{"a": draws[0], "b": "x"}, {"a": draws[1], "b": "y"}]) == {"a": one, "b": "x"}


def test_feature_scores_are_those_of_detections_of_an_object(generator):
    """The formulas are compared with numpy in `peers/test_novelty.py`."""
    labels = torch.randint(3, (200,), generator=generator)  # 2: no object
    rows = torch.randn(200, 3, generator=generator).double() + 4.0 * labels[:, None]
    new = torch.randn(5, 3, generator=generator).double()
    scores = peers.FeatureScores.fit(rows, labels, 2, rows[:40], labels[:40])(new)
    known, kinds, held = rows[labels < 2], labels[labels < 2], labels[:40] < 2
    held_rows = rows[:40][held], labels[:40][held]
    common, own = (Gaussians.fit(known, kinds, held_rows, shared=one) for one in (True, False))
    torch.testing.assert_close(scores["Mahalanobis"][0], common.distances(new).amin(dim=1))
    torch.testing.assert_close(scores["DDU"][0], -own.log_density(new))
    fifth = 1.0 - (normalize(new, dim=1) @ normalize(known, dim=1).T).sort(dim=1).values[:, -5]
    torch.testing.assert_close(scores["nearest neighbours"][0], fifth)


def test_a_temperature_of_members_is_the_likeliest_and_another_rate_of_dropout_ends(generator):
    logits = 3 * torch.randn(4, 500, 3, generator=generator)
    labels = torch.multinomial((logits / 2).softmax(dim=2).mean(dim=0), 1, generator=generator)[:, 0]
    chances = logits.softmax(dim=2)
    half = (logits.double() / 2).softmax(dim=2)
    torch.testing.assert_close(tempered(chances, 2.0), half, atol=1e-6, rtol=0)
    best = peers.member_temperature(chances, labels)

    def loss(temperature):
        return float(-tempered(chances, temperature).mean(dim=0).gather(1, labels[:, None]).log().mean())

    assert loss(best) < min(loss(1.1 * best), loss(best / 1.1))
    decoder = conditional_detr().model.decoder
    before = [module.dropout for module in decoder.modules() if hasattr(module, "dropout")]
    with peers.dropping(decoder, 0.33):
        assert decoder.layers[0].dropout == 0.33
    assert [module.dropout for module in decoder.modules() if hasattr(module, "dropout")] == before


def test_each_seed_judges_another_detector_on_pictures_that_did_not_train_it():
    seeds = [worlds.make_scenes(seed=k, fitted=2, validated=2, tested=2) for k in range(3)]
    assert [world.detector[0] for world in seeds] == list(worlds.DETECTORS)
    world = seeds[0]
    assert world.fit.known == 2
    assert not torch.equal(world.fit.images, world.validation.images)
    assert not torch.equal(world.validation.images, world.tests[FAMILIAR].images)
    # the error bar is fitted to training pictures
    starts = [worlds.first_fitted(seed, 5000) for seed in range(worlds.STARTS)]
    assert starts == sorted(set(starts))
    assert (starts[0], starts[-1] + 5000, worlds.first_fitted(worlds.STARTS, 5000)) == (0, worlds.TRAINED, 0)
    with pytest.raises(ValueError, match="name='rovers' is unknown"):
        trained("rovers")
