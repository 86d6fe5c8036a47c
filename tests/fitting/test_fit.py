import copy
import os
from dataclasses import replace

import gpytorch
import pytest
import torch
from reference import dense_gram, dense_jacobian, dense_rows, mass_between_by_loops, relative_sizes
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from zoo import Net

import trustgp
from trustgp import Division, JacobianRows, LayerFactors, Patchwork, Witness
from trustgp.experts import expert as experts
from trustgp.fitting import solve as solving
from trustgp.likelihoods import Regression
from trustgp.math.held_out import CalibrationRows
from trustgp.state.latent import predict_latent


class LinearGP(gpytorch.models.ExactGP):
    def __init__(self, features, residual, likelihood):
        super().__init__(features, residual, likelihood)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.LinearKernel()

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def by_gpytorch(features, residual, scale, noise, test):
    constraint = gpytorch.constraints.GreaterThan(1e-12)
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=constraint)
    theirs = LinearGP(features, residual, likelihood).double()
    theirs.covar_module.variance, likelihood.noise = scale, noise
    theirs.eval()
    exact = gpytorch.settings.fast_computations(False, False, False)
    with torch.no_grad(), exact, gpytorch.settings.fast_pred_var(False):
        answer = theirs(test)
    return answer.mean, answer.variance


def by_sklearn(features, residual, scale, noise, test):
    kernel = ConstantKernel(scale, "fixed") * DotProduct(0.0, "fixed")
    theirs = GaussianProcessRegressor(kernel, alpha=noise, optimizer=None)
    theirs.fit(features.numpy(), residual.numpy())
    mean, std = theirs.predict(test.numpy(), return_std=True)
    return torch.from_numpy(mean), torch.from_numpy(std).square()


@pytest.mark.parametrize("tangents", [LayerFactors(), JacobianRows()])
def test_one_expert_equals_sklearn_and_gpytorch(case, toy, fit_experts, tangents):
    model = fit_experts(num_experts=1, tangents=tangents, budget="none")
    own, _, left_out, corrected = model.calibrations  # whether it is better or not
    model.state = replace(model.state, calibrations=(own, corrected, left_out, corrected))
    (expert,) = model.mixtures[0].experts
    test = toy(25, seed=3)[0]
    jacobian, test_jacobian = (dense_jacobian(case.network, rows) for rows in (case.inputs, test))
    features, new = (dense_rows(one, model.mixtures[0].tangents.mix) for one in (jacobian, test_jacobian))
    typical, p = relative_sizes(jacobian).mean(dim=0), model.predict(test)
    residual = case.targets - case.network(case.inputs).detach()
    shifts, weight = predict_latent(model.state, test, p.mean).residual_mean, model.calibrations[1].weight
    torch.testing.assert_close(p.corrected.mean - p.mean, weight * shifts, rtol=1e-8, atol=1e-12)
    # All invert K + tau I, whose condition is up to 1e8: digits beyond 1e-7 are not there to compare.
    # GPyTorch also passes scale and noise through a softplus and back.
    for oracle, output, rtol in ((by_sklearn, 0, 1e-6), (by_sklearn, 1, 1e-6), (by_gpytorch, 0, 1e-5)):
        scale, noise = float((expert.scale * typical)[output]), float(expert.noise[output])
        mean, variance = oracle(features, residual[:, output], scale, noise, new)
        torch.testing.assert_close(shifts[:, output], mean, rtol=rtol, atol=rtol / 10)
        amplitude = relative_sizes(test_jacobian)[:, output] / typical[output]
        ours = p.plain.epistemic[:, output]
        torch.testing.assert_close(ours, amplitude * variance, rtol=10 * rtol, atol=1e-8)


def test_the_bound_is_the_dense_one(case, fitted):
    gram = dense_gram(dense_jacobian(case.network, case.inputs), fitted.mixtures[0].tangents.mix)
    labels = fitted.predict(case.inputs).expert
    assert float(fitted.bound) == pytest.approx(mass_between_by_loops(gram, labels), rel=1e-10)


