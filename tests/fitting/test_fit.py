import copy
import os
from dataclasses import replace
from functools import partial

import gpytorch
import pytest
import torch
from reference import (
    dense_gram,
    dense_jacobian,
    dense_rows,
    flat_parameters,
    mass_between_by_loops,
    relative_sizes,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset

import trustgp
from trustgp import Division, JacobianRows, LayerFactors, Patchwork, Threads, Witness
from trustgp.data.rows import Rows
from trustgp.fitting import solve as solving
from trustgp.likelihoods import Regression
from trustgp.math.calibration import CalibrationRows


@pytest.fixture(scope="module")
def fit_case(fit_case):
    """As ever, but without a witness, which takes half of the time, unless a test asks for one."""
    return partial(fit_case, witness=None)


@pytest.fixture(scope="module")
def fitted(fit_case):
    return fit_case()


@pytest.fixture(scope="module")
def witnessed(fit_case):
    return fit_case(witness=Witness())


# Independent oracles: the same GP from other people's code.


def one_expert(case, tangents, output):
    """Dense features, residual, s, noise and mean amplitude of a model with one expert, for one output."""
    options = {"num_experts": 1, "tangents": tangents, "witness": None, "progress": False, "budget": "none"}
    model = trustgp.fit(case.network, (case.inputs, case.targets), **options)
    mixture = model.mixtures[0]
    (expert,) = mixture.experts
    jacobian = dense_jacobian(case.network, case.inputs)
    features, typical = dense_rows(jacobian, mixture.tangents.mix), relative_sizes(jacobian).mean(dim=0)
    with torch.no_grad():
        residual = (case.targets - case.network(case.inputs))[:, output]
    scale, noise = expert.scale * typical, expert.noise
    return model, features, residual, float(scale[output]), float(noise[output]), float(typical[output])


@pytest.mark.parametrize("output", [0, 1])
@pytest.mark.parametrize("tangents", [LayerFactors(), JacobianRows()])
def test_one_expert_equals_sklearn(case, toy, tangents, output):
    model, features, residual, scale, noise, typical = one_expert(case, tangents, output)
    kernel = ConstantKernel(scale, "fixed") * DotProduct(0.0, "fixed")
    theirs = GaussianProcessRegressor(kernel, alpha=noise, optimizer=None)
    theirs.fit(features.numpy(), residual.numpy())
    test = toy(25, seed=3)[0]
    jacobian = dense_jacobian(case.network, test)
    test_features = dense_rows(jacobian, model.mixtures[0].tangents.mix)
    mean, std = (torch.from_numpy(v) for v in theirs.predict(test_features.numpy(), return_std=True))
    p = model.predict(test)
    shift, weight = model.raw(test, p.mean).residual_mean[:, output], model.calibrations[1].weight
    torch.testing.assert_close((p.corrected.mean - p.mean)[:, output], weight * shift, rtol=1e-8, atol=1e-12)
    # Both invert K + tau I, whose condition is up to 1e8: digits beyond 1e-7 are not there to compare.
    torch.testing.assert_close(shift, mean, rtol=1e-6, atol=1e-7)
    amplitude = relative_sizes(jacobian)[:, output] / typical
    torch.testing.assert_close(
        p.plain.epistemic[:, output].sqrt(), amplitude.sqrt() * std, rtol=1e-5, atol=1e-7
    )


class LinearGP(gpytorch.models.ExactGP):
    def __init__(self, features, residual, likelihood):
        super().__init__(features, residual, likelihood)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.LinearKernel()

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


@pytest.mark.parametrize("tangents", [LayerFactors(), JacobianRows()])
def test_one_expert_equals_gpytorch(case, toy, tangents):
    model, features, residual, scale, noise, typical = one_expert(case, tangents, 0)
    likelihood = gpytorch.likelihoods.GaussianLikelihood(
        noise_constraint=gpytorch.constraints.GreaterThan(1e-12)
    )
    theirs = LinearGP(features, residual, likelihood).double()
    theirs.covar_module.variance = scale
    likelihood.noise = noise
    theirs.eval()
    test = toy(25, seed=3)[0]
    jacobian = dense_jacobian(case.network, test)
    test_features = dense_rows(jacobian, model.mixtures[0].tangents.mix)
    exact = gpytorch.settings.fast_computations(False, False, False)
    with torch.no_grad(), exact, gpytorch.settings.fast_pred_var(False):
        answer = theirs(test_features)
    p = model.predict(test)
    # As above; GPyTorch also passes scale and noise through a softplus and back.
    shift = model.raw(test, p.mean).residual_mean[:, 0]
    torch.testing.assert_close(shift, answer.mean, rtol=1e-5, atol=1e-6)
    amplitude = relative_sizes(jacobian)[:, 0] / typical
    torch.testing.assert_close(p.plain.epistemic[:, 0], amplitude * answer.variance, rtol=1e-4, atol=1e-8)


# The network's own output, to the bit.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("outputs", ["shared", "separate", "pseudo"])
def test_the_mean_is_the_networks_output_to_the_bit(case, fit_case, outputs, dtype):
    network = copy.deepcopy(case.network).to(dtype)
    inputs, targets = case.inputs.to(dtype), case.targets.to(dtype)
    model = fit_case(network=network, train=(inputs, targets), outputs=outputs)
    p = model.predict(inputs[:50])
    with torch.no_grad():
        assert torch.equal(p.mean, network(inputs[:50]))
    for name in ("variance", "std", "epistemic", "aleatoric", "excess"):
        assert getattr(p, name).shape == (50, 2)
        assert getattr(p, name).dtype == dtype
        assert bool((getattr(p, name) >= 0).all())
    assert bool((p.variance > 0).all())


class OneNumber(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x)[:, 0]


@pytest.mark.parametrize("column", [False, True])
def test_a_network_with_outputs_n_gives_everything_in_shape_n(case, fit_case, column):
    network = OneNumber(case.network)
    targets = case.targets[:, :1] if column else case.targets[:, 0]
    model = fit_case(network=network, train=(case.inputs, targets))
    p = model.predict(case.inputs[:7])
    for name in ("mean", "variance", "novelty", "expert", "valid"):
        assert getattr(p, name).shape == (7,)
    assert p.corrected.mean.shape == p.interval()[0].shape == (7,)
    with torch.no_grad():
        assert torch.equal(p.mean, network(case.inputs[:7]))


# What the user hands over stays as it was.


def test_nothing_of_the_users_is_modified(case, toy):
    network = copy.deepcopy(case.network)
    network[0].bias.requires_grad_(False)
    called = []
    handle = network[2].register_forward_hook(lambda *_: called.append(1) and None)
    inputs, targets = case.inputs.clone(), case.targets.clone()
    held_inputs, held_targets = toy(20, seed=7)
    everything = [inputs, targets, held_inputs, held_targets, *network.parameters(), *network.buffers()]
    versions = [t._version for t in everything]
    values = [t.detach().clone() for t in everything]
    flags = {name: p.requires_grad for name, p in network.named_parameters()}
    modes = {name: m.training for name, m in network.named_modules()}
    identities = {name: id(p) for name, p in network.named_parameters()}
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=32)
    settings = (loader.batch_size, loader.sampler, loader.dataset)
    model = trustgp.fit(
        network, loader, validation=(held_inputs, held_targets), num_experts=3, progress=False
    )
    model.predict(held_inputs)
    model.update((held_inputs, held_targets), progress=False)
    assert [t._version for t in everything] == versions
    assert all(torch.equal(t, v) for t, v in zip(everything, values, strict=True))
    assert {name: p.requires_grad for name, p in network.named_parameters()} == flags
    assert {name: m.training for name, m in network.named_modules()} == modes
    assert {name: id(p) for name, p in network.named_parameters()} == identities
    assert all(p.grad is None for p in network.parameters())
    assert list(network[2]._forward_hooks) == [handle.id]
    for name, module in network.named_modules():
        assert len(module._forward_hooks) == (name == "2")
        assert not module._forward_pre_hooks
        assert not module._backward_hooks
    assert (loader.batch_size, loader.sampler, loader.dataset) == settings


