"""Networks of every kind: gradients against a plain loop of autograd in float64, and fits from end to end."""

import copy
import gc
import logging
import warnings
import weakref

import pytest
import torch
from many import Many
from reference import dense_gram, dense_jacobian, dense_rows
from torch import nn
from torch.nn.utils import prune
from zoo import Encoder, Head, LastStep, Wrapped, make, portions, seeded

import trustgp
from trustgp import ArtifactError, JacobianRows, Patchwork, Sketch, Threads
from trustgp.data.trees import count, map_tensors, take
from trustgp.tangents import output_mixes
from trustgp.tangents.network import TangentNetwork, prepare
from trustgp.tangents.sketch import SketchMap

# vmap says which operations it takes one row at a time
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:Using padding='same'")
ALL = torch.empty(0, dtype=torch.int64)


def bound(network, inputs, tangents, outputs="shared"):
    prepared = prepare(network, tangents.choose(network), None)
    num_outputs = prepared.matrix(inputs).shape[1]
    mix, _ = output_mixes(outputs, num_outputs, torch.Generator().manual_seed(3))[-1]
    return tangents.bind(prepared, mix, inputs, torch.zeros(count(inputs), num_outputs)), mix


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


# Every kind of layer, against the loop.


@pytest.mark.parametrize("names", portions(16), ids=lambda names: names[0])
def test_gradients_and_pseudo_targets_are_those_of_a_plain_loop(names):
    with Many() as check:
        for name in names:
            network, inputs = make(name)
            jacobian = dense_jacobian(network, inputs)
            for outputs in ("separate", "pseudo", "shared"):
                with check(name, "rows", outputs):
                    tangents, mix = bound(network, inputs, JacobianRows(), outputs)
                    assert_close(tangents(inputs).rows, dense_rows(jacobian, mix))
            with check(name, "one row alone"):
                alone = [tangents(take(inputs, torch.tensor([i]))).rows for i in range(count(inputs))]
                assert_close(torch.cat(alone), dense_rows(jacobian, mix))
            with check(name, "pseudo-targets"):
                theta = torch.cat([value.flatten() for value in tangents.network.parameters.values()])
                found = tangents.network.directional(inputs, tangents.direction(ALL))
                assert_close(found, jacobian @ theta)


def test_kept_columns_are_those_of_a_plain_loop():
    with Many() as check:
        for name in ("conv3d", "lstm", "attention", "embedding", "residual block", "prelu"):
            with check(name):
                network, inputs = make(name)
                tangents, mix = bound(network, inputs, JacobianRows(keep=17))
                mixed = torch.einsum("kc,ncp->nkp", mix, dense_jacobian(network, inputs))
                assert_close(tangents(inputs).rows, mixed[:, :, tangents.kept].flatten(1))


@pytest.mark.parametrize("name", ["conv3d", "gru", "transformer encoder", "embedding", "group norm", "tied"])
def test_frozen_parameters_are_not_in_the_kernel(name):
    network, inputs = make(name)
    every = [n for n, _ in network.named_parameters()]
    still = {
        "first": every[:1],
        "weights": [n for n in every if "weight" in n],
        "all but the last": every[:-1],
    }
    with Many() as check:
        for frozen, names in still.items():
            with check(frozen):
                for n, parameter in network.named_parameters():
                    parameter.requires_grad_(n not in names)
                tangents, mix = bound(network, inputs, JacobianRows())
                left = [n for n in every if n not in names]
                assert list(tangents.network.names) == left
                assert_close(tangents(inputs).rows, dense_rows(dense_jacobian(network, inputs, left), mix))


@pytest.mark.parametrize("name", ["conv1d, circular", "lstm, packed", "tied, transposed", "routed rows"])
def test_the_users_grad_mode_does_not_matter(name):
    network, inputs = make(name)
    tangents, mix = bound(network, inputs, JacobianRows())
    jacobian = dense_jacobian(network, inputs)
    theta = torch.cat([value.flatten() for value in tangents.network.parameters.values()])
    with Many() as check:
        for mode in (torch.no_grad, torch.inference_mode):
            fresh = JacobianRows().restore(tangents.network, tangents.state())
            with mode():
                found = [tangents(inputs).rows.clone(), fresh(map_tensors(torch.clone, inputs)).rows.clone()]
                linear = tangents.network.directional(inputs, tangents.direction(ALL)).clone()
            with check(mode.__name__):
                for rows in found:
                    assert_close(rows, dense_rows(jacobian, mix))
                assert_close(linear, jacobian @ theta)