@pytest.mark.parametrize(
    ("outputs", "dtype"), [("shared", torch.float32), ("separate", torch.float64), ("pseudo", torch.float32)]
)
def test_the_mean_is_the_networks_output_to_the_bit(case, fit_experts, outputs, dtype):
    network = copy.deepcopy(case.network).to(dtype)
    inputs, targets = case.inputs.to(dtype), case.targets.to(dtype)
    p = fit_experts(network=network, train=(inputs, targets), outputs=outputs).predict(inputs[:50])
    assert torch.equal(p.mean, network(inputs[:50]))
    for name in ("variance", "std", "epistemic", "aleatoric", "excess"):
        assert getattr(p, name).shape == (50, 2)
        assert getattr(p, name).dtype == dtype
        assert bool((getattr(p, name) >= 0).all())
    assert bool((p.variance > 0).all())


def wrapped(network, before=lambda inputs: inputs, after=lambda outputs: outputs):
    """A network behind a function of its inputs, or before one of its outputs."""
    return Net(lambda net, *args, **named: after(net.network(before(*args, **named))), network=network)


def test_a_network_with_outputs_n_gives_everything_in_shape_n(case, fit_experts):
    network = wrapped(case.network, after=lambda outputs: outputs[:, 0])
    for targets in (case.targets[:, :1], case.targets[:, 0]):
        p = fit_experts(network=network, train=(case.inputs, targets)).predict(case.inputs[:7])
        for value in (p.mean, p.variance, p.novelty, p.expert, p.valid, p.corrected.mean, p.interval()[0]):
            assert value.shape == (7,)
        assert torch.equal(p.mean, network(case.inputs[:7]))


def test_nothing_of_the_users_is_modified_and_later_changes_do_not_reach_the_model(case, toy):
    network = copy.deepcopy(case.network)
    network[0].bias.requires_grad_(False)
    network(case.inputs[:3]).sum().backward()
    called = []
    handle = network[2].register_forward_hook(lambda *_: called.append(1) and None)
    inputs, targets, held = case.inputs.clone().requires_grad_(True), case.targets.clone(), toy(20, seed=7)
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    everything = [inputs, targets, *held, *network.parameters(), *network.buffers(), *gradients]
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=32)
    values = [t.detach().clone() for t in everything]

    def described():
        parameters = {name: (id(p), p.requires_grad, p.grad) for name, p in network.named_parameters()}
        modules = {
            name: (m.training, list(m._forward_hooks), list(m._forward_pre_hooks), list(m._backward_hooks))
            for name, m in network.named_modules()
        }
        loading = (loader.batch_size, loader.sampler, loader.dataset)
        return [t._version for t in everything], parameters, modules, loading

    before = described()
    model = trustgp.fit(network, loader, validation=held, num_experts=3, progress=False)
    model.predict(held[0])
    model.update(held, progress=False)
    assert described() == before
    assert all(torch.equal(t, v) for t, v in zip(everything, values, strict=True))
    assert list(network[2]._forward_hooks) == [handle.id]
    assert (inputs.grad, inputs.requires_grad) == (None, True)
    one = model.predict(held[0])
    with torch.no_grad():
        network[0].weight.zero_()
    other = model.predict(held[0])
    assert torch.equal(one.mean, other.mean)
    assert torch.equal(one.variance, other.variance)


class Named(Dataset):
    def __init__(self, case, targets=True):
        self.case, self.targets = case, targets

    def __len__(self):
        return len(self.case.inputs)

    def __getitem__(self, i):
        inputs = {"a": self.case.inputs[i, :1], "b": self.case.inputs[i, 1:]}
        return (inputs, self.case.targets[i]) if self.targets else inputs


