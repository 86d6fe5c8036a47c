"""Networks of every kind on a GPU: the same gradients and sketches as on the CPU."""

import pytest
import torch
from many import Many
from reference import dense_jacobian, dense_rows
from tangents.binding import bound
from zoo import NETWORKS, make, seeded

import trustgp
from trustgp.tangents import JacobianRows, Sketch

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:Using padding='same'"),
]
# torch's own kernel of these is off by so much on a GPU, in float64 (2.11)
ROUGH = {"weight norm": 1e-6}
# torch has no gradient for a packed sequence on a GPU in eval mode
THERE = [name for name in NETWORKS if name != "lstm, packed"]


def test_gradients_pseudo_targets_and_sketches_on_cuda_are_those_of_the_cpu():
    with Many() as check:
        for name in THERE:
            network, inputs = make(name)
            jacobian, rough = dense_jacobian(network, inputs), ROUGH.get(name, 1e-10)
            with check(name, "rows"):
                tangents, mix = bound(network, inputs, JacobianRows(), device="cuda")
                expected = dense_rows(jacobian, mix)
                torch.testing.assert_close(tangents(inputs).rows.cpu(), expected, rtol=rough, atol=rough)
            with check(name, "pseudo-targets"):
                theta = torch.cat([value.flatten().cpu() for value in tangents.network.parameters.values()])
                linear = tangents.network.directional(inputs, tangents.network.parameters).cpu()
                torch.testing.assert_close(linear, jacobian @ theta, rtol=rough, atol=rough)
            with check(name, "sketch"):
                maps = (bound(network, inputs, Sketch(64), device=d)[0] for d in ("cpu", "cuda"))
                here, there = (one(inputs).rows.cpu() for one in maps)
                torch.testing.assert_close(there, here, rtol=rough, atol=rough)


def test_a_recurrent_network_on_cuda_has_forward_mode():
    """Otherwise J theta takes a backward pass for each row and output."""
    network, inputs = make("gru")
    tangents, _ = bound(network, inputs, Sketch(64), device="cuda")
    tangents(inputs)
    assert tangents.network.forward_mode
    assert tangents.slow_reason == ""


SHAPES = {"conv2d, groups": (2, 6, 6), "gru": (4, 3)}


@pytest.mark.parametrize(("name", "dtype"), [("conv2d, groups", torch.bfloat16), ("gru", torch.float16)])
def test_a_half_precision_network_on_cuda_keeps_its_mean(name, dtype):
    network, inputs = make(name)[0].to("cuda", dtype), seeded(40, *SHAPES[name]).to("cuda", dtype)
    p = trustgp.fit(network, (inputs, seeded(40, 2)), num_experts=1, progress=False).predict(inputs)
    with torch.no_grad():
        assert torch.equal(p.mean, network(inputs))
    assert p.std.dtype == torch.float32
    assert bool((p.std > 0).all())
