import math

import pytest
import torch
from many import Many
from reference import dense_gram, dense_jacobian
from torch import Tensor, nn
from zoo import make, portions, seeded

from trustgp.tangents import Sketch, output_mixes
from trustgp.tangents import sketch as hashing
from trustgp.tangents.jacobian import strategies as passes
from trustgp.tangents.network import TangentNetwork, prepare
from trustgp.tangents.sketch import SketchMap, Tables

# vmap says which operations it takes one row at a time
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:Using padding='same'")


def bound(network, inputs, sketch, outputs="shared"):
    prepared = prepare(network, sketch.choose(network), None)
    num_outputs = prepared.matrix(inputs).shape[1]
    mix, _ = output_mixes(outputs, num_outputs, torch.Generator().manual_seed(3))[-1]
    return sketch.bind(prepared, mix, inputs, torch.zeros(len(mix), num_outputs)), mix


def by_definition(jacobian: Tensor, mix: Tensor, network: TangentNetwork, tables: Tables) -> Tensor:
    """Every entry of every gradient to its bucket, one after another, [n, D]."""
    mixed = torch.einsum("kc,ncp->nkp", mix, jacobian)
    found = torch.zeros(len(jacobian), tables.dim, dtype=torch.float64)
    start = 0
    for name, value in network.parameters.items():
        first = value.shape[0] if value.ndim else 1
        left, right = tables.left[name], tables.right[name]
        for p in range(value.numel()):
            i, j = divmod(p, value.numel() // first)
            for k in range(len(mix)):
                bucket = int(left.place[i] + right.place[j] + tables.mixed.place[k]) % tables.dim
                sign = float(left.sign[i] * right.sign[j] * tables.mixed.sign[k])
                found[:, bucket] += sign * mixed[:, k, start + p]
        start += value.numel()
    return found


HOW = {"by spectra": 0, "written out": 10**9}  # what a spectrum is said to cost


@pytest.mark.parametrize("names", portions(16), ids=lambda names: names[0])
def test_a_sketch_is_its_definition_however_it_is_made(names, monkeypatch):
    with Many() as check:
        for name in names:
            network, inputs = make(name)
            tangents, mix = bound(network, inputs, Sketch(37))
            expected = by_definition(dense_jacobian(network, inputs), mix, tangents.network, tangents.tables)
            for how, spectrum in HOW.items():
                monkeypatch.setattr(hashing, "SPECTRUM", spectrum)
                with check(name, how):
                    torch.testing.assert_close(tangents(inputs).rows, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["conv2d, groups", "transposed conv1d", "embedding", "gru", "mlp"])
def test_every_treatment_of_the_outputs_follows_the_definition(name):
    network, inputs = make(name) if name != "mlp" else (mlp(), seeded(5, 3))
    jacobian = dense_jacobian(network, inputs)
    with Many() as check:
        for outputs in ("shared", "separate", "pseudo"):
            with check(outputs):
                tangents, mix = bound(network, inputs, Sketch(64), outputs)
                expected = by_definition(jacobian, mix, tangents.network, tangents.tables)
                torch.testing.assert_close(tangents(inputs).rows, expected, rtol=1e-10, atol=1e-10)


def mlp(width=12):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2)).double().eval()


class Fan:
    """Hands every gradient to many collectors: one pass through the network serves them all."""

    def __init__(self, collectors):
        self.collectors = collectors

    def part(self, rows, mixed):
        return Fan([collector.part(rows, mixed) for collector in self.collectors])

    def room(self, size):
        return max(collector.room(size) for collector in self.collectors)

    def __getattr__(self, name):
        return lambda *given: [getattr(collector, name)(*given) for collector in self.collectors]


def kernels(name, dim, seeds, spectrum, monkeypatch) -> tuple[Tensor, Tensor]:
    """Kernels of sketches with many seeds [s, n, n], and the exact one."""
    monkeypatch.setattr(hashing, "SPECTRUM", spectrum)
    network, inputs = make(name)
    first, mix = bound(network, inputs, Sketch(dim))
    maps = [SketchMap(first.gradients, Sketch(dim, seed=s), first.working_bytes()) for s in range(seeds)]
    fan = Fan([one.collector(len(dense_jacobian(network, inputs))) for one in maps])
    first.gradients(inputs, fan)
    rows = torch.stack(fan.rows())
    assert torch.equal(rows[3], maps[3](inputs).rows)
    return rows @ rows.mT, dense_gram(dense_jacobian(network, inputs), mix)


@pytest.mark.parametrize("name", ["conv2d, groups", "lstm", "embedding"])
def test_the_kernel_of_a_sketch_is_unbiased(name, monkeypatch):
    with Many() as check:
        for how, spectrum in HOW.items():
            found, exact = kernels(name, 16, 150, spectrum, monkeypatch)
            spread = found.std(dim=0) / math.sqrt(len(found))
            with check(how):
                # 25 means of 150 draws: the largest of them strays by 4 standard errors once in 600 times
                assert float(((found.mean(dim=0) - exact).abs() / spread).max()) < 4.0


def test_the_error_of_the_kernel_falls_as_one_over_the_root_of_the_dimension(monkeypatch):
    errors = []
    for dim in (16, 64, 256):
        found, exact = kernels("conv2d, groups", dim, 60, hashing.SPECTRUM, monkeypatch)
        errors.append(float((found - exact).square().mean().sqrt()))
    # a factor of 2 each; of 60 x 25 correlated draws the ratio is known to about a quarter
    assert 1.5 < errors[0] / errors[1] < 2.7
    assert 1.5 < errors[1] / errors[2] < 2.7


