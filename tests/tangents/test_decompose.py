"""Fused operations as compositions, private copies, and pruning, against torch itself."""

import torch
import torch.nn.functional as F
from many import Many
from tangents.binding import assert_close
from torch import nn
from zoo import make, seeded

from trustgp.tangents.decompose import PLAIN, Unfused, attention, prelu, weight_norm
from trustgp.tangents.modules import clone_module

RECURRENT = (
    *("lstm", "lstm, sequence first, both ways", "lstm, projected, without bias", "gru", "rnn", "rnn, relu"),
    "recurrent cells",
)


def test_recurrent_layers_step_by_step_give_the_same():
    with Many() as check, torch.no_grad():
        for name in RECURRENT:
            network, inputs = make(name)
            expected = network(inputs)
            with check(name), Unfused(PLAIN):
                assert_close(network(inputs), expected)


def test_every_result_of_a_recurrent_layer_is_the_same():
    torch.manual_seed(0)
    layer = nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2, batch_first=True).double().eval()
    inputs, start = seeded(5, 6, 3), (seeded(4, 5, 2), seeded(4, 5, 4))
    expected, (hidden, cell) = layer(inputs, start)
    with Unfused(PLAIN):
        result, (last, last_cell) = layer(inputs, start)
    for one, other in ((result, expected), (last, hidden), (last_cell, cell)):
        assert_close(one, other)


def test_attention_is_torchs():
    query, key, value = seeded(2, 4, 3, 5), seeded(2, 4, 6, 5) + 1, seeded(2, 4, 6, 7)
    grouped = [x[:, :2] for x in (key, value)]
    mask = seeded(3, 6) > -0.5
    mask[:, 0] = True  # a row without keys has no output
    sdpa = F.scaled_dot_product_attention
    assert_close(attention(query, key, value), sdpa(query, key, value))
    assert_close(attention(query, key, value, mask), sdpa(query, key, value, mask))
    assert_close(attention(query, key, value, seeded(3, 6)), sdpa(query, key, value, seeded(3, 6)))
    assert_close(attention(query, key, value, scale=0.3), sdpa(query, key, value, scale=0.3))
    assert_close(attention(key, key, value, is_causal=True), sdpa(key, key, value, is_causal=True))
    assert_close(attention(query, *grouped, enable_gqa=True), sdpa(query, *grouped, enable_gqa=True))
    assert attention(query, key, value, dropout_p=0.5) is None  # torch's own is called


def test_prelu_and_weight_norm_are_torchs():
    inputs = seeded(2, 3, 4)
    for weight in (seeded(3), seeded(1)):
        assert_close(prelu(inputs, weight), F.prelu(inputs, weight))
    for dim in (0, 1, 2):
        gain = seeded(*[size if d == dim else 1 for d, size in enumerate(inputs.shape)])
        assert_close(weight_norm(inputs, gain, dim), torch._weight_norm(inputs, gain, dim))


def test_a_clone_shares_only_the_given_tensors():
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()
    network[0].kept = network[0].weight * 2  # part of a graph, which deepcopy refuses
    clone = clone_module(network, [network[0].bias])
    assert clone[0].bias is network[0].bias
    assert clone[0].weight is not network[0].weight
    assert torch.equal(clone[0].weight, network[0].weight)
    assert torch.equal(clone[0].kept, network[0].kept)
    assert clone[0].kept.grad_fn is None