def test_tuples_and_dicts_of_inputs_give_the_same_error_bar(case, fit_experts):
    network = wrapped(case.network, before=lambda a, b: torch.cat([a, b], dim=1))
    a, b = case.inputs[:, :1], case.inputs[:, 1:]
    expected = fit_experts().predict(case.inputs)
    pair = fit_experts(network=network, train=((a, b), case.targets))
    named = fit_experts(network=network, train=({"a": a, "b": b}, case.targets))
    answers = [
        pair.predict((a, b)),
        pair.predict(((a, b), case.targets)),
        named.predict({"b": b, "a": a}),
        named.predict(DataLoader(Named(case), batch_size=160)),
        named.predict(Named(case, targets=False)),
        fit_experts(network=network, train=Named(case)).predict({"a": a, "b": b}),
    ]
    for p in answers:
        assert torch.equal(p.mean, expected.mean)
        torch.testing.assert_close(p.variance, expected.variance, rtol=1e-10, atol=0)


class Stop(torch.autograd.Function):
    """An operation that has no gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients):
        raise NotImplementedError("no gradient here")


def infinite(network):
    with torch.no_grad():
        network[4].bias[0] = torch.inf
    return network


BAD_NETWORKS = [
    (lambda n: nn.Sequential(n[0], nn.Dropout(0.1), *n[1:]).train(), r"call network.eval\(\)"),
    (lambda n: nn.Sequential(n[0], nn.BatchNorm1d(8), *n[1:]).double().train(), r"call network.eval\(\)"),
    (lambda n: wrapped(n, before=lambda x: x - x.mean(dim=0)), "depends on the other rows"),
    (lambda n: wrapped(nn.Tanh(), after=lambda outputs: outputs[:, :2]), "pass it as a function"),
    (lambda n: wrapped(n, after=lambda y: {"torque": y}), r"o\[key\], one of \['torque'\]"),
    (infinite, "NaN or infinite"),
    (lambda n: wrapped(n, after=Stop.apply), r"cannot be differentiated \(no gradient here"),
]


@pytest.mark.parametrize(("change", "message"), BAD_NETWORKS)
def test_a_network_that_cannot_be_used_is_refused(case, fit_experts, change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        fit_experts(network=change(copy.deepcopy(case.network)))


def test_a_network_that_is_frozen_whole_has_the_error_bar_of_a_trainable_one(case, fitted, fit_case):
    network = copy.deepcopy(case.network).requires_grad_(False)
    frozen = fit_case(network=network)
    assert torch.equal(frozen.predict(case.inputs).variance, fitted.predict(case.inputs).variance)
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_layer_factors_are_chosen_where_they_are_exact_else_gradient_rows(case, fitted, fit_experts):
    assert fit_experts(budget="none").origin.tangents == LayerFactors()
    assert fitted.origin.tangents == JacobianRows()  # a light model's, where a row has few gradients
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 6), nn.GroupNorm(2, 6), nn.Linear(6, 2)).double().eval()
    model = fit_experts(network=network, budget="none")
    assert isinstance(model.origin.tangents, JacobianRows)
    assert bool((model.predict(case.inputs).variance > 0).all())


def test_validation_rows_and_groups_change_the_calibration_and_nothing_else(
    fit_case, fitted, toy, state_of, assert_same_state
):
    groups = torch.arange(160) // 20
    grouped = fit_case(groups=groups)
    validated = fit_case(validation=toy(60, seed=8))
    before = state_of(fitted)
    different = {}
    for name, model in (("groups", grouped), ("validation", validated)):
        state = state_of(model)
        different[name] = {key[:14] for key in state if not torch.equal(state[key], before[key])}
    assert different["groups"]
    assert all(name.startswith("calibration.") for name in different["groups"])
    # what left-out training rows had, 2 and 3, stays beside
    assert different["validation"] == {"calibration.0.", "calibration.1."}
    assert len(validated.held_scores) == 60
    assert_same_state(fit_case(groups=(groups * 7.5 - 3).tolist()), grouped)  # any numbers


@pytest.mark.parametrize(
    ("outputs", "groups"), [("shared", None), ("separate", torch.arange(160) // 20)], ids=["rows", "groups"]
)
def test_without_validation_rows_left_out_training_rows_calibrate(fit_experts, case, outputs, groups):
    model = fit_experts(outputs=outputs, groups=groups)
    parts, training = [], model.memory
    for mixture, solved in zip(model.mixtures, training.solved, strict=True):
        for log_kappa, one in zip(mixture.log_kappa, solved, strict=True):
            own, held_out = one.expert.rows[: int(one.expert.own)], one.held_out
            variance, novelty = held_out.epistemic + held_out.noise, held_out.novelty
            means = [v.log().reshape(len(own), -1).mean(dim=1) for v in (novelty.clamp_min(1e-6), variance)]
            measures = torch.stack(means, dim=1).repeat_interleave(len(mixture.outputs), dim=0)
            target = case.targets[own][:, mixture.outputs].flatten()
            log_kappa = log_kappa.repeat(len(own))
            parts.append(replace(held_out, log_kappa=log_kappa, target=target, measures=measures))
    rows = CalibrationRows.cat(parts)
    assert len(rows) == 320
    expected = Regression().calibrate(rows, model.shape, case.targets, far=training.far)
    for one, other in zip(model.calibrations, expected, strict=True):
        assert all(torch.equal(getattr(one, name), value) for name, value in vars(other).items())
        assert 0 < float(one.weights[0]) != 1.0
        assert float(one.share) == 1 / 320


def test_of_many_rows_some_are_judged(fit_experts, monkeypatch):
    for place in (solving, experts):
        monkeypatch.setattr(place, "MAX_LEAVE_OUT_ROWS", 30)
    model = fit_experts(groups=torch.arange(160) // 4, num_experts=2)
    solved = model.state.training.solved[0]
    assert [len(one.held_out) for one in solved] == [2 * min(30, int(one.expert.own)) for one in solved]
    assert len(model.held_scores) == sum(min(30, int(one.expert.own)) for one in solved)
    assert bool(torch.isfinite(model.calibrations[0].bias).all())


def trajectory(n=120):
    steps = torch.linspace(0, 10, n, dtype=torch.float64)
    inputs = torch.stack([steps.sin(), (1.3 * steps).cos(), (0.7 * steps).sin()], dim=1)
    return inputs, torch.stack([inputs[:, 0] + inputs[:, 1], inputs[:, 2]], dim=1)


@pytest.mark.filterwarnings("error")
def test_a_time_series_without_groups_or_validation_is_warned_about(fit_experts, toy):
    fit_experts(train=trajectory(), groups=torch.arange(120) // 20)
    fit_experts(train=trajectory(), validation=toy(20, seed=1))
    fit_experts(train=DataLoader(TensorDataset(*trajectory()), shuffle=True, batch_size=32))
    with pytest.warns(UserWarning, match="time series.*groups=.*validation="):
        fit_experts(train=trajectory())


BUDGETED = [
    {"witness": Witness()},
    {"outputs": "separate", "division": Division(components=2, subset=64)},
    {"tangents": JacobianRows(keep=40, keep_per_expert=10), "patchwork": Patchwork(neighbours=0)},
]


@pytest.mark.parametrize("options", BUDGETED, ids=str)
def test_the_budget_is_respected_in_memory_and_on_disk(case, fit_experts, tmp_path, options):
    with pytest.raises(ValueError, match="the smallest that works is") as caught:
        fit_experts(budget=1000, **options)
    smallest = int(str(caught.value).split("works is ")[1].split(" bytes")[0])
    directions = []
    for budget in (smallest, 8 * smallest):
        model = fit_experts(budget=budget, **options)
        assert model.nbytes <= budget
        model.save(tmp_path / "model.trustgp")
        assert os.path.getsize(tmp_path / "model.trustgp") <= budget
        assert bool(torch.isfinite(model.predict(case.inputs).variance).all())
        directions.append(sum(e.posterior.directions for m in model.mixtures for e in m.experts))
    assert directions[0] < directions[1] or "tangents" in options  # which has ten columns at most
    with pytest.raises(ValueError, match="too small"):
        fit_experts(budget=smallest - 1, **options)
