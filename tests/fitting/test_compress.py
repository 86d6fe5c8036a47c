"""Smaller models from fitted ones: what they keep, what they promise, and what they refuse."""

import copy
from dataclasses import replace

import pytest
import torch
from blobs import blobs
from blobs import fit as fit_blobs
from reference import dense_gram, dense_jacobian, posterior_variance

import trustgp
from trustgp.data.quantities import Budget
from trustgp.data.tensor_file import ArtifactError, read, write
from trustgp.experts.mixture import LatentPrediction
from trustgp.experts.posteriors import GramPosterior, PriorPosterior, RootPosterior
from trustgp.state import model_state as predict
from trustgp.tangents.factors import HalfFactors

EVERYTHING = {"rows": 12, "rank": 6, "dtype": "float16", "gate": 20, "witness": 10}
SETTINGS = [{"rows": 12}, {"rank": 6}, {"rows": 20, "rank": 7}, {"dtype": "float16"}, EVERYTHING]


@pytest.fixture(scope="module")
def held(toy):
    return toy(240, seed=7)


@pytest.fixture(scope="module")
def strange(toy):
    """Rows near the training rows, and rows far from all of them."""
    near = toy(60, seed=9)[0]
    return torch.cat([near, 3 * near, 30 * near])


@pytest.fixture(scope="module")
def whole(fit_case, held):
    return fit_case(validation=held)


@pytest.fixture(scope="module")
def sketched(fit_case, held):
    return fit_case(validation=held, tangents=trustgp.Sketch(64))


def compress(model, **options):
    return trustgp.compress(model, progress=False, **options)


def answers(model, inputs) -> LatentPrediction:
    return predict.answers(model.state, inputs)[1]


@pytest.mark.parametrize("options", SETTINGS[:3])
@pytest.mark.parametrize("name", ["whole", "sketched"])
def test_no_variance_falls(name, options, request, strange):
    model = request.getfixturevalue(name)
    before, after = answers(model, strange), answers(compress(model, **options), strange)
    assert torch.equal(before.expert, after.expert)
    prior = before.epistemic / before.novelty
    assert bool((after.epistemic >= before.epistemic - 1e-10 * prior).all())
    assert bool((after.novelty >= before.novelty - 1e-10).all())
    assert bool((after.epistemic <= prior * (1 + 1e-10)).all())


@pytest.mark.parametrize("name", ["whole", "sketched"])
def test_float16_moves_a_variance_by_a_hundredth_and_a_millionth_of_the_prior_and_a_mean_by_a_fiftieth(
    name, request, strange
):
    model = request.getfixturevalue(name)
    before, after = answers(model, strange), answers(compress(model, dtype="float16"), strange)
    same = before.expert[:, 0] == after.expert[:, 0]
    assert float(same.double().mean()) > 0.98
    assert bool((after.novelty - before.novelty)[same].abs().le(1e-6 + 1e-2 * before.novelty[same]).all())
    spread = before.residual_mean[same].abs().amax()
    assert bool(((after.residual_mean - before.residual_mean)[same].abs() <= 2e-2 * spread).all())


def test_an_expert_with_fewer_rows_is_a_dense_gp_on_these_rows(case, whole, strange):
    small = compress(whole, rows=12)
    mixture = small.mixtures[0]
    jacobian, new = dense_jacobian(case.network, case.inputs), dense_jacobian(case.network, strange)
    raw = answers(small, strange)
    for number, expert in enumerate(mixture.experts):
        rows, mine = expert.rows, (raw.expert[:, 0] == number).nonzero().flatten()
        before = whole.mixtures[0].experts[number]
        kernel = dense_gram(jacobian[before.rows], mixture.tangents.mix)
        tau = float((before.posterior.factor @ before.posterior.factor.T - kernel).diagonal().mean())
        gram = dense_gram(jacobian[rows], mixture.tangents.mix)
        cross = dense_gram(new[mine], mixture.tangents.mix, jacobian[rows])
        prior = dense_gram(new[mine], mixture.tangents.mix).diagonal()
        unit = posterior_variance(gram, cross, prior, tau)
        torch.testing.assert_close(raw.novelty[mine, 0], unit / prior, rtol=1e-6, atol=1e-9)
        # and its mean comes nearest to that of all rows, at those rows
        exact = kernel @ before.posterior.weights
        wide = dense_gram(jacobian[before.rows], mixture.tangents.mix, jacobian[rows])
        best = torch.linalg.lstsq(wide, exact).solution
        left, least = (((wide @ w) - exact).norm() for w in (expert.posterior.weights, best))
        assert float(left) <= 1.001 * float(least) + 1e-9