def test_the_same_seed_gives_the_same_sketch_and_another_another():
    network, inputs = make("conv2d, groups")
    one, again, other = (bound(network, inputs, Sketch(64, seed=s))[0](inputs).rows for s in (3, 3, 4))
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)


def test_a_restored_map_gives_the_same_sketches():
    network, inputs = make("conv2d, groups")
    sketch = Sketch(64, seed=5)
    tangents, _ = bound(network, inputs, sketch)
    again = Sketch(**sketch.settings()).restore(tangents.network, tangents.state())
    assert torch.equal(again(inputs).rows, tangents(inputs).rows)
    assert again.working_bytes() == tangents.working_bytes()


def test_neither_the_state_nor_the_tables_grow_with_the_parameters():
    network, inputs = mlp(width=3000), seeded(4, 3)  # 18,002 parameters
    tangents, mix = bound(network, inputs, Sketch(64))
    assert sum(value.numel() for value in tangents.state().values()) == mix.numel() + 1
    tables = [*tangents.tables.left.values(), *tangents.tables.right.values()]
    # first and other dimensions of: [3000, 3], [3000], [2, 3000], [2]
    assert sum(len(table.place) for table in tables) == 3003 + 3001 + 3002 + 3


@pytest.mark.parametrize(
    "name", ["conv2d, groups", "gru", "embedding", "open parameters", "tied, transposed"]
)
def test_small_chunks_and_a_small_workspace_give_the_same_sketches(name, monkeypatch):
    network, inputs = make(name)
    tangents, _ = bound(network, inputs, Sketch(64))
    whole = tangents(inputs).rows
    monkeypatch.setattr("trustgp.tangents.sketch.working_set", lambda _: tangents.working_bytes())
    for module in (passes, hashing):
        monkeypatch.setattr(module, "WORKSPACE", 1)
    monkeypatch.setattr(hashing, "ENTRIES", 1)
    torch.testing.assert_close(tangents(inputs).rows, whole, rtol=1e-10, atol=1e-12)
    monkeypatch.setattr(hashing, "SPECTRUM", 0)
    torch.testing.assert_close(tangents(inputs).rows, whole, rtol=1e-10, atol=1e-12)


def test_more_mixed_outputs_than_stand_side_by_side_give_the_same_sketches(monkeypatch):
    network, inputs = make("conv2d, groups")
    tangents, _ = bound(network, inputs, Sketch(64))
    whole = tangents(inputs).rows
    monkeypatch.setattr(passes, "MIXED", 1)
    torch.testing.assert_close(tangents(inputs).rows, whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dense", [False, True])
def test_bucket_sums_are_those_of_a_loop(dense):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(4, 30, generator=generator, dtype=torch.float64)
    place = torch.randint(0, 7, (30,), generator=generator)
    sign = torch.randint(0, 2, (30,), generator=generator).double() * 2 - 1
    expected = torch.zeros(4, 8, dtype=torch.float64)
    for row in range(4):
        for column in range(30):
            expected[row, place[column]] += sign[column] * values[row, column]
    found = hashing.bucket_sums(values, place, sign, 8, dense=dense)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_gpus_way_to_sum_buckets_gives_the_same_sketches(monkeypatch):
    network, inputs = make("conv2d, groups")
    tangents, _ = bound(network, inputs, Sketch(64))
    monkeypatch.setattr(hashing, "SPECTRUM", 0)  # spectra for every layer
    sparse, summed = tangents(inputs).rows, hashing.bucket_sums
    asked = []

    def by_product(*arguments, dense):
        asked.append(dense)
        return summed(*arguments, dense=True)

    monkeypatch.setattr(hashing, "bucket_sums", by_product)
    torch.testing.assert_close(tangents(inputs).rows, sparse, rtol=1e-10, atol=1e-12)
    assert asked
    assert not any(asked)  # on a CPU


def test_no_bucket_is_used_twice_before_all_are_used():
    buckets = hashing.Buckets.draw(100, 32, torch.Generator().manual_seed(0))
    for start in (0, 32, 64):
        assert sorted(buckets.place[start : start + 32].tolist()) == list(range(32))
    assert len(buckets.place[96:].unique()) == 4
    assert set(buckets.sign.tolist()) == {-1, 1}


def test_widths_and_bytes_are_what_the_rows_take():
    network, inputs = make("conv2d, groups")
    tangents, _ = bound(network, inputs, Sketch(64))
    made = tangents(inputs).rows
    assert made.shape == (5, 64)
    assert tangents.num_columns(expert=False) == tangents.num_columns(expert=True) == 64
    assert tangents.row_bytes() * 5 == made.numel() * made.element_size()
    assert tangents.columns(inputs).numel() == 0


@pytest.mark.parametrize("dim", [0, 15, 100.0])
def test_an_impossible_dimension_is_refused(dim):
    with pytest.raises(ValueError, match="at least 16"):
        Sketch(dim)


def test_chosen_parameters_alone_are_sketched():
    network, inputs = make("conv2d, groups")
    tangents, mix = bound(network, inputs, Sketch(64, parameters="last"))
    names = ["last.weight", "last.bias"]
    assert list(tangents.network.names) == names
    jacobian = dense_jacobian(network, inputs, names)
    expected = by_definition(jacobian, mix, tangents.network, tangents.tables)
    torch.testing.assert_close(tangents(inputs).rows, expected, rtol=1e-10, atol=1e-10)
