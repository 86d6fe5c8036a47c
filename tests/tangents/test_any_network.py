"""Networks of every kind: gradients against a plain loop of autograd in float64, and fits from end to end."""

import gc
import logging
import warnings
import weakref
from types import SimpleNamespace

import pytest
import torch
from draws import Draws, normal
from many import Many
from reference import dense_gram, dense_jacobian, dense_rows
from tangents.binding import assert_close, bound
from torch import nn
from torch.nn.utils import prune
from zoo import Encoder, Head, LastStep, Net, Wrapped, make, portions, seeded

import trustgp
from trustgp import ArtifactError, JacobianRows, Sketch, Threads
from trustgp.data.trees import count, map_tensors, take

# vmap warns of operations that it computes row by row
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:Using padding='same'")
nightly = pytest.mark.nightly
ALL = torch.empty(0, dtype=torch.int64)
# Networks with parameters outside of layers, and those that torch.func cannot differentiate.
VMAPPED = {
    *("attention, other keys", "embedding bag, weighted", "tied, transposed", "open parameters", "einsum"),
    *("fourier", "weight norm", "bilinear"),
}
LOOPED = {"routed rows", "lstm, packed", "loops that depend on values"}
LOOPED |= {"checkpointed", "checkpointed, reentrant"}


@pytest.mark.parametrize("names", portions(8))
def test_gradients_and_pseudo_targets_are_those_of_a_plain_loop(names):
    with Many() as check:
        for name in names:
            network, inputs = make(name)
            jacobian = dense_jacobian(network, inputs)
            for outputs in ("separate", "pseudo", "shared"):
                with check(name, "rows", outputs):
                    tangents, mix = bound(network, inputs, JacobianRows(), outputs)
                    assert_close(tangents(inputs).rows, dense_rows(jacobian, mix))
            with check(name, "single rows"):
                single = [tangents(take(inputs, torch.tensor([i]))).rows for i in range(count(inputs))]
                assert_close(torch.cat(single), dense_rows(jacobian, mix))
            with check(name, "pseudo-targets"):
                theta = torch.cat([value.flatten() for value in tangents.network.parameters.values()])
                assert_close(tangents.network.directional(inputs, tangents.direction(ALL)), jacobian @ theta)
            with check(name, "strategy"):
                plan = tangents.gradients.plan(inputs)
                assert (bool(plan.vmapped), bool(plan.looped)) == (name in VMAPPED, name in LOOPED)
                assert name not in LOOPED or "torch.func cannot differentiate" in plan.reason


@pytest.mark.parametrize(
    "name", ["conv2d, groups", "embedding", *(pytest.param(name, marks=nightly) for name in ("gru", "tied"))]
)
def test_kept_columns_and_frozen_parameters_are_those_of_a_plain_loop(name):
    network, inputs = make(name)
    tangents, mix = bound(network, inputs, JacobianRows(keep=9))
    mixed = torch.einsum("kc,ncp->nkp", mix, dense_jacobian(network, inputs))
    assert_close(tangents(inputs).rows, mixed[:, :, tangents.kept].flatten(1))
    every = [n for n, _ in network.named_parameters()]
    for frozen in (every[:1], [n for n in every if "weight" in n], every[:-1]):
        for n, parameter in network.named_parameters():
            parameter.requires_grad_(n not in frozen)
        tangents, mix = bound(network, inputs, JacobianRows())
        names = [n for n in every if n not in frozen]
        assert list(tangents.network.names) == names
        assert_close(tangents(inputs).rows, dense_rows(dense_jacobian(network, inputs, names), mix))


@pytest.mark.parametrize("name", ["conv1d, circular", "lstm, packed"])
def test_grad_mode_and_threads_of_the_user_do_not_matter(name):
    network, inputs = make(name)
    tangents, mix = bound(network, inputs, JacobianRows())
    expected = dense_rows(dense_jacobian(network, inputs), mix)
    for mode in (torch.no_grad, torch.inference_mode):
        fresh = JacobianRows().restore(tangents.network, tangents.state())
        with mode():
            assert_close(tangents(inputs).rows.clone(), expected)
            assert_close(fresh(map_tensors(torch.clone, inputs)).rows.clone(), expected)
    first = tangents(inputs).rows
    results = dict(Threads(4).run(lambda _: tangents(inputs).rows, list(range(12))))
    assert all(torch.equal(rows, first) for rows in results.values())