@pytest.mark.parametrize("tangents", [None, JacobianRows(), Sketch(64)], ids=["factors", "rows", "sketch"])
def test_predictions_in_inference_mode_are_the_same(tangents):
    torch.manual_seed(0)
    network, inputs = (
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double().eval(),
        seeded(30, 3),
    )
    model = fitted(network, inputs, tangents=tangents)
    expected = model.predict(inputs)
    with torch.inference_mode():
        assert torch.equal(model.predict(inputs).variance, expected.variance)


def test_many_threads_give_the_same_gradients():
    with Many() as check:
        for name in ("conv1d, circular", "gru", "attention", "lstm, packed"):
            network, inputs = make(name)
            tangents, _ = bound(network, inputs, JacobianRows())
            expected = tangents(inputs).rows
            found = dict(Threads(4).run(lambda _: tangents(inputs).rows, list(range(12))))  # noqa: B023
            with check(name):
                assert all(torch.equal(rows, expected) for rows in found.values())


def test_rows_that_take_another_path_than_the_probed_ones_are_still_exact():
    network, _ = make("routed rows")
    inputs = seeded(8, 3)
    inputs[:4, 0] = inputs[:4, 0].abs()  # what the network is probed with goes left, some of the rest right
    inputs[4:, 0] = -inputs[4:, 0].abs()
    tangents, mix = bound(network, inputs[:4], JacobianRows())
    for some in (inputs, inputs[3:6], inputs[6:7]):
        assert_close(tangents(some).rows, dense_rows(dense_jacobian(network, some), mix))


def test_gradients_leave_no_trace_on_the_network():
    network, inputs = make("transformer encoder")
    before = copy.deepcopy(network.state_dict())
    tangents, _ = bound(network, inputs, JacobianRows())
    tangents(inputs)
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in network.parameters())
    assert not any(p.requires_grad for p in tangents.network.module.parameters())


# Which plan: said once, and none slower than it must be.


def plans(*names):
    """How the gradients of each network are made."""
    for name in names:
        network, inputs = make(name)
        yield name, bound(network, inputs, JacobianRows())[0].gradients.plan(inputs)


def test_layers_that_are_known_need_no_gradient_for_each_row():
    known = (
        "conv2d, groups",
        "transposed conv3d",
        "lstm, sequence first, both ways",
        "gru",
        "recurrent cells",
        "transformer encoder, sequence first",
        "embedding",
        "group norm",
        "prelu",
        "tied",
        "frames as rows",
        "frames first",
        "weights from the right",
        "vision transformer",
        "attention",
        "encoder and decoder",
    )
    with Many() as check:
        for name, plan in plans(*known):
            with check(name):
                assert not plan.vmapped
                assert not plan.looped


def test_what_belongs_to_no_layer_is_left_to_torch_func():
    others = ("open parameters", "weight norm", "tied, transposed")
    with Many() as check:
        for name, plan in plans(*others):
            with check(name):
                assert plan.vmapped
                assert not plan.looped


def test_what_torch_func_cannot_do_is_done_row_by_row():
    slow = (
        "lstm, packed",
        "routed rows",
        "checkpointed",
        "checkpointed, reentrant",
        "loops that depend on values",
        "mixture of experts",
    )
    with Many() as check:
        for name, plan in plans(*slow):
            with check(name):
                assert plan.looped
                assert "torch.func cannot differentiate" in plan.reason