def test_gradients_the_user_has_are_kept(case, fit_case):
    network = copy.deepcopy(case.network)
    network(case.inputs[:3]).sum().backward()
    before = [p.grad.clone() for p in network.parameters()]
    inputs = case.inputs.clone().requires_grad_(True)
    fit_case(network=network, train=(inputs, case.targets)).predict(inputs[:4])
    assert all(torch.equal(p.grad, g) for p, g in zip(network.parameters(), before, strict=True))
    assert inputs.grad is None
    assert inputs.requires_grad


def test_a_later_change_of_the_network_does_not_reach_the_model(case, fit_case, toy):
    network = copy.deepcopy(case.network)
    model = fit_case(network=network)
    test = toy(5, seed=3)[0]
    before = model.predict(test)
    with torch.no_grad():
        network[0].weight.zero_()
    after = model.predict(test)
    assert torch.equal(before.mean, after.mean)
    assert torch.equal(before.variance, after.variance)


def test_a_network_that_begins_in_place_is_fitted_and_leaves_the_inputs_alone(case):
    network = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)).double().eval()
    inputs = case.inputs.clone()
    model = trustgp.fit(network, (inputs, case.targets), progress=False)
    model.predict(inputs)
    assert torch.equal(inputs, case.inputs)


# Kinds of data.