def test_rows_that_take_another_path_than_the_probed_ones_are_still_exact():
    network, _ = make("routed rows")
    inputs = seeded(8, 3)
    inputs[:4, 0] = inputs[:4, 0].abs()  # probed rows use one layer, some of the others the second
    inputs[4:, 0] = -inputs[4:, 0].abs()
    tangents, mix = bound(network, inputs[:4], JacobianRows())
    for rows in (inputs, inputs[3:6], inputs[6:7]):
        assert_close(tangents(rows).rows, dense_rows(dense_jacobian(network, rows), mix))


def test_state_that_a_forward_pass_left_on_the_network_does_not_matter():
    (network, inputs), (used, _) = make("buffers and hooks"), make("buffers and hooks")
    used(inputs)  # leaves an activation behind, with its graph
    before = float(used.calls)
    tangents, mix = bound(used, inputs, JacobianRows())
    assert_close(tangents(inputs).rows, dense_rows(dense_jacobian(network, inputs), mix))
    fitted(used, seeded(30, 2, 9), tangents=Sketch(64))
    assert float(used.calls) == before  # the user's network keeps even its counters
    assert used.kept[0].grad_fn is not None


def turned(net, x):
    return net.last(torch.fft.irfft(torch.fft.rfft(x) * net.turn, n=3))


def test_complex_parameters_are_refused_and_others_may_be_chosen():
    turn = nn.Parameter(torch.randn(2, dtype=torch.complex128))
    network, inputs = Net(turned, turn=turn, last=nn.Linear(3, 2).double()).eval(), seeded(30, 3)
    with pytest.raises(ValueError, match=r"parameter 'turn' is complex"):
        fitted(network, inputs)
    tangents, _ = bound(network, inputs, JacobianRows(parameters=["last.bias"]))
    assert_close(tangents(inputs).rows, (torch.eye(2).double() / 2**0.5).flatten().expand(30, 4))


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_pruned_layers_and_old_style_weight_norms_have_their_gradients():
    network, inputs = nn.Linear(3, 2, bias=False).double(), seeded(5, 3)
    prune.custom_from_mask(network, "weight", torch.tensor([[1, 0, 1], [0, 1, 1]]))
    tangents, mix = bound(network, inputs, JacobianRows())
    jacobian = torch.einsum("nj,ci,ij->ncij", inputs, torch.eye(2).double(), network.weight_mask.double())
    assert_close(tangents(inputs).rows, dense_rows(jacobian.flatten(2), mix))
    grams, inputs = [], seeded(5, 2, 9)
    for norm in (nn.utils.weight_norm, nn.utils.parametrizations.weight_norm):
        torch.manual_seed(0)
        network = Head(norm(nn.Conv1d(2, 4, 3)), channels=4).double().eval()
        features = bound(network, inputs, JacobianRows())[0](inputs)
        grams.append(features.gram(features))
    assert_close(*grams)


def fitted(network, inputs, outputs=2, **options):
    targets = normal(count(inputs), outputs)
    options = {"progress": False, "num_experts": 2, "witness": None, **options}
    return trustgp.fit(network, (inputs, targets), **options)


def rows_of(name, n=40):
    """A network, and n rows like its own."""
    network, inputs = make(name)
    index, draws = torch.arange(n) % count(inputs), Draws(7)

    def varied(leaf):
        leaf = leaf[index]
        return leaf + draws.normal(leaf.shape) if leaf.is_floating_point() else leaf

    return network, map_tensors(varied, inputs)


