"""The same model on a GPU: fit there, move, save and load across devices."""

import pytest
import torch
from pairwise import every_pair
from torch import nn

import trustgp
from trustgp.data.quantities import parse_bytes
from trustgp.tangents.chain import product_kernel

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(400, 3, generator=generator)
    targets = torch.stack([inputs.sum(1).sin(), inputs[:, 0] * inputs[:, 1]], dim=1)
    targets = targets + 0.1 * torch.randn(targets.shape, generator=generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2)).double()
    return network.eval(), inputs.double(), targets.double()


OUTPUTS = ["shared", "separate", "pseudo"]


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("tangents", [trustgp.LayerFactors(), trustgp.JacobianRows(keep=100)])
def test_a_fit_on_cuda_equals_one_on_the_cpu(outputs, tangents):
    network, inputs, targets = problem()
    options = {"num_experts": 3, "outputs": outputs, "tangents": tangents, "progress": False}
    here = trustgp.fit(network, (inputs, targets), **options).predict(inputs[:50])
    there = trustgp.fit(network, (inputs, targets), device="cuda", **options).predict(inputs[:50])
    assert there.mean.device.type == "cuda"
    torch.testing.assert_close(there.mean.cpu(), here.mean)
    # rounding of other BLAS libraries, enlarged by the search over tau
    torch.testing.assert_close(there.variance.cpu(), here.variance, rtol=1e-3, atol=0)


@pytest.mark.parametrize("kind", ["plain", "groups", "validation"])
def test_a_witness_of_several_cells_is_the_same_on_cuda(kind):
    network, inputs, targets = problem()
    every = {"groups": torch.arange(300) // 20, "validation": (inputs[300:], targets[300:])}
    options = {"num_experts": 2, "witness": trustgp.Witness(rows=60), "progress": False}
    options |= {kind: every[kind]} if kind in every else {}
    train = inputs[:300], targets[:300]
    models = [trustgp.fit(network, train, device=device, **options) for device in ("cpu", "cuda")]
    here, there = (model.witness for model in models)
    assert there.rows.tolist() == here.rows.tolist()
    one, other = (witness(inputs.to(witness.floor.device)) for witness in (here, there))
    # rounding of other BLAS libraries, enlarged by the condition of K + tau I
    torch.testing.assert_close(other.mean.cpu(), one.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(other.precision.cpu(), one.precision, rtol=1e-4, atol=1e-9)
    one, other = (model.predict(inputs).corrected for model in models)
    torch.testing.assert_close(other.mean.cpu(), one.mean, rtol=1e-3, atol=1e-3)
    if kind != "groups":
        models[1].update((inputs[300:320], targets[300:320]), progress=False)
        assert bool((models[1].predict(inputs).variance > 0).all())


def test_predictions_survive_a_move_and_a_file_across_devices(tmp_path):
    network, inputs, targets = problem()
    model = trustgp.fit(network, (inputs, targets), num_experts=3, device="cuda", progress=False)
    assert {p.device.type for p in network.parameters()} == {"cpu"}  # the user's stays
    before = model.predict(inputs[:50])
    model.save(tmp_path / "arm.trustgp")
    loaded = trustgp.load(tmp_path / "arm.trustgp", network)
    assert loaded.device.type == "cpu"
    for other in (loaded, loaded.to("cuda"), model.to("cpu")):
        after = other.predict(inputs[:50])
        # 1e-6: the two devices round differently, and the variance is a difference near the data
        torch.testing.assert_close(after.variance.cpu(), before.variance.cpu(), rtol=1e-6, atol=1e-12)


def test_a_network_on_cuda_takes_rows_from_the_cpu_and_updates():
    network, inputs, targets = problem()
    network = network.cuda()
    model = trustgp.fit(network, (inputs[:300], targets[:300]), num_experts=3, progress=False)
    assert model.update((inputs[300:], targets[300:]))
    prediction = model.predict(inputs[:50])
    assert torch.equal(prediction.mean, network(inputs[:50].cuda()).detach())
    assert bool((prediction.variance > 0).all())


@pytest.mark.parametrize("tangents", [trustgp.LayerFactors(), trustgp.Sketch(512)])
def test_the_peak_of_a_fit_stays_below_its_estimate(tangents, caplog):
    network, few, targets = problem()
    network.cuda()
    options = {"tangents": tangents, "witness": None, "progress": False}
    trustgp.fit(network, (few, targets), **options)  # loads libraries and workspaces
    inputs = torch.randn(20_000, 3, dtype=torch.float64)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with caplog.at_level("INFO", logger="trustgp"):
        trustgp.fit(network, (inputs, inputs[:, :2].sin()), num_experts=8, **options)
    peak = torch.cuda.max_memory_allocated() - before
    stated = next(text for text in caplog.messages if "needs at most" in text)
    assert peak <= parse_bytes(stated.split("at most about ")[1].split(" beside")[0], name="stated")


KINDS = [trustgp.LayerFactors(), trustgp.Sketch(64)], [trustgp.Witness(), None]


@pytest.mark.parametrize(("outputs", "tangents", "witness"), every_pair(OUTPUTS, *KINDS))
def test_a_traced_graph_gives_the_same_on_cuda(outputs, tangents, witness):
    from trustgp.export import traced

    network, inputs, targets = problem()
    options = {"outputs": outputs, "tangents": tangents, "witness": witness, "progress": False}
    validation = (inputs[:100], targets[:100])
    model = trustgp.fit(network.cuda(), (inputs, targets), num_experts=3, validation=validation, **options)
    here = inputs[:7].cuda()
    result, expected = traced(model, here)(here), model.predict(here)
    torch.testing.assert_close(result["mean"], expected.mean)
    torch.testing.assert_close(result["variance"], expected.variance, rtol=1e-4, atol=0)


@pytest.mark.parametrize(("mixed", "dtype"), [(1, torch.float64), (3, torch.float32), (8, torch.float64)])
def test_sums_of_products_in_one_kernel_are_those_of_plain_indexing(mixed, dtype):
    sums = product_kernel(dtype, torch.device("cuda", 0))
    assert sums is not None, "Triton comes with torch for CUDA"
    generator = torch.Generator().manual_seed(0)
    for n, lines, dim in ((1, 1, 1), (5, 3, 200), (130, 16, 512)):
        given = torch.randn(n, 40, generator=generator, dtype=torch.float64)
        back = torch.randn(mixed, n, 30, generator=generator, dtype=torch.float64)
        right = torch.randint(40, (lines, dim), generator=generator)
        left = torch.randint(30, (lines, dim), generator=generator)
        signs = torch.randint(-1, 2, (lines, dim), generator=generator).double()
        expected = (signs * given[:, right] * back[:, :, left]).sum(dim=2).transpose(0, 1)
        tables = (right.int().cuda(), left.int().cuda(), signs.to("cuda", dtype))
        made = sums(given.to("cuda", dtype), back.to("cuda", dtype), *tables)
        close = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(made.cpu().double(), expected, **close)