class Two(nn.Module):
    """Takes (a, b) or a=, b=."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, a, b):
        return self.network(torch.cat([a, b], dim=1))


class Named(Dataset):
    def __init__(self, case, targets=True):
        self.case, self.targets = case, targets

    def __len__(self):
        return len(self.case.inputs)

    def __getitem__(self, i):
        inputs = {"a": self.case.inputs[i, :1], "b": self.case.inputs[i, 1:]}
        return (inputs, self.case.targets[i]) if self.targets else inputs


def test_tensors_datasets_and_loaders_give_the_same_model(
    case, fit_case, fitted, witnessed, assert_same_state
):
    data = TensorDataset(case.inputs, case.targets)
    for train in (
        data,
        [case.inputs, case.targets],
        (case.inputs.numpy(), case.targets.numpy()),
        Rows(case.inputs, case.targets),
    ):
        assert_same_state(fit_case(train=train), fitted)
    assert_same_state(fit_case(train=DataLoader(data, batch_size=7), witness=Witness()), witnessed)


def test_tuples_and_dicts_of_inputs_give_the_same_error_bar(case, fit_case, fitted):
    network = Two(case.network)
    a, b = case.inputs[:, :1], case.inputs[:, 1:]
    expected = fitted.predict(case.inputs)
    pair = fit_case(network=network, train=((a, b), case.targets))
    named = fit_case(network=network, train=({"a": a, "b": b}, case.targets))
    dataset = fit_case(network=network, train=Named(case))
    answers = [
        pair.predict((a, b)),
        pair.predict(((a, b), case.targets)),
        named.predict({"b": b, "a": a}),
        named.predict(DataLoader(Named(case), batch_size=160)),
        named.predict(Named(case, targets=False)),
        dataset.predict({"a": a, "b": b}),
    ]
    for p in answers:
        assert torch.equal(p.mean, expected.mean)
        torch.testing.assert_close(p.variance, expected.variance, rtol=1e-10, atol=0)


def test_a_shuffling_loader_gives_an_aligned_model(case, fit_case):
    loader = DataLoader(
        TensorDataset(case.inputs, case.targets),
        batch_size=16,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
    )
    options = {"num_experts": 1, "budget": "none", "witness": None}  # a witness asks rows drawn at random
    model, straight = fit_case(train=loader, **options), fit_case(**options)
    one, other = model.predict(case.inputs), straight.predict(case.inputs)
    # One expert on all rows: the order of the rows must not matter. tau is found by a search: 1e-6; so is the
    # calibration, which stops sooner.
    torch.testing.assert_close(one.plain.variance, other.plain.variance, rtol=1e-6, atol=0)
    torch.testing.assert_close(one.variance, other.variance, rtol=1e-2, atol=0)
    torch.testing.assert_close(one.corrected.mean, other.corrected.mean, rtol=1e-2, atol=1e-4)


def test_experts_without_neighbours_hold_their_own_rows_only(fit_case):
    model = fit_case(patchwork=Patchwork(neighbours=0))
    experts = model.mixtures[0].experts
    assert all(len(e.rows) == int(e.own) for e in experts)
    assert sorted(torch.cat([e.rows for e in experts]).tolist()) == list(range(160))
    assert all(near == () for near in model.mixtures[0].neighbours)


# What is refused.


def test_more_experts_than_rows_are_refused(fit_case):
    with pytest.raises(ValueError, match="num_experts=161 exceeds the 160 rows"):
        fit_case(num_experts=161)


@pytest.mark.parametrize("labels", [torch.zeros(159), torch.zeros(160, 1)])
def test_groups_of_another_length_are_refused(fit_case, labels):
    with pytest.raises(ValueError, match="160 rows"):
        fit_case(groups=labels)


def shuffling(case, by_batch):
    data = TensorDataset(case.inputs, case.targets)
    if by_batch:
        return DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 16, drop_last=False))
    return DataLoader(data, batch_size=16, shuffle=True)


@pytest.mark.parametrize("by_batch", [False, True])
def test_groups_with_a_shuffling_loader_are_refused(case, fit_case, by_batch):
    with pytest.raises(ValueError, match="shuffle=False"):
        fit_case(train=shuffling(case, by_batch), groups=torch.arange(160) // 10)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (lambda y: y[:, :1], "2 outputs but train has 1 targets"),
        (lambda y: y[:100], "160 inputs but 100 targets"),
        (lambda y: y[:, :, None], r"\(160, 2, 1\)"),
        (lambda y: y > 0, "real numbers"),
        (lambda y: y / 0, "NaN or infinite"),
    ],
)
def test_targets_of_the_wrong_kind_are_refused(case, fit_case, targets, message):
    with pytest.raises(ValueError, match=message):
        fit_case(train=(case.inputs, targets(case.targets)))


def test_validation_rows_are_checked_too(case, fit_case):
    with pytest.raises(ValueError, match="validation has 1 targets"):
        fit_case(validation=(case.inputs, case.targets[:, :1]))


@pytest.mark.parametrize("layer", [nn.Dropout(0.1), nn.BatchNorm1d(8)])
def test_training_mode_is_refused_with_what_to_do(case, fit_case, layer):
    network = nn.Sequential(case.network[0], layer, *case.network[1:]).double().train()
    with pytest.raises(ValueError, match=r"call network.eval\(\)"):
        fit_case(network=network)
    assert fit_case(network=network.eval()).num_experts >= 4


class OfTheBatch(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x - x.mean(dim=0))


def test_a_network_whose_rows_look_at_each_other_is_refused(case, fit_case):
    with pytest.raises(ValueError, match="depends on the other rows"):
        fit_case(network=OfTheBatch(case.network))


def test_a_network_without_trainable_parameters_is_refused(own_network, fit_case):
    with pytest.raises(ValueError, match="no trainable parameters"):
        fit_case(network=own_network.requires_grad_(False))


def test_something_else_than_a_network_is_refused(case):
    with pytest.raises(TypeError, match="Module"):
        trustgp.fit(lambda x: x, (case.inputs, case.targets), progress=False)


def test_outputs_that_are_not_finite_are_refused(own_network, case, fit_case):
    with torch.no_grad():
        own_network[4].bias[0] = torch.inf
    with pytest.raises(ValueError, match="NaN or infinite"):
        fit_case(network=own_network)


# Which tangents.


class Tokens(nn.Module):
    """A layer applied to tokens that are written as further rows."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(1, 4), nn.Linear(4, 2)

    def forward(self, x):
        hidden = torch.tanh(self.layer(x.reshape(-1, 1)))
        return self.last(hidden.reshape(len(x), -1, 4).sum(dim=1))