def test_slow_gradients_are_warned_about_once():
    network, _ = make("lstm, packed")
    inputs = (seeded(20, 4, 3), torch.arange(20) % 4 + 1)
    with pytest.warns(UserWarning, match="computed row by row") as caught:
        model = fitted(network, inputs, outputs=2)
    assert len([w for w in caught if "computed row by row" in str(w.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(inputs)


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel], ids=["compiled", "data parallel"])
def test_a_wrapped_network_is_fitted_as_the_module_inside(wrap, tmp_path):
    torch.manual_seed(0)
    network, inputs = Head(nn.Conv1d(2, 4, 3), channels=4).double().eval(), seeded(30, 2, 9)
    model = fitted(wrap(network), inputs)
    p, expected = model.predict(inputs), fitted(network, inputs).predict(inputs)
    assert torch.equal(p.mean, expected.mean)
    assert torch.equal(p.variance, expected.variance)
    model.save(tmp_path / "model.trustgp")
    assert torch.equal(trustgp.load(tmp_path / "model.trustgp", wrap(network)).predict(inputs).mean, p.mean)


KINDS = [Sketch(64), pytest.param(JacobianRows(keep_per_expert=9), marks=nightly)]


@pytest.mark.parametrize("tangents", KINDS)
def test_features_that_are_kept_during_the_fit_change_nothing(tangents, monkeypatch, tmp_path):
    network, inputs = rows_of("gru", 80)
    options = {"tangents": tangents, "num_experts": 3, "memory": 2**40}
    kept = fitted(network, inputs, **options).predict(inputs)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("trustgp.fitting.plan.KEPT_FEATURES", 0)
    monkeypatch.setattr("trustgp.fitting.plan._available", lambda device: 0)
    monkeypatch.setattr("trustgp.fitting.plan.check_memory", lambda *given: None)
    listed, real = [], trustgp.fitting.solve.divide

    def divide(*given, **options):
        listed.append((given[0].cached is not None, list(tmp_path.iterdir())))
        return real(*given, **options)

    monkeypatch.setattr("trustgp.fitting.solve.divide", divide)
    mapped = fitted(network, inputs, **{**options, "memory": None}).predict(inputs)
    assert listed == [(True, [])]  # in a file without a name
    torch.testing.assert_close(kept.variance, mapped.variance, rtol=0, atol=0)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.warns(UserWarning, match=r"0 B.* about three times.*TMPDIR"):
        computed_again = fitted(network, inputs, **{**options, "memory": None}).predict(inputs)
    assert listed[1] == (False, [])
    # in other batches, and a search finds tau to 1e-6
    torch.testing.assert_close(kept.variance, computed_again.variance, rtol=1e-5, atol=0)


def test_nothing_of_a_model_stays_when_it_goes():
    network, inputs = rows_of("conv2d, groups", 60)
    model = fitted(network, inputs, tangents=Sketch(64), num_experts=2)
    model.predict(inputs[:5])
    weights = [weakref.ref(value) for value in model.network.parameters()]
    del model
    gc.collect()
    assert not any(one() is not None for one in weights)


WIDE = nn.Conv2d(2, 32, 3), nn.ReLU(), nn.Conv2d(32, 16, 3)
CHOICES = [
    (Head(nn.Conv2d(2, 4, 3), channels=4), JacobianRows(), "only 86 gradients"),
    (Head(*WIDE, channels=16), Sketch(512), "a row has 5266 gradients"),
]


@pytest.mark.parametrize(("network", "chosen", "reason"), CHOICES)
def test_the_log_names_the_chosen_tangents_and_the_memory(network, chosen, reason, caplog):
    with caplog.at_level(logging.INFO, logger="trustgp"):
        model = fitted(network.double().eval(), seeded(30, 2, 6, 6))
    assert model.origin.tangents == chosen
    first, second, outputs = (record.message for record in caplog.records[:3])
    assert type(chosen).__name__ in first
    assert reason in first
    assert "backward pass" in outputs
    assert "the fit needs at most about" in second


def test_a_function_selects_the_output_to_the_bit(tmp_path):
    torch.manual_seed(0)
    network = Wrapped("object").double().eval()
    inputs, select = seeded(30, 1, 3), lambda result: result.logits
    model = fitted(network, inputs, select=select, checkpoint=tmp_path / "checkpoint")
    p = model.predict(inputs)
    with torch.no_grad():
        assert torch.equal(p.mean, select(network(inputs)))
    assert not network._forward_hooks
    plain = nn.Sequential(network.conv, nn.Tanh(), nn.Flatten(), network.last)
    expected = fitted(plain, inputs)
    torch.testing.assert_close(p.variance, expected.predict(inputs).variance, rtol=1e-6, atol=0)
    model.save(tmp_path / "selected")
    again = trustgp.load(tmp_path / "selected", network, select=select)
    assert torch.equal(again.predict(inputs).variance, p.variance)
    again.update((inputs[:3] + 1, seeded(3, 2)), train=(inputs, normal(30, 2)), progress=False)
    with pytest.raises(ArtifactError, match="select="):
        trustgp.load(tmp_path / "selected", network)
    expected.save(tmp_path / "plain")
    with pytest.raises(ArtifactError, match="without select="):
        trustgp.load(tmp_path / "plain", plain, select=select)
    fitted(network, inputs, select=select, checkpoint=tmp_path / "checkpoint")
    with pytest.raises(ArtifactError, match="output"):
        fitted(network, inputs, select=lambda result: 2 * select(result), checkpoint=tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("kind", "output", "error", "message"),
    [
        ("tuple", None, ValueError, "select="),  # `logits` of a dict or an object are selected
        ("object", lambda result: [result.logits], ValueError, "must select a tensor"),
        ("object", "logits", TypeError, "a function of what the network returns"),
    ],
)
def test_outputs_that_are_not_tensors_are_refused(kind, output, error, message):
    with pytest.raises(error, match=message):
        fitted(Wrapped(kind).double().eval(), seeded(30, 1, 3), select=output)


@pytest.mark.parametrize(
    ("build", "shape", "dtype"),
    [
        (lambda: Head(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), channels=8), (2, 6, 6), torch.bfloat16),
        pytest.param(lambda: LastStep(nn.GRU(3, 6), 6), (4, 3), torch.float16, marks=nightly),
        pytest.param(Encoder, (4, 3), torch.float16, marks=nightly),
    ],
)
def test_a_half_precision_network_keeps_its_mean_and_has_float32_tangents(build, shape, dtype, tmp_path):
    torch.manual_seed(0)
    network, inputs = build().eval().to(dtype), seeded(40, *shape).to(dtype)
    model = fitted(network, inputs)
    p = model.predict(inputs)
    with torch.no_grad():
        assert torch.equal(p.mean, network(inputs))
    assert p.mean.dtype == dtype
    tangents = model.mixtures[0].tangents
    assert tangents.network.float32_module is tangents.network.float32_module  # one copy
    features = tangents(inputs[:5])
    assert all(value.dtype == torch.float32 for value in features.tensors().values())
    exact = dense_gram(dense_jacobian(network, inputs[:5]), tangents.mix)
    if not isinstance(model.origin.tangents, Sketch):  # the same weights, in float32 instead of float64
        torch.testing.assert_close(features.gram(features), exact, rtol=1e-4, atol=1e-4 * float(exact.max()))
    model.save(tmp_path / "model.trustgp")
    again = trustgp.load(tmp_path / "model.trustgp", network).predict(inputs)
    assert torch.equal(again.variance, p.variance)


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=nightly)])
def test_a_half_precision_networks_error_bar_does_not_underflow(dtype):
    """Targets of the size 1e-5 have variances near 1e-10: float16 ends at 6e-8."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).eval()
    with torch.no_grad():
        network[2].weight.mul_(1e-5), network[2].bias.mul_(1e-5)
    network, inputs = network.to(dtype), seeded(60, 3).to(dtype)
    targets = network(inputs).detach().double() + 1e-5 * seeded(60, 2)
    p = trustgp.fit(network, (inputs, targets), num_experts=1, progress=False).predict(inputs)
    assert p.mean.dtype == dtype
    assert torch.equal(p.mean, network(inputs))
    for one in (p, p.corrected, p.plain):
        parts = (one.epistemic, one.aleatoric, one.excess, one.rare, one.novelty, one.variance, one.std)
        assert all(values.dtype == torch.float32 for values in parts)
        assert bool((one.epistemic > 0).all())
        assert bool((one.aleatoric > 0).all())
    lower, upper = p.interval(0.95)
    assert lower.dtype == upper.dtype == torch.float32
    assert bool(((lower < p.mean.float()) & (p.mean.float() < upper)).all())
    # the same network in float64 has the same error bar, to the precision of the float32 tangents
    double = trustgp.fit(network.double(), (inputs.double(), targets), num_experts=1, progress=False)
    torch.testing.assert_close(p.std.double(), double.predict(inputs.double()).std, rtol=0.1, atol=0)