def fitted(network, inputs, outputs=2, **options):
    targets = torch.randn(
        count(inputs), outputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    return trustgp.fit(network, (inputs, targets), **{"progress": False, "num_experts": 2, **options})


def test_a_slow_way_is_warned_about_once():
    network, _ = make("lstm, packed")
    inputs = (seeded(20, 4, 3), torch.arange(20) % 4 + 1)
    with pytest.warns(UserWarning, match="computed row by row") as caught:
        model = fitted(network, inputs, outputs=2)
    assert len([w for w in caught if "computed row by row" in str(w.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(inputs)


# What can be mended or must be refused before the work.


def conv() -> nn.Module:
    torch.manual_seed(0)
    return Head(nn.Conv1d(2, 4, 3), channels=4).double().eval()


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel], ids=["compiled", "data parallel"])
def test_a_wrapped_network_is_taken_as_the_module_inside(wrap, tmp_path):
    network, inputs = conv(), seeded(30, 2, 9)
    model = fitted(wrap(network), inputs)
    p, expected = model.predict(inputs), fitted(network, inputs).predict(inputs)
    assert torch.equal(p.mean, expected.mean)
    assert torch.equal(p.variance, expected.variance)
    model.save(tmp_path / "model.trustgp")
    assert torch.equal(trustgp.load(tmp_path / "model.trustgp", wrap(network)).predict(inputs).mean, p.mean)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_scripted_network_is_refused():
    inputs = seeded(30, 2, 9)
    for network in (torch.jit.script(conv()), nn.Sequential(torch.jit.trace(conv(), inputs))):
        with pytest.raises(ValueError, match=r"torch.jit module.*pass the torch.nn.Module that it was"):
            fitted(network, inputs)


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_lazy_network_is_refused_and_stays_lazy():
    network = nn.Sequential(nn.LazyConv1d(3, 3), nn.Flatten(), nn.LazyLinear(2)).double().eval()
    with pytest.raises(ValueError, match=r"parameter '0.weight' has no shape yet"):
        fitted(network, seeded(30, 2, 9))
    assert isinstance(network[0].weight, nn.parameter.UninitializedParameter)


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn, self.last = nn.Parameter(torch.randn(2, dtype=torch.complex128)), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(torch.fft.irfft(torch.fft.rfft(x) * self.turn, n=3))


def test_complex_parameters_are_refused_and_others_may_be_chosen():
    network, inputs = Complex().eval(), seeded(30, 3)
    network.last.double()
    with pytest.raises(ValueError, match=r"parameter 'turn' is complex"):
        fitted(network, inputs)
    tangents, _ = bound(network, inputs, JacobianRows(parameters=["last.bias"]))
    assert_close(tangents(inputs).rows, (torch.eye(2).double() / 2**0.5).flatten().expand(30, 4))


def test_what_a_forward_pass_left_on_the_network_does_not_matter():
    (network, inputs), (used, _) = make("buffers and hooks"), make("buffers and hooks")
    used(inputs)  # leaves an activation behind, with its graph
    before = float(used.calls)
    tangents, mix = bound(used, inputs, JacobianRows())
    assert_close(tangents(inputs).rows, dense_rows(dense_jacobian(network, inputs), mix))
    fitted(used, seeded(30, 2, 9), tangents=Sketch(64))
    assert float(used.calls) == before  # the network is the user's: even its counters stay
    assert used.kept[0].grad_fn is not None


def test_a_pruned_layer_has_gradients_where_it_was_not_pruned():
    network, inputs = nn.Linear(3, 2, bias=False).double(), seeded(5, 3)
    prune.custom_from_mask(network, "weight", torch.tensor([[1, 0, 1], [0, 1, 1]]))
    tangents, mix = bound(network, inputs, JacobianRows())
    jacobian = torch.einsum("nj,ci,ij->ncij", inputs, torch.eye(2).double(), network.weight_mask.double())
    assert_close(tangents(inputs).rows, dense_rows(jacobian.flatten(2), mix))


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_an_old_style_weight_norm_has_the_gradients_of_the_new():
    def network(norm):
        torch.manual_seed(0)
        return Head(norm(nn.Conv1d(2, 4, 3)), channels=4).double().eval()

    inputs = seeded(5, 2, 9)
    old, new = (network(n) for n in (nn.utils.weight_norm, nn.utils.parametrizations.weight_norm))
    grams = []
    for one in (old, new):
        features = bound(one, inputs, JacobianRows())[0](inputs)
        grams.append(features.gram(features))
    assert_close(*grams)


# From end to end.


def rows_of(name, n=40):
    """A network, and n rows like its own."""
    network, inputs = make(name)
    index = torch.arange(n) % count(inputs)
    noise = torch.Generator().manual_seed(7)

    def varied(leaf):
        leaf = leaf[index]
        shake = torch.randn(leaf.shape, generator=noise, dtype=torch.float64)
        return leaf + shake if leaf.is_floating_point() else leaf

    return network, map_tensors(varied, inputs)


FITTED = [
    "conv2d, groups",
    "transposed conv1d",
    "lstm",
    "gru",
    "transformer encoder",
    "embedding",
    "prelu",
    "tied",
]


@pytest.mark.parametrize("tangents", [JacobianRows(keep=12), Sketch(64)], ids=["rows", "sketch"])
@pytest.mark.parametrize("name", FITTED)
def test_a_fit_keeps_the_mean_to_the_bit_and_survives_its_file(name, tangents, tmp_path):
    network, inputs = rows_of(name)
    with torch.no_grad():
        expected = network(*(inputs if isinstance(inputs, tuple) else (inputs,)))
    model = fitted(network, inputs, expected.shape[1], tangents=tangents)
    p = model.predict(inputs)
    assert torch.equal(p.mean, expected)
    assert bool((p.variance > 0).all())
    model.save(tmp_path / "model.trustgp")
    again = trustgp.load(tmp_path / "model.trustgp", network).predict(inputs)
    assert torch.equal(again.variance, p.variance)
    assert torch.equal(again.corrected.mean, p.corrected.mean)


def test_an_exact_sketch_gives_the_exact_error_bar():
    # more buckets than gradients, and a network of one layer: no two gradients of an output meet
    torch.manual_seed(0)
    network = (
        nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 1, 3, bias=False), nn.Flatten(0)).double().eval()
    )
    inputs = seeded(30, 3)
    alone = Patchwork(neighbours=0)  # which rows are borrowed depends on the number of columns
    exact, sketched = (
        fitted(network, inputs, 1, tangents=t, patchwork=alone) for t in (JacobianRows(), Sketch(16))
    )
    one, other = exact.predict(inputs), sketched.predict(inputs)
    torch.testing.assert_close(one.variance, other.variance, rtol=1e-6, atol=0)


