"""Promise 10: degenerate data give finite variances within 5 % of a float64 oracle, never cut silently."""

import copy
import warnings
from typing import NamedTuple

import numpy as np
import pytest
import torch
from pairwise import every_pair
from reference import dense_jacobian, dense_rows, leave_out
from reliability.helpers import OUTPUTS, mlp, quiet_fit, rows, seeded, train
from torch import Tensor, nn
from witness_reference import witness_level, witness_opinion

import trustgp
from trustgp.data.rows import Rows, distinct_rows
from trustgp.experts import posteriors
from trustgp.experts import system as equations
from trustgp.experts.whole import RIDGE
from trustgp.math.evidence import LOWEST, maximise_evidence

FACTORS, ROWS = trustgp.LayerFactors(), trustgp.JacobianRows()
both_kinds = pytest.mark.parametrize("tangents", [FACTORS, ROWS], ids=["factors", "rows"])
PRECISIONS, WITNESSES = [torch.float32, torch.float64], [trustgp.Witness(), None]
N = 50  # with fewer rows there is no witness


# -- the oracle: dense Jacobians by a loop, everything in float64 -------------------------------------


def unit_variance(phi: Tensor, at: Tensor, tau: float) -> Tensor:
    """Sum of squares over the singular vectors of the expert's rows, shape [n]."""
    _, singular, right = torch.linalg.svd(phi, full_matrices=False)
    inside = at @ right.T
    outside = at - inside @ right
    return outside.square().sum(1) + (tau / (singular.square() + tau) * inside.square()).sum(1)


def amplitudes(dense: Tensor) -> Tensor:
    """Of outputs that share a kernel: |J_c|^2 over its mean, never below a hundredth, shape [n, C]."""
    sizes = dense.square().sum(dim=2)
    mean = sizes.mean(dim=1, keepdim=True)
    return torch.where(mean > 0, sizes / mean, 1.0).clamp_min(0.01)


class Parameters(NamedTuple):
    """Of one expert, found anew: the model is asked which rows it holds, and for a tau to be judged."""

    tau: float
    scale: Tensor  # s over the mean amplitude [B]
    noise: Tensor  # tau s [B]
    kappa: Tensor  # leave-one-out scale [B]


def parameters(expert, phi: Tensor, amplitude: Tensor, targets: Tensor, residual: Tensor) -> Parameters:
    """From the gradients [m, d] of its rows, amplitudes [m, B], pseudo-targets and residuals [m, B]: s in
    closed form, kappa by really leaving each row out; the evidence of tau is the highest there is."""
    gram, m = phi @ phi.T, len(phi)
    values, vectors = torch.linalg.eigh(gram)
    values, energy = values.clamp_min(0.0), (vectors.T @ targets).square()
    level = float(gram.diagonal().mean()) or 1.0

    def scales(tau: float) -> Tensor:
        scale = (energy / (values + tau)[:, None]).mean(dim=0)
        return torch.maximum(scale, 1e-12 * scale.mean() + torch.finfo(torch.float64).tiny)

    def evidence(tau: float) -> float:
        determinant = targets.shape[1] * float((values + tau).log().sum())
        return -0.5 * (m * float(scales(tau).log().sum()) + determinant)

    typical = amplitude.mean(dim=0)
    tau = float(expert.noise[0] / (expert.scale * typical)[0]) + float(expert.jitter)
    best = max(evidence(level * 10.0**power) for power in np.linspace(-8, 2, 101))
    assert evidence(tau) >= best - 0.1 * targets.shape[1], f"{best - evidence(tau):.2f} nats below the best"
    scale = scales(tau) / typical
    errors, variances = leave_out(gram, residual, torch.arange(m), tau)
    spread = (variances - tau).clamp_min(0.0)[:, None] * amplitude * scale + tau * scales(tau)
    kappa = (errors.square() / spread)[: int(expert.own)].mean(dim=0).clamp_min(1e-6)
    return Parameters(tau, scale, tau * scales(tau), kappa)