def convolution():
    return nn.Sequential(nn.Unflatten(1, (1, -1)), nn.Conv1d(1, 3, 1), nn.Flatten(), nn.LazyLinear(2))


def group_norm():
    return nn.Sequential(nn.LazyLinear(6), nn.GroupNorm(2, 6), nn.Linear(6, 2))


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(convolution, id="convolution"),
        pytest.param(group_norm, id="group norm"),
        pytest.param(Tokens, id="tokens as rows"),
    ],
)
def test_gradient_rows_are_chosen_elsewhere(case, fit_case, build):
    torch.manual_seed(0)
    network = build().double().eval()
    network(case.inputs[:2])  # lazy layers take their shapes
    model = fit_case(network=network)
    assert isinstance(model.origin.tangents, JacobianRows)
    assert bool((model.predict(case.inputs).variance > 0).all())


class Stop(torch.autograd.Function):
    """An operation that has no gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients):
        raise NotImplementedError("no gradient here")


class Stopped(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return Stop.apply(self.network(x))


def test_what_cannot_be_differentiated_is_refused_before_long_work(case, fit_case):
    with pytest.raises(ValueError, match=r"cannot be differentiated \(no gradient here"):
        fit_case(network=Stopped(case.network))


def test_one_output_makes_the_three_treatments_equal(single_case):
    models = [
        trustgp.fit(
            single_case.network,
            (single_case.inputs, single_case.targets),
            num_experts=3,
            outputs=outputs,
            progress=False,
        )
        for outputs in ("shared", "separate", "pseudo")
    ]
    first, *others = [model.predict(single_case.inputs) for model in models]
    for other in others:
        torch.testing.assert_close(other.variance, first.variance, rtol=1e-10, atol=0)


def test_chosen_parameters_alone_make_the_kernel(case, fit_case):
    names = ["4.weight", "4.bias"]
    model = fit_case(tangents=LayerFactors("last"), num_experts=1)
    assert model.mixtures[0].tangents.network.names == tuple(names)
    found = model.mixtures[0].tangents(case.inputs[:20]).diag()
    jacobian = dense_jacobian(case.network, case.inputs[:20], names)
    expected = dense_gram(jacobian, torch.eye(2).double() / 2**0.5).diagonal()
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)


def test_pseudo_targets_of_the_fit_are_j_theta_plus_the_residual(case, fit_case):
    (expert,) = fit_case(num_experts=1, budget="none").mixtures[0].experts
    jacobian = dense_jacobian(case.network, case.inputs)
    with torch.no_grad():
        targets = jacobian @ flat_parameters(case.network) + case.targets - case.network(case.inputs)
    gram = dense_gram(jacobian, torch.eye(2).double() / 2**0.5)
    scale = expert.scale * relative_sizes(jacobian).mean(dim=0)
    tau = float(expert.noise[0] / scale[0])
    regular = gram + tau * torch.eye(160, dtype=torch.float64)
    expected = (targets * torch.linalg.solve(regular, targets)).sum(dim=0) / 160
    # the condition of K + tau I, up to 1e8
    torch.testing.assert_close(scale, expected, rtol=1e-7, atol=0)


# Calibration.


def test_validation_rows_change_the_calibration_and_nothing_else(fit_case, witnessed, toy, state_of):
    model = fit_case(validation=toy(60, seed=8), witness=Witness())
    ours, theirs = state_of(model), state_of(witnessed)
    different = {name for name in ours if not torch.equal(ours[name], theirs[name])}
    # what left-out training rows had, 2 and 3, stays beside
    assert {name[:14] for name in different} == {"calibration.0.", "calibration.1."}
    assert len(model.held_scores) == 60


@pytest.fixture(scope="module")
def grouped(fit_case):
    return fit_case(groups=torch.arange(160) // 20, witness=Witness())


def test_groups_change_the_calibration_and_nothing_else(grouped, witnessed, state_of):
    ours, theirs = state_of(grouped), state_of(witnessed)
    different = {name for name in ours if not torch.equal(ours[name], theirs[name])}
    assert different
    assert all(name.startswith("calibration.") for name in different)


@pytest.mark.parametrize("groups", [None, torch.arange(160) // 20], ids=["rows", "groups"])
@pytest.mark.parametrize("outputs", ["shared", "separate"])
def test_without_validation_rows_left_out_training_rows_calibrate(fit_case, case, outputs, groups):
    model = fit_case(witness=None, outputs=outputs, groups=groups)
    parts, training = [], model.memory
    for mixture, solved in zip(model.mixtures, training.solved, strict=True):
        for log_kappa, one in zip(mixture.log_kappa, solved, strict=True):
            parts.append(replace(one.held_out, log_kappa=log_kappa.repeat(int(one.expert.own))))
    rows = CalibrationRows.cat(parts)
    assert len(rows) == 320
    expected = Regression().calibrate(rows, model.shape, case.targets, far=training.far)
    for one, other in zip(model.calibrations, expected, strict=True):
        assert all(torch.equal(getattr(one, name), value) for name, value in vars(other).items())
        assert float(one.fade) != 1.0
        assert float(one.share) == 1 / 320


def test_of_many_experts_a_few_are_judged_and_the_scores_are_of_their_rows(fit_case):
    model = fit_case(num_experts=14)
    (solved,) = model.memory.solved
    judged = [one for one in solved if one.held_out is not None]
    assert len(judged) == solving.JUDGED_EXPERTS < len(solved)
    assert len(model.held_scores) == sum(int(one.expert.own) for one in judged)


# Time series.


def trajectory(n=300):
    steps = torch.linspace(0, 10, n, dtype=torch.float64)
    inputs = torch.stack([steps.sin(), (1.3 * steps).cos(), (0.7 * steps).sin()], dim=1)
    return inputs, torch.stack([inputs[:, 0] + inputs[:, 1], inputs[:, 2]], dim=1)


def test_a_time_series_without_groups_or_validation_is_warned_about(fit_case):
    with pytest.warns(UserWarning, match="time series.*groups=.*validation="):
        fit_case(train=trajectory())


@pytest.mark.filterwarnings("error")
def test_a_time_series_with_groups_or_validation_is_not_warned_about(fit_case, toy):
    fit_case(train=trajectory(), groups=torch.arange(300) // 50)
    fit_case(train=trajectory(), validation=toy(20, seed=1))


# Budget.


def needed(fit_case, **options) -> int:
    with pytest.raises(ValueError, match="the smallest that works is") as caught:
        fit_case(budget=1000, **options)
    return int(str(caught.value).split("works is ")[1].split(" bytes")[0])


BUDGETED = [
    {"witness": Witness()},
    {},
    {"num_experts": 1},
    {"outputs": "separate"},
    {"outputs": "pseudo"},
    {"tangents": JacobianRows()},
    {"tangents": JacobianRows(keep=40, keep_per_expert=10)},
    {"patchwork": Patchwork(neighbours=0)},
    {"division": Division(components=2, subset=64)},
]


@pytest.mark.parametrize("options", BUDGETED, ids=str)
def test_the_budget_is_respected_in_memory_and_on_disk(case, fit_case, tmp_path, options):
    smallest = needed(fit_case, **options)
    for budget in (smallest, 2 * smallest):
        model = fit_case(budget=budget, **options)
        assert model.nbytes <= budget
        model.save(tmp_path / "model.trustgp")
        assert os.path.getsize(tmp_path / "model.trustgp") <= budget
        assert bool(torch.isfinite(model.predict(case.inputs).variance).all())


def test_the_file_respects_the_budget_however_many_parameters_there_are(make_mlp, toy, tmp_path):
    inputs, targets = toy(60, seed=1)
    options = {
        "tangents": JacobianRows(keep_per_expert=4),
        "outputs": "pseudo",
        "num_experts": 1,
        "progress": False,
    }
    network = make_mlp(width=120)  # 15,242 parameters, of which the file lists those that are kept
    with pytest.raises(ValueError, match="works is") as caught:
        trustgp.fit(network, (inputs, targets), budget=1000, **options)
    budget = int(str(caught.value).split("works is ")[1].split(" bytes")[0])
    model = trustgp.fit(network, (inputs, targets), budget=budget, **options)
    model.save(tmp_path / "model.trustgp")
    assert os.path.getsize(tmp_path / "model.trustgp") <= budget


# The bound.


def test_the_bound_is_the_dense_one(case, fitted):
    model = fitted
    gram = dense_gram(dense_jacobian(case.network, case.inputs), model.mixtures[0].tangents.mix)
    labels = model.predict(case.inputs).expert
    assert float(model.bound) == pytest.approx(mass_between_by_loops(gram, labels), rel=1e-10)


def test_the_executor_that_is_given_is_used(fit_case):
    class Counting(Threads):
        runs = 0

        def run(self, function, tasks):
            Counting.runs += 1
            return super().run(function, tasks)

    fit_case(executor=Counting(1))
    assert Counting.runs > 0