def test_a_sketched_model_is_updated():
    network, inputs = rows_of("conv2d, groups", 60)
    targets = seeded(60, 2)
    options = {"tangents": Sketch(64), "progress": False}
    model = trustgp.fit(network, (inputs[:50], targets[:50]), num_experts=1, **options)
    model.update((inputs[50:], targets[50:]), progress=False)
    whole = trustgp.fit(network, (inputs, targets), num_experts=1, **options)
    one, other = (m.predict(inputs).plain.variance for m in (model, whole))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=0)  # tau is found by a search to 1e-6


def test_a_sketched_model_respects_its_budget(tmp_path):
    network, inputs = rows_of("gru", 80)
    with pytest.raises(ValueError, match="works is") as caught:
        fitted(network, inputs, tangents=Sketch(256), budget=1000)
    smallest = int(str(caught.value).split("works is ")[1].split(" bytes")[0])
    for budget in (smallest, 2 * smallest):
        model = fitted(network, inputs, tangents=Sketch(256), budget=budget)
        model.save(tmp_path / "model.trustgp")
        assert model.nbytes <= budget
        assert (tmp_path / "model.trustgp").stat().st_size <= budget


def test_a_sketched_fit_goes_on_from_its_checkpoint(tmp_path, assert_same_state):
    network, inputs = rows_of("gru", 60)
    options = {"tangents": Sketch(64), "num_experts": 3}
    first = fitted(network, inputs, checkpoint=tmp_path, **options)
    for kept in sorted(tmp_path.glob("expert-*"))[1:]:
        kept.unlink()
    assert_same_state(fitted(network, inputs, checkpoint=tmp_path, **options), first)
    with pytest.raises(ArtifactError, match="tangents"):
        fitted(network, inputs, checkpoint=tmp_path, **{**options, "tangents": Sketch(64, seed=1)})


@pytest.mark.parametrize("tangents", [JacobianRows(keep_per_expert=9), Sketch(64)], ids=["rows", "sketch"])
@pytest.mark.parametrize("experts", [1, 3])
def test_features_that_are_kept_during_the_fit_change_nothing(tangents, experts, monkeypatch, tmp_path):
    network, inputs = rows_of("gru", 80)
    options = {"tangents": tangents, "num_experts": experts, "memory": 2**40}
    kept = fitted(network, inputs, **options).predict(inputs)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("trustgp.fitting.plan.KEPT_FEATURES", 0)
    monkeypatch.setattr("trustgp.fitting.plan._available", lambda device: 0)
    monkeypatch.setattr("trustgp.fitting.plan.check_memory", lambda *given: None)
    listed, real = [], trustgp.fitting.solve.divide

    def divide(*given, **ways):
        listed.append((ways["known"] is not None, list(tmp_path.iterdir())))
        return real(*given, **ways)

    monkeypatch.setattr("trustgp.fitting.solve.divide", divide)
    mapped = fitted(network, inputs, **{**options, "memory": None}).predict(inputs)
    assert listed == [(True, [])]  # in a file without a name
    torch.testing.assert_close(kept.variance, mapped.variance, rtol=0, atol=0)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: Full)
    with pytest.warns(UserWarning, match=r"room for 0 B: they are made about three times. Let TMPDIR name"):
        made_again = fitted(network, inputs, **{**options, "memory": None}).predict(inputs)
    assert listed[1] == (False, [])
    # rows are made in other batches, and tau is found by a search to 1e-6
    torch.testing.assert_close(kept.variance, made_again.variance, rtol=1e-5, atol=0)