def witness_prediction(model, at: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean, precision, noise and novelty measures of the witness, a row at a time; how sure it is comes from
    rows really left out."""
    state = model.witness
    table = {name: getattr(state, name) for name in type(state).__dataclass_fields__}
    level, novelties = witness_level(table)
    _assert_within(state.level, level)
    reach = max(novelties[min(len(novelties) - 1, int(0.95 * len(novelties)))], 1e-6)
    assert float(state.reach) == pytest.approx(reach, rel=0.05, abs=1e-7)
    mean, _, novelty, precision, distance, noise = witness_opinion(table | {"level": level}, at.double())
    measures = torch.stack([novelty.clamp_min(1e-12).log(), distance.clamp_min(1e-12).log()], dim=1)
    return mean, precision, noise.clamp_min(1e-300).log(), measures


def oracle(
    model, network: nn.Module, x: Tensor, y: Tensor, at: Tensor, experts: Tensor, dense: Tensor, asked: Tensor
) -> dict[str, Tensor]:
    """Variance, and epistemic part and noise before calibration, at some rows. Which rows an expert holds,
    and which of them answers, is the model's choice; tau is judged, and all else found anew. `dense` and
    `asked`: Jacobians [n, C, P] of the training rows and of those at which it is asked."""
    double = copy.deepcopy(network).double()
    theta = torch.cat([value.detach().flatten() for value in double.parameters()])
    with torch.no_grad():
        residual = y.double().reshape(len(y), -1) - double(x.double()).reshape(len(x), -1)
        outputs = double(at.double()).reshape(len(at), -1)
    variance = torch.zeros(len(at), residual.shape[1], dtype=torch.float64)
    epistemic, noise = torch.zeros_like(variance), torch.zeros_like(variance)
    c, (second, precision, nearby) = model.calibrations[0], (outputs, *[torch.zeros_like(variance)] * 2)
    measures = None
    if model.witness is not None:
        second, precision, nearby, measures = witness_prediction(model, at)
    parts, shares, leverage = [], torch.zeros_like(variance), torch.zeros_like(variance)
    if model.mixtures[0].whole is not None:
        leverage = log_leverage(dense, residual, asked)
    for k, mixture in enumerate(model.mixtures):
        phi, phi_at = (dense_rows(jacobian, mixture.tangents.mix) for jacobian in (dense, asked))
        shared = len(mixture.tangents.mix) > 1
        amplitude, amplitude_at = (
            amplitudes(j) if shared else torch.ones(len(j), len(mixture.outputs)).double()
            for j in (dense, asked)
        )
        served = residual[:, mixture.outputs]
        training = (phi, amplitude, (dense @ theta)[:, mixture.outputs] + served, served)
        solved = [parameters(e, *(values[e.rows] for values in training)) for e in mixture.experts]
        log_kappa = steadied([one.kappa for one in solved], [int(e.own) for e in mixture.experts])
        chosen = experts.reshape(len(at), -1)[:, k]
        for index in chosen.unique().tolist():
            rows_of, asking = mixture.experts[index].rows, (chosen == index).nonzero().flatten()
            own, there, solution = phi[rows_of], phi_at[asking], solved[index]
            unit = unit_variance(own, there, solution.tau)[:, None]
            prior = there.square().sum(1, keepdim=True)
            novelty = torch.where(prior > 0, unit / prior, 1.0)
            system = own @ own.T + solution.tau * torch.eye(len(own), dtype=torch.float64)
            shift = there @ own.T @ torch.linalg.solve(system, served[rows_of])
            place = (asking[:, None], mixture.outputs[None])
            epistemic[place] = unit * amplitude_at[asking] * solution.scale
            noise[place] = solution.noise.expand_as(shift)
            raw = epistemic[place] + solution.noise
            shares[place] = novelty.expand_as(raw)
            parts.append((place, raw, log_kappa[index], mixture.outputs, shift))
    if measures is None:
        each = (shares.mean(dim=1).clamp_min(1e-6), (epistemic + noise).log().mean(dim=1).exp())
        measures = torch.stack(each, dim=1).log()
    for place, raw, kappa, served, shift in parts:
        logs = {"log_noise": nearby[place], "log_leverage": leverage[place]}
        scaled = calibrated(c, raw, kappa, served, measures[place[0][:, 0]], **logs)
        # with the witness: means weighted by precision, and so are the precisions
        gain = c.trust[served] * precision[place] * scaled
        expected = (c.weight * shift + gain * (second - outputs)[place]) / (1 + gain)
        variance[place] = scaled * (1 + gain) / (1 + gain**2) + c.excess * expected.square()
    if len(y) > 1:  # half a row in n may be off by a full spread
        variance += y.double().var(dim=0) / (2 * len(y))
    return {"variance": variance, "epistemic": epistemic, "noise": noise}


def steadied(kappas: list[Tensor], own: list[int]) -> list[Tensor]:
    """log kappa of each expert, pulled towards the mean as if that came with twenty rows."""
    mean = sum(n * kappa.log() for n, kappa in zip(own, kappas, strict=True)) / sum(own)
    return [(n * kappa.log() + 20 * mean) / (n + 20) for n, kappa in zip(own, kappas, strict=True)]


def tail_exponents(table: Tensor, measures: Tensor) -> Tensor:
    """D: minus the logarithm of the tail share, linear between quantiles, mean over the measures."""
    quantiles, slopes, heights = table.numpy()
    total = np.zeros(len(measures))
    for k, column in enumerate(measures.T.numpy()):
        for q, slope, height in zip(quantiles[k], slopes[k], heights[k], strict=True):
            total += np.clip((column - q) * slope, 0.0, height)
    return torch.from_numpy(total / measures.shape[1])


def log_leverage(dense: Tensor, residual: Tensor, asked: Tensor, *, left_out: bool = False) -> Tensor:
    """That of the posterior of all rows over its mean, from Jacobians [n, C, P], by a dense inverse."""
    noise = residual.square().mean(dim=0)
    units = torch.where(noise > 0, noise, 1.0).rsqrt() * (noise > 0)
    rows, new = (dense * units[:, None]).flatten(0, 1), asked * units[:, None]
    total = rows.T @ rows
    ridge = RIDGE * torch.linalg.eigvalsh(total)[-1] * torch.eye(len(total), dtype=torch.float64)
    inverse = torch.linalg.inv(total + ridge)
    typical = (inverse * total).sum() / (len(dense) * (noise > 0).sum())
    h = torch.einsum("kcd,de,kce->kc", new, inverse, new)
    h = h.clamp_max(0.99) / (1 - h.clamp_max(0.99)) if left_out else h
    return (h / typical).clamp_min(1e-3).log()


def calibrated(c, raw: Tensor, log_kappa, outputs: Tensor, measures: Tensor, **logs) -> Tensor:
    """V of E [n, B], written out."""
    near = 1 / (1 + 0.005 * tail_exponents(c.tails, measures).clamp_max(60.0).exp())[:, None]
    zero = torch.zeros_like(raw)
    others = [logs.get(name, zero) for name in ("log_leverage", "log_noise", "log_stated")]
    statistics = [raw.log() + log_kappa, *others]
    pool = c.bias[outputs] + sum(w * z for w, z in zip(c.weights, statistics, strict=True))
    return torch.exp(near * pool + (1 - near) * (raw.log() + c.growth))


def check(network: nn.Module, x: Tensor, y: Tensor, **options) -> trustgp.UncertaintyModel:
    """Fit, predict on and off the data, compare with the oracle. A warning of ours is an error, but one."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(9)).to(x)
    off = x + 0.3 * x.abs().max() * noise
    at = torch.cat([x[:12], off[:12], 10 * x[:3]])
    gradients = dense_jacobian(network, x), dense_jacobian(network, at)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=UserWarning)
        warnings.filterwarnings("ignore", message="The network overfits")
        warnings.filterwarnings("ignore", message="there are only")  # so few rows are the point here
        model = quiet_fit(network, (x, y), **options)
        prediction = model.predict(at)
    assert model.failed == []
    assert not any(float(expert.jitter) for mixture in model.mixtures for expert in mixture.experts)
    for one in (prediction, prediction.corrected, prediction.plain):
        for name in ("mean", "epistemic", "aleatoric", "excess", "variance", "std", "novelty"):
            assert bool(torch.isfinite(getattr(one, name)).all()), name
        assert bool((one.epistemic >= 0).all())
        assert bool((one.variance > 0).all())
    new = distinct_rows(Rows(x, y))  # rows that repeat others count once
    given = x[new], y[new], at, prediction.expert, gradients[0][new], gradients[1]
    truth = oracle(model, network, *given)
    shape = prediction.variance.shape
    assert torch.equal(prediction.mean, network(at))
    least = torch.finfo(prediction.variance.dtype).tiny
    _assert_within(prediction.variance, truth["variance"].reshape(shape).clamp_min(least))
    total = prediction.plain.epistemic.double() + prediction.plain.aleatoric.double()
    _assert_within(total, (truth["epistemic"] + truth["noise"]).reshape(shape).clamp_min(least))
    return model


