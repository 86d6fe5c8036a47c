"""Networks of every kind on a GPU: the same gradients and sketches as on the CPU."""

import pytest
import torch
from reference import dense_jacobian, dense_rows
from zoo import NETWORKS, make

from trustgp.data import count
from trustgp.tangents import JacobianRows, Sketch, output_mixes
from trustgp.tangents.network import prepare

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:Using padding='same'"),
]
# torch has no gradient for a packed sequence on a GPU in eval mode
THERE = [name for name in NETWORKS if name != "lstm, packed"]


def bound(network, inputs, tangents, device):
    prepared = prepare(network, tangents.choose(network), torch.device(device))
    mix, _ = output_mixes("shared", prepared.matrix(inputs).shape[1], torch.Generator())[0]
    return tangents.bind(prepared, mix, inputs, torch.zeros(count(inputs), mix.shape[1])), mix


@pytest.mark.parametrize("name", THERE)
def test_gradient_rows_on_cuda_are_those_of_a_plain_loop(name):
    network, inputs = make(name)
    tangents, mix = bound(network, inputs, JacobianRows(), "cuda")
    expected = dense_rows(dense_jacobian(network, inputs), mix)
    torch.testing.assert_close(tangents(inputs).rows.cpu(), expected, rtol=1e-10, atol=1e-10)
    theta = torch.cat([value.flatten().cpu() for value in tangents.network.parameters.values()])
    found = tangents.network.directional(inputs, tangents.network.parameters)
    torch.testing.assert_close(found.cpu(), dense_jacobian(network, inputs) @ theta, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", THERE)
def test_the_same_seed_gives_the_same_sketch_on_cuda(name):
    network, inputs = make(name)
    here, there = (bound(network, inputs, Sketch(64), device)[0](inputs).rows for device in ("cpu", "cuda"))
    torch.testing.assert_close(there.cpu(), here, rtol=1e-10, atol=1e-10)