class Full:
    free = 1000


@pytest.mark.parametrize("name", ["gru", "conv2d, groups"])
def test_nothing_of_a_model_stays_when_it_goes(name):
    network, inputs = rows_of(name, 60)
    model = fitted(network, inputs, tangents=Sketch(64), num_experts=2)
    model.predict(inputs[:5])
    held = [weakref.ref(value) for value in model.network.parameters()]
    del model
    gc.collect()
    assert not any(one() is not None for one in held)


def rows_made(monkeypatch, **options) -> int:
    """Rows whose sketch a fit makes."""
    network, inputs = rows_of("gru", 80)
    made = []
    sketch = SketchMap._made
    monkeypatch.setattr(SketchMap, "_made", lambda self, some: made.append(count(some)) or sketch(self, some))
    fitted(network, inputs, tangents=Sketch(4096), num_experts=3, **options)
    return sum(made)


def test_a_row_is_sketched_once_in_a_fit_but_for_the_probe(monkeypatch):
    assert rows_made(monkeypatch) <= 80 + 2 * 64


def test_features_are_not_kept_where_the_memory_is_not_there(monkeypatch):
    network, inputs = rows_of("gru", 80)
    with pytest.raises(MemoryError) as caught:
        fitted(network, inputs, tangents=Sketch(4096), num_experts=3, memory=1000)
    needed = float(str(caught.value).split("up to ")[1].split(" MiB")[0]) * 2**20
    # to a tenth of a MiB; the features of 80 rows would take 2.5 MiB more
    assert rows_made(monkeypatch, memory=int(needed + 2**20)) > 80 + 2 * 64


def test_groups_and_validation_work_with_a_sketch():
    network, inputs = rows_of("transformer encoder", 60)
    fitted(network, inputs, tangents=Sketch(64), groups=torch.arange(60) // 10)
    held = (inputs[:20], seeded(20, 2))
    assert fitted(network, inputs, tangents=Sketch(64), validation=held).num_experts >= 2


# What is chosen, and that it is said.


def wide():
    return Head(nn.Conv2d(2, 32, 3), nn.ReLU(), nn.Conv2d(32, 16, 3), channels=16).double().eval()


@pytest.mark.parametrize(
    ("build", "shape", "chosen", "why"),
    [
        (
            lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
            (3,),
            JacobianRows(),
            "only 26 gradients",
        ),
        (lambda: Head(nn.Conv2d(2, 4, 3), channels=4), (2, 6, 6), JacobianRows(), "only 86 gradients"),
        (wide, (2, 6, 6), Sketch(512), "a row has 5266 gradients"),
    ],
)
def test_what_is_chosen_is_said_with_its_memory_and_time(build, shape, chosen, why, caplog):
    torch.manual_seed(0)
    with caplog.at_level(logging.INFO, logger="trustgp"):
        model = fitted(build().double().eval(), seeded(30, *shape))
    assert model.origin.tangents == chosen
    first, second, outputs = (record.message for record in caplog.records[:3])
    assert type(chosen).__name__ in first
    assert why in first
    assert "backward pass" in outputs
    assert "the fit needs at most about" in second
    assert " s." in second


# Networks that return more than a tensor.

SELECTORS = {
    "tuple": lambda result: result[1],
    "dict": lambda result: result["logits"],
    "object": lambda result: result.logits,
}


@pytest.mark.parametrize("kind", SELECTORS)
def test_the_output_is_selected_by_a_function_and_stays_the_networks_to_the_bit(kind, tmp_path):
    torch.manual_seed(0)
    network = Wrapped(kind).double().eval()
    inputs, select = seeded(30, 1, 3), SELECTORS[kind]
    model = fitted(network, inputs, output=select)
    p = model.predict(inputs)
    with torch.no_grad():
        assert torch.equal(p.mean, select(network(inputs)))
    assert not network._forward_hooks
    plain = nn.Sequential(network.conv, nn.Tanh(), nn.Flatten(), network.last)
    expected = fitted(plain, inputs).predict(inputs)
    torch.testing.assert_close(p.variance, expected.variance, rtol=1e-6, atol=0)
    model.save(tmp_path / "model.trustgp")
    again = trustgp.load(tmp_path / "model.trustgp", network, output=select)
    assert torch.equal(again.predict(inputs).variance, p.variance)
    again.update((inputs[:3] + 1, seeded(3, 2)), train=_train(inputs), progress=False)


def _train(inputs):
    return inputs, torch.randn(
        len(inputs), 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )


def test_a_network_that_returns_something_else_is_told_of_output():
    for kind in SELECTORS:
        network = Wrapped(kind).double().eval()
        with pytest.raises(ValueError, match="output="):
            fitted(network, seeded(30, 1, 3))


def test_an_output_that_is_no_tensor_is_refused():
    network = Wrapped("object").double().eval()
    with pytest.raises(ValueError, match="must select a tensor"):
        fitted(network, seeded(30, 1, 3), output=lambda result: [result.logits])
    with pytest.raises(TypeError, match="a function of what the network returns"):
        fitted(network, seeded(30, 1, 3), output="logits")


def test_a_file_of_a_selected_output_needs_the_function_and_another_refuses_it(tmp_path):
    torch.manual_seed(0)
    network, inputs = Wrapped("dict").double().eval(), seeded(30, 1, 3)
    fitted(network, inputs, output=SELECTORS["dict"]).save(tmp_path / "selected.trustgp")
    with pytest.raises(ArtifactError, match="output="):
        trustgp.load(tmp_path / "selected.trustgp", network)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(3, 2)).double().eval()
    fitted(plain, inputs).save(tmp_path / "plain.trustgp")
    with pytest.raises(ArtifactError, match="without output="):
        trustgp.load(tmp_path / "plain.trustgp", plain, output=SELECTORS["dict"])