def _assert_within(values: Tensor, expected: Tensor, share: float = 0.05) -> None:
    error = (values.double() / expected - 1.0).abs().max()
    assert float(error) <= share, f"off by {100 * float(error):.1f} %"


# -- the cases ----------------------------------------------------------------------------------------


def repeated(times, n, seed=None, dtype=torch.float64):
    """n rows several times; with a seed, each time with other targets."""
    x, y = rows(n, dtype=dtype)
    y = y.repeat(times, 1) if seed is None else rows(times * n, dtype=dtype, seed=seed)[1]
    return x.repeat(times, 1), y


def resized(dtype, inputs=1.0, targets=1.0):
    """A network with its inputs and targets in other units."""
    x, y = rows(N, dtype=dtype)
    network = train(mlp(2, 6, 2, dtype=dtype), x, y)
    with torch.no_grad():
        network[0].weight /= inputs
        network[2].weight *= targets
        network[2].bias *= targets
    return network, inputs * x, targets * y


def without_width(dtype):
    """An input that is always zero and a copied input: columns of zeros, and equal columns."""
    x, y = rows(N, inputs=4, dtype=dtype)
    x[:, 2], x[:, 3] = 0.0, x[:, 0]
    return train(mlp(4, 6, 2, dtype=dtype), x, y), x, y