def test_kept_rows_are_own_rows_first_and_rows_of_before(whole):
    small = compress(whole, rows=15)
    for before, after in zip(whole.mixtures[0].experts, small.mixtures[0].experts, strict=True):
        assert len(after.rows) == min(15, len(before.rows))
        own, kept = before.rows[: int(before.own)].tolist(), after.rows.tolist()
        assert set(kept) <= set(before.rows.tolist())
        assert all(row in own for row in kept[: int(after.own)])
        assert not any(row in own for row in kept[int(after.own) :])


def test_an_expert_that_held_landmarks_before_can_be_compressed_too(fit_case, held, strange):
    model = fit_case(validation=held, budget=Budget(130 * 1024, during_fit=True), witness=None)
    before, after = answers(model, strange), answers(compress(model, rows=6), strange)
    prior = before.epistemic / before.novelty
    assert bool((after.epistemic >= before.epistemic - 1e-9 * prior).all())


def test_a_limit_that_nothing_reaches_changes_nothing_but_rounding(whole, strange):
    before, after = answers(whole, strange), answers(compress(whole, rows=10_000, rank=10_000), strange)
    torch.testing.assert_close(after.novelty, before.novelty, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(after.residual_mean, before.residual_mean, rtol=1e-6, atol=1e-8)


def test_sketched_experts_keep_the_directions_of_which_most_is_known(sketched):
    small = compress(sketched, rank=5, dtype="float16")
    for before, after in zip(sketched.mixtures[0].experts, small.mixtures[0].experts, strict=True):
        assert after.posterior.basis.shape == (64, 5)
        assert after.posterior.basis.dtype == torch.float16
        assert torch.equal(
            after.posterior.shrinkage.sort().values, before.posterior.shrinkage.sort().values[:5]
        )
        assert torch.equal(after.posterior.weights, before.posterior.weights)


def test_the_states_are_what_was_asked_for(whole):
    small = compress(whole, **EVERYTHING)
    (mixture,) = small.mixtures
    assert len(mixture.gate.projection.features) == 20
    assert isinstance(mixture.gate.projection.features, HalfFactors)
    for expert in mixture.experts:
        assert isinstance(expert.posterior, RootPosterior)
        assert isinstance(expert.posterior.features, HalfFactors)
        assert expert.posterior.root.shape == (12, 6)
    assert {cell.posterior.root.shape[1] for cell in small.witness.cells} == {10}
    assert small.nbytes < whole.nbytes / 3
    assert all(isinstance(e.posterior, GramPosterior) for e in whole.mixtures[0].experts)


@pytest.mark.parametrize("options", [{"rows": 12}, {"rows": 12, "rank": 5, "witness": 7}])
def test_what_rows_take_from_the_prior_is_a_product_for_those_who_write_it_out(whole, strange, options):
    small = compress(whole, **options)
    features = small.mixtures[0].tangents(strange)
    for expert in small.mixtures[0].experts:
        state = expert.posterior
        taken = (features.gram(state.features) @ state.whitening().T).square().sum(1)
        answer = state(features)
        torch.testing.assert_close(answer.prior - taken, answer.unit, rtol=1e-8, atol=1e-8)
    for cell in small.witness.cells:
        state = cell.posterior
        points = replace(state.features, points=torch.rand(3, 3, dtype=torch.float64))
        taken = (points.gram(state.features) @ state.whitening().T).square().sum(1)
        torch.testing.assert_close(1.0 - taken, state(points).unit, rtol=1e-8, atol=1e-8)


def test_a_gate_of_fewer_rows_sends_nearly_all_rows_to_the_same_expert(whole, toy):
    inputs = toy(400, seed=11)[0]
    before = answers(whole, inputs).expert
    moved = [
        float((answers(compress(whole, gate=k), inputs).expert != before).double().mean()) for k in (20, 80)
    ]
    assert moved[1] <= moved[0] <= 0.05


def test_the_witness_keeps_its_mean_and_no_variance_of_its_falls(whole, strange):
    small = compress(whole, witness=10).witness
    before, after = whole.witness(strange), small(strange)
    torch.testing.assert_close(after.mean, before.mean, rtol=1e-12, atol=1e-12)
    assert bool((after.novelty >= before.novelty - 1e-10).all())
    assert small.nbytes < whole.witness.nbytes
    assert compress(whole, witness=0).witness is None


def test_the_witness_reaches_as_many_validation_rows_as_before(whole, held):
    small = compress(whole, witness=10, validation=held).witness
    shares = [float((w(held[0]).novelty <= w.reach).double().mean()) for w in (whole.witness, small)]
    assert shares[1] == pytest.approx(shares[0], abs=1.5 / len(held[0]))
    assert float(small.reach) > float(whole.witness.reach)


def test_with_validation_rows_it_is_calibrated_anew_and_without_as_before(whole, held):
    small = compress(whole, rows=12, validation=held)
    likelihood = whole.origin.likelihood
    rows = likelihood.calibration_rows(*predict.answers(small.state, held[0]), held[1])
    expected = likelihood.calibrate(rows, small.shape, None)
    rare = whole.calibrations[0].rare
    assert float(small.calibrations[0].rare.sum()) == float(rare.sum()) > 0
    assert torch.allclose(small.calibrations[0].level, expected[0].level, rtol=0.2)
    assert len(small.held_scores) == len(held[0])
    bare = compress(whole, rows=12)
    assert all(a is b for a, b in zip(bare.calibrations, whole.calibrations, strict=True))
    assert len(bare.held_scores) == 0


def test_the_mean_is_the_networks_and_the_model_stays_as_it_is(case, whole, held, state_of, strange):
    before = {name: value.clone() for name, value in state_of(whole).items()}
    small = compress(whole, validation=held, **EVERYTHING)
    assert torch.equal(small.predict(strange).mean, case.network(strange))
    after = state_of(whole)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not whole.origin.compressed


@pytest.mark.parametrize("options", SETTINGS)
@pytest.mark.parametrize("name", ["whole", "sketched"])
def test_a_file_holds_it_to_the_bit(name, options, request, case, held, strange, tmp_path):
    small = compress(request.getfixturevalue(name), validation=held, **options)
    small.threshold(false_alarm=0.05)
    small.save(tmp_path / "small.trustgp")
    again = trustgp.load(tmp_path / "small.trustgp", case.network)
    one, two = small.predict(strange), again.predict(strange)
    assert torch.equal(one.variance, two.variance)
    assert torch.equal(one.corrected.mean, two.corrected.mean)
    assert torch.equal(one.is_novel, two.is_novel)
    assert again.nbytes == small.nbytes
    assert again.origin.compressed == small.origin.compressed != ""


def test_thresholds_and_conformal_intervals_work(whole, held, toy):
    model = compress(whole, validation=held, **EVERYTHING)
    model.threshold(false_alarm=0.05)
    inputs, targets = toy(300, seed=13)
    lower, upper = model.conformal((inputs, targets), level=0.9).interval(held[0])
    assert float(((lower <= held[1]) & (held[1] <= upper)).double().mean()) > 0.8


def test_the_threshold_is_fitted_anew_with_validation_rows_and_gone_without(fit_case, held):
    model = fit_case(validation=held)
    model.threshold(false_alarm=0.05)
    again = compress(model, rows=10, validation=held)
    assert float(again.alarm.threshold) > float(model.alarm.threshold)
    assert float(again.alarm.false_alarm) == 0.05
    assert compress(model, rows=10).alarm is None


@pytest.mark.parametrize("outputs", ["separate", "pseudo"])
def test_every_way_to_mix_outputs_is_served(fit_case, held, strange, outputs):
    model = fit_case(outputs=outputs, validation=held)
    before, after = answers(model, strange), answers(compress(model, rows=9, rank=4), strange)
    assert bool((after.novelty >= before.novelty - 1e-10).all())
    small = compress(model, validation=held, **EVERYTHING)
    assert bool(torch.isfinite(small.predict(strange).variance).all())


def test_a_single_expert_has_no_gate_to_compress(fit_case, held, strange):
    small = compress(fit_case(num_experts=1, validation=held), validation=held, **EVERYTHING)
    assert small.mixtures[0].gate.projection is None
    assert bool(torch.isfinite(small.predict(strange).variance).all())


def test_classifiers_are_compressed_and_keep_their_classes(tmp_path):
    case = blobs()
    model = fit_blobs(case)
    small = compress(model, rows=15, rank=8, dtype="float16", gate=40, validation=case.validation)
    assert small.nbytes < model.nbytes / 2
    before, after = model.predict(case.test[0]), small.predict(case.test[0])
    assert torch.equal(before.classes, after.classes)
    small.save(tmp_path / "small.trustgp")
    again = trustgp.load(tmp_path / "small.trustgp", case.network)
    assert torch.equal(again.predict(case.test[0]).probabilities, after.probabilities)


def test_an_expert_that_failed_still_answers_with_the_prior(whole, strange):
    model = copy.copy(whole)
    (mixture,) = whole.mixtures
    first = replace(mixture.experts[0], posterior=PriorPosterior(torch.empty(0, 2).double()))
    mixtures = (replace(mixture, experts=(first, *mixture.experts[1:])),)
    model.state = replace(whole.state, mixtures=mixtures)
    small = compress(model, **EVERYTHING)
    assert small.failed == [(0, 0)]
    mine = answers(small, strange)
    assert bool((mine.novelty[mine.expert[:, 0] == 0] == 1).all())


def test_new_rows_are_refused_with_what_to_do(whole, held, toy):
    small = compress(whole, rows=12, validation=held)
    with pytest.raises(ValueError, match=r"compressed \(rows=12\).*update the model that it was made from"):
        small.update(toy(5, seed=3))
    with pytest.raises(ValueError, match="compressed before"):
        compress(small, rank=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing to compress"),
        ({"rows": 0}, "rows=0; a whole number of at least 1"),
        ({"rank": 2.5}, "rank=2.5; a whole number"),
        ({"gate": True}, "gate=True"),
        ({"witness": -1}, "witness=-1; a whole number of at least 0"),
        ({"dtype": "bfloat16"}, "dtype='bfloat16'; allowed are \"float16\""),
    ],
)
def test_nonsense_is_refused_with_what_is_allowed(whole, options, message):
    with pytest.raises(ValueError, match=message):
        compress(whole, **options)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mixture.0.experts.ranks", lambda t: t + 50, "beyond the number of rows"),
        ("mixture.0.experts.root", lambda t: t.half(), "neither float64 nor float32"),
        ("mixture.0.experts.features.scales", lambda t: -t, "do not describe factors"),
        ("mixture.0.experts.features.layers", lambda t: t + 9, "do not describe factors"),
        ("mixture.0.experts.features.half.0", lambda t: t[:, :1].contiguous(), "some are missing or cut"),
        ("mixture.0.experts.features.half.1", lambda t: t.float(), "float32, not torch.float16"),
        ("mixture.0.gate.features.half.2", None, "is missing"),
        ("witness.ranks", lambda t: t - 99, "beyond the number of rows"),
    ],
)
def test_a_forged_file_is_refused_by_the_tensors_name(whole, case, tmp_path, name, change, message):
    path = tmp_path / "small.trustgp"
    compress(whole, **EVERYTHING).save(path)
    text, table = read(path, kind="trustgp-model")
    tensors = {key: table[key] for key in table}
    value = tensors.pop(name)
    if change is not None:
        tensors[name] = change(value)
    write(path, kind="trustgp-model", text=text, tensors=tensors)
    with pytest.raises(ArtifactError, match=message):
        trustgp.load(path, case.network)