def test_a_checkpoint_of_another_selected_output_is_refused(tmp_path):
    torch.manual_seed(0)
    network, inputs = Wrapped("dict").double().eval(), seeded(30, 1, 3)
    fitted(network, inputs, output=SELECTORS["dict"], checkpoint=tmp_path)
    fitted(network, inputs, output=SELECTORS["dict"], checkpoint=tmp_path)
    with pytest.raises(ArtifactError, match="output"):
        fitted(network, inputs, output=lambda result: result["hidden"][:, :2], checkpoint=tmp_path)


# Half precision.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "build",
    [
        lambda: (Head(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(True), channels=8), (2, 6, 6)),
        lambda: (LastStep(nn.GRU(3, 6, batch_first=True), 6), (4, 3)),
        lambda: (Encoder(), (4, 3)),
        lambda: (nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)), (3,)),
    ],
    ids=["convolution", "gru", "transformer", "mlp"],
)
def test_a_half_precision_network_keeps_its_mean_and_has_float32_tangents(build, dtype, tmp_path):
    torch.manual_seed(0)
    network, shape = build()
    network, inputs = network.eval().to(dtype), seeded(40, *shape).to(dtype)
    model = fitted(network, inputs)
    p = model.predict(inputs)
    with torch.no_grad():
        assert torch.equal(p.mean, network(inputs))
    assert p.mean.dtype == dtype
    tangents = model.mixtures[0].tangents
    features = tangents(inputs[:5])
    assert all(value.dtype == torch.float32 for value in features.tensors().values())
    exact = dense_gram(dense_jacobian(network, inputs[:5]), tangents.mix)
    if not isinstance(model.origin.tangents, Sketch):
        # the same weights, which are exact in float64, computed with in float32
        torch.testing.assert_close(features.gram(features), exact, rtol=1e-4, atol=1e-4 * float(exact.max()))
    model.save(tmp_path / "model.trustgp")
    again = trustgp.load(tmp_path / "model.trustgp", network).predict(inputs)
    assert torch.equal(again.variance, p.variance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
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
    assert bool((lower < p.mean.float()).all())
    assert bool((p.mean.float() < upper).all())
    # the same network in float64 has the same error bar, to the precision of the float32 tangents
    wide = trustgp.fit(network.double(), (inputs.double(), targets), num_experts=1, progress=False)
    torch.testing.assert_close(p.std.double(), wide.predict(inputs.double()).std, rtol=0.1, atol=0)


def test_the_float32_twin_of_a_half_network_follows_it_to_another_place():
    network = TangentNetwork(nn.Linear(2, 1).half(), ["weight", "bias"])
    twin = network.float32_module
    assert twin.weight.dtype == torch.float32
    assert network.float32_module is twin
    assert network.module.weight.dtype == torch.float16
    assert torch.equal(twin.weight, network.module.weight.float())