def low_rank(dtype, bias):
    """A linear network of one input: gradients are multiples of (x), or lie in the plane of (x, 1)."""
    x, _ = rows(40, inputs=1, outputs=1, dtype=dtype)
    y = 2 * x + 0.1 * rows(40, outputs=1, dtype=dtype, seed=2)[1]
    return train(seeded(nn.Linear(1, 1, bias=bias), 0).to(dtype), x, y), x, y


def zero_output(dtype):
    """The second output and its targets are exactly zero: no residual, and no gradient towards a scale."""
    x, y = rows(N, dtype=dtype)
    y[:, 1] = 0.0
    network = train(mlp(2, 6, 2, dtype=dtype), x, y)
    with torch.no_grad():
        network[2].weight[1] = 0.0
        network[2].bias[1] = 0.0
    return network, x, y


THREE = {"num_experts": 3}
# Rows, or a network and rows; and options. Networks that are not given are trained.
CASES = {
    "duplicates": (lambda d: repeated(3, 20, dtype=d), THREE),
    "duplicates with other targets": (lambda d: repeated(3, 20, 3, dtype=d), THREE),
    "all rows the same": (lambda d: repeated(30, 1, 0, dtype=d), {}),
    "a direction without width": (without_width, THREE),
    "more rows than parameters": (
        lambda d: (train(mlp(2, 2, 2, dtype=d), *rows(150, dtype=d)), *rows(150, dtype=d)),
        {"num_experts": 2},
    ),
    "an expert for every row": (lambda d: rows(12, dtype=d), {"num_experts": 12}),
    **{f"rank of one, bias {b}": (lambda d, b=b: low_rank(d, b), {"num_experts": 2}) for b in (False, True)},
    **{f"inputs x {s}": (lambda d, s=s: resized(d, inputs=s), THREE) for s in (1e6, 1e-6)},
}
PER_MODE = {
    "constant 0": lambda d: (rows(N, dtype=d)[0], torch.zeros(N, 2, dtype=d)),
    "constant 3": lambda d: (rows(N, dtype=d)[0], torch.full((N, 2), 3.0, dtype=d)),
    "a zero output": zero_output,
    "targets x 1e8": lambda d: resized(d, targets=1e8),
    "targets x 1e-8": lambda d: resized(d, targets=1e-8),
}


def check_case(made, dtype, **options):
    network, x, y = made if len(made) == 3 else (train(mlp(2, 6, 2, dtype=dtype), *made), *made)
    return check(network, x, y, **options)


def half_nightly(pairs):
    """Every other one, each way as often."""
    marks = [pytest.mark.nightly], []
    return [pytest.param(*pair, marks=marks[(i + pair[-1]) % 2]) for i, pair in enumerate(pairs)]


@pytest.mark.parametrize(("name", "way"), half_nightly((name, way) for way in (0, 1) for name in CASES))
def test_degenerate_rows_agree_with_the_oracle(name, way):
    """Either precision, with the other kind of features, with and without a witness."""
    made, options = CASES[name]
    options = {"tangents": (FACTORS, ROWS)[way], "witness": WITNESSES[way], **options}
    check_case(made(PRECISIONS[way]), PRECISIONS[way], **options)


