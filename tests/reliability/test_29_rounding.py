"""Promise 29: rounding of another algorithm is accepted; a network that mixes rows is refused."""

import pytest
import torch
from many import each
from pairwise import every_pair
from torch import nn
from zoo import Net

from trustgp.tangents.network import check_network

DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def after(change):
    """A small network with a change of its hidden rows [n, 16]."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        parts = {"first": nn.Linear(5, 16), "last": nn.Linear(16, 3), "change": change}
    return Net(lambda net, x: net.last(net.change(torch.tanh(net.first(x)))), **parts)


def rows(n, dtype):
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(1)).to(dtype)


def attention(hidden):
    """Across the rows."""
    return nn.functional.scaled_dot_product_attention(hidden[None], hidden[None], hidden[None])[0]


MIXING = {
    "batch statistics": lambda h: nn.functional.batch_norm(h, None, None, training=True),
    "attention across rows": attention,
    "mean subtracted": lambda h: h - h.mean(dim=0),
    "a little of the mean": lambda h: h + 0.02 * h.mean(dim=0),
    "number of rows": lambda h: h / len(h),
    "softmax over rows": lambda h: h.softmax(dim=0),
    "largest of the batch": lambda h: h / h.abs().amax(),
    "next row": lambda h: h + 0.1 * h.roll(1, 0),
    "later rows": lambda h: h.flip(0).cumsum(0).flip(0),
    "batch statistics in eval mode": nn.BatchNorm1d(16, track_running_stats=False),
}


@each(("name", "n", "dtype"), every_pair([*MIXING], (2, 64), DTYPES))
def test_a_network_that_mixes_rows_is_refused(name, n, dtype):
    with pytest.raises(ValueError, match="depends on the other rows"):
        check_network(after(MIXING[name]).to(dtype).eval(), rows(n, dtype))


def test_a_network_that_uses_the_number_of_rows_is_refused_with_equal_rows():
    equal = rows(1, torch.float32).expand(8, -1)
    with pytest.raises(ValueError, match="depends on the other rows"):
        check_network(after(MIXING["number of rows"]).eval(), equal)


def noise(h, seed, size):
    return size * torch.randn(h.shape, generator=torch.Generator().manual_seed(seed)).to(h.dtype)


@each(("n", "size", "dtype"), every_pair((1, 2, 64), (1e-4, 1e-3), DTYPES))
def test_an_algorithm_that_the_batch_size_chooses_is_not_refused(n, size, dtype):
    """As cuDNN in TF32: other rounding, the same for the same number of rows."""
    network = after(lambda h: h + noise(h, len(h), size)).to(dtype).eval()
    assert check_network(network, rows(n, dtype)).shape == (n, 3)


def test_sums_in_another_order_each_time_are_not_refused():
    calls = iter(range(100))
    network = after(lambda h: h + noise(h, next(calls), 1e-6)).eval()
    assert check_network(network, rows(64, torch.float32)).shape == (64, 3)


SAMPLING = {
    "dropout": lambda h: nn.functional.dropout(h, 0.1),
    "noise": lambda h: h + 0.1 * torch.randn_like(h),
}


@each(("name", "n", "dtype"), every_pair([*SAMPLING], (1, 64), DTYPES))
def test_a_network_that_samples_is_refused(name, n, dtype):
    torch.manual_seed(0)  # with another the few numbers of a single row may be equal twice
    with pytest.raises(ValueError, match="deterministic"):
        check_network(after(SAMPLING[name]).to(dtype).eval(), rows(n, dtype))