@pytest.mark.parametrize(("name", "mode", "way"), half_nightly(every_pair([*PER_MODE], OUTPUTS, [0, 1])))
def test_degenerate_targets_agree_with_the_oracle_for_each_kind_of_outputs(name, mode, way):
    dtype, tangents, witness = PRECISIONS[way], (ROWS, FACTORS)[way], WITNESSES[way]
    check_case(PER_MODE[name](dtype), dtype, tangents=tangents, outputs=mode, witness=witness, num_experts=3)


@both_kinds
def test_experts_of_one_row_and_no_empty_ones(tangents, tmp_path):
    model = check(mlp(2, 6, 2), *rows(1), tangents=tangents)
    assert [len(expert.rows) for expert in model.mixtures[0].experts] == [1]
    x, y = rows(40)
    x[7] = torch.tensor([40.0, -40.0])
    network = seeded(nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 2)), 0).double().eval()
    model = check(network, x, y, tangents=tangents, num_experts=2, patchwork=trustgp.Patchwork(neighbours=0))
    assert 1 in [len(expert.rows) for expert in model.mixtures[0].experts]
    # the centred kernel is exactly zero: nothing to divide the rows by
    network = seeded(nn.Linear(2, 1), 0).double()
    zeros = torch.zeros(32, 2, dtype=torch.float64)
    model = check(network, zeros, rows(32, outputs=1)[1], tangents=tangents, num_experts=3)
    model.save(tmp_path / "m")
    assert trustgp.load(tmp_path / "m", network).num_experts == model.num_experts == 1
    # k-means finds at most as many clusters as there are distinct rows; the rest would be empty
    x, y = repeated(6, 4, 3)
    network = train(mlp(2, 6, 2), x, y)
    model = check(network, x, y, tangents=tangents, num_experts=9)
    assert 1 <= model.num_experts <= 4
    assert all(int(expert.own) > 0 for expert in model.mixtures[0].experts)
    model.save(tmp_path / "m")
    trustgp.load(tmp_path / "m", network)


def test_no_gradient_at_all_leaves_the_noise():
    """Zero inputs to a linear network without bias: the kernel is zero, and nothing is known beforehand."""
    network = seeded(nn.Linear(2, 1, bias=False), 0).double()
    x, y = torch.zeros(20, 2, dtype=torch.float64), rows(20, outputs=1)[1]
    prediction = quiet_fit(network, (x, y)).predict(x)
    assert bool((prediction.epistemic == 0).all())
    _assert_within(prediction.variance, y.square().mean().expand(20, 1), 0.2)


# -- clamping and jitter ------------------------------------------------------------------------------


def test_a_negative_variance_is_clamped_with_a_warning(monkeypatch):
    """The warning itself: it names the expert and how many rows."""
    x, y = rows(30)
    model = quiet_fit(train(mlp(2, 6, 2), x, y), (x, y), budget="none")

    def spoiled(prior, cross, factor):
        unit = 0.5 * prior
        unit[:2] = -1e-12
        return unit

    monkeypatch.setattr(posteriors.posterior, "gram_variance", spoiled)
    with pytest.warns(UserWarning, match=r"expert 0: 2 of 10 variances fell below zero"):
        prediction = model.predict(x[:10])
    assert bool((prediction.epistemic[:2] == 0).all())
    assert bool((prediction.variance > 0).all())


def test_jitter_is_recorded_for_each_expert(monkeypatch, tmp_path):
    """Rounding that makes a Gram matrix indefinite costs jitter, and the expert says how much."""
    x, y = rows(60)
    network = train(mlp(2, 2, 2), x, y)
    damaged = []

    def indefinite(gram, targets):
        level = float(gram.diagonal().mean())
        if not damaged and len(gram) > 10:  # the first expert only; what is timed beforehand is smaller
            damaged.append(level)
            gram = gram - 2e-7 * level * torch.eye(len(gram), dtype=gram.dtype)
            targets = gram @ targets  # no noise: tau goes to its lower bound
        return maximise_evidence(gram, targets)

    monkeypatch.setattr(equations, "maximise_evidence", indefinite)
    model = quiet_fit(network, (x, y), num_experts=3, executor=trustgp.Threads(1))
    jitter = [float(expert.jitter) for expert in model.mixtures[0].experts]
    assert 0.9 * LOWEST * damaged[0] < jitter[0] <= 1e-6 * damaged[0]
    assert jitter[1:] == [0.0] * (len(jitter) - 1)
    model.save(tmp_path / "m")
    loaded = trustgp.load(tmp_path / "m", network)
    assert [float(expert.jitter) for expert in loaded.mixtures[0].experts] == jitter
