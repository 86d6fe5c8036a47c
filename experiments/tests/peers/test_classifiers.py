"""The peers of classification, on problems with known answers."""

import copy
import math
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from draws import normal
from reference import dense_jacobian
from torch import nn
from torch.nn.functional import cross_entropy
from zoo import Net

from trustgp.metrics import entropy
from trustgp_experiments.peers import LaplaceClassifier, cnn, train
from trustgp_experiments.peers.classifiers import DropoutClassifier, EnsembleClassifier, SoftmaxClassifier
from trustgp_experiments.peers.tuning import likeliest_temperature

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
laplace = pytest.mark.skipif(find_spec("laplace") is None, reason="laplace-torch is not installed")


def fixed(logits: torch.Tensor) -> nn.Module:
    """Logits that do not depend on the input, one set for each network."""
    return Net(lambda net, x: net.logits.expand(len(x), -1), logits=nn.Parameter(logits))


def images(n: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    """Small ones whose class is the brightest quarter."""
    pixels = normal(n, 1, 8, 8, seed=4)
    quarters = pixels.unfold(2, 4, 4).unfold(3, 4, 4).mean(dim=(4, 5)).flatten(1)
    return pixels, quarters.argmax(dim=1)


def small_cnn(**options) -> nn.Module:
    return cnn(size=8, channels=(3, 4), hidden=8, classes=4, **options).double().eval()


def peers(rows) -> dict:
    networks = [small_cnn(seed=seed) for seed in range(3)]
    return {
        "softmax": SoftmaxClassifier(networks[0]),
        "temperature": SoftmaxClassifier.fit(networks[0], rows),
        "ensemble": EnsembleClassifier.fit(networks, rows),
        "dropout": DropoutClassifier.fit(small_cnn(dropout=0.3), rows, samples=4, seed=1),
    }


def test_a_temperature_changes_no_class_and_the_network_as_it_is_has_one():
    pixels, labels = images()
    plain, warm = peers((pixels, labels))["softmax"], peers((pixels, labels))["temperature"]
    assert plain.temperature == 1.0
    assert warm.temperature != 1.0
    assert torch.equal(*(peer.predict(pixels).probabilities.argmax(dim=1) for peer in (plain, warm)))
    with torch.no_grad():
        expected = plain.network(pixels).softmax(dim=1)
    torch.testing.assert_close(plain.predict(pixels).probabilities, expected, rtol=1e-12, atol=0)
    assert plain.predict(pixels).score is None


def losses_of_members(logits: np.ndarray, labels: np.ndarray, temperatures: np.ndarray) -> list[float]:
    """Mean cost in nats at each temperature, written plainly: members [S, n, C], labels [n]."""
    losses = []
    for temperature in temperatures:
        powers = np.exp(logits / temperature - (logits / temperature).max(axis=2, keepdims=True))
        chances = (powers / powers.sum(axis=2, keepdims=True)).mean(axis=0)
        losses.append(float(-np.log(chances[np.arange(len(labels)), labels]).mean()))
    return losses


@pytest.mark.parametrize("members", [1, 4])
def test_the_temperature_of_members_is_the_likeliest_before_they_are_averaged(members):
    logits, labels = 2.0 * normal(members, 300, 5), torch.arange(300) % 5
    logits[:, torch.arange(300), labels] += 2.5
    found = likeliest_temperature(logits if members > 1 else logits[0], labels)
    fine = np.exp(np.linspace(np.log(0.2), np.log(20.0), 4001))
    losses = losses_of_members(logits.numpy(), labels.numpy(), fine)
    assert found == pytest.approx(fine[int(np.argmin(losses))], rel=2e-3)  # the step of the fine grid
    assert losses_of_members(logits.numpy(), labels.numpy(), np.array([found]))[0] <= min(losses) + 1e-9


def test_two_members_that_are_sure_of_different_classes_are_undecided_together():
    sure = torch.tensor([[30.0, 0.0], [0.0, 30.0]], dtype=torch.float64)
    found = EnsembleClassifier(tuple(fixed(row) for row in sure)).predict(torch.zeros(3, 2).double())
    torch.testing.assert_close(found.probabilities, torch.full((3, 2), 0.5).double(), rtol=0, atol=1e-12)
    # all that is not known is which member is right: one bit
    assert found.mutual_information.tolist() == pytest.approx([math.log(2)] * 3, rel=1e-9)
    torch.testing.assert_close(found.score, torch.full((3,), 225.0).double(), rtol=1e-12, atol=0)
    logits = normal(4, 3, seed=7)
    found = EnsembleClassifier(tuple(fixed(row) for row in logits)).predict(torch.zeros(1, 1).double())
    each = logits.softmax(dim=1)
    expected = entropy(each.mean(dim=0, keepdim=True)) - entropy(each).mean()
    torch.testing.assert_close(found.mutual_information, expected, rtol=1e-10, atol=0)


def test_what_cannot_be_asked_is_refused():
    (pixels, labels), network = images(), small_cnn()
    for call, match in (
        (lambda: EnsembleClassifier.fit([network], (pixels, labels)), "at least 2"),
        (lambda: DropoutClassifier.fit(small_cnn(dropout=0.1), (pixels, labels), samples=1), "samples=1"),
        (lambda: DropoutClassifier.fit(network, (pixels, labels)), "no dropout layer"),
        (lambda: SoftmaxClassifier.fit(network, (pixels, labels * 3)), r"in 0\.\.9; 0\.\.3 are allowed"),
        (lambda: SoftmaxClassifier.fit(network, (pixels, labels.double())), "class numbers are needed"),
    ):
        with pytest.raises(ValueError, match=match):
            call()


@pytest.mark.parametrize("name", ["softmax", "temperature", "ensemble", "dropout"])
def test_probabilities_add_up_are_repeatable_and_a_broken_row_breaks_no_other(name):
    pixels, labels = images()
    before = torch.get_rng_state()
    first, peer = (peers((pixels, labels))[name] for _ in range(2))
    broken = pixels[:9].clone()
    broken[4, 0, 2, 2] = torch.nan
    found, whole = peer.predict(broken), peer.predict(pixels[:9])
    assert torch.equal(first.predict(pixels[:9]).probabilities, whole.probabilities)
    assert torch.equal(torch.get_rng_state(), before)
    others = torch.arange(9) != 4
    assert found.valid.tolist() == others.tolist()
    torch.testing.assert_close(found.probabilities.sum(dim=1)[others], torch.ones(8).double())
    torch.testing.assert_close(found.probabilities[others], whole.probabilities[others])
    if found.score is not None:
        assert torch.isinf(found.score[4])
        assert torch.isfinite(found.score[others]).all()
        assert not found.mutual_information.isnan().any()


def trained_cnn(rows) -> nn.Module:
    return train(small_cnn(), *rows, epochs=4, batch_size=10, learning_rate=0.02, loss=cross_entropy)


@laplace
@pytest.mark.parametrize("last_layer", [False, True])
def test_laplace_is_that_of_laplace_torch_and_of_dense_jacobians(last_layer):
    pixels, labels = images()
    network = trained_cnn((pixels, labels))
    peer = LaplaceClassifier.fit(network, (pixels[:40], labels[:40]), last_layer=last_layer)
    assert peer.prior == peer.posterior.prior
    found = peer.predict(pixels[40:])
    expected = peer.posterior.laplace(pixels[40:], pred_type="glm", link_approx="probit")
    torch.testing.assert_close(found.probabilities, expected, rtol=1e-9, atol=0)
    jacobian = dense_jacobian(peer.posterior.network, pixels[:3], list(peer.posterior.names))
    precision = (peer.posterior.laplace.H + torch.tensor([7.0], dtype=torch.float64)).to_matrix()
    dense = torch.einsum("ncp,pq,ncq->nc", jacobian, torch.linalg.inv(precision), jacobian)
    torch.testing.assert_close(peer.variances(pixels[:3], [0.3, 7.0])[..., 1], dense, rtol=1e-9, atol=0)


@laplace
def test_the_temperature_of_laplace_comes_after_the_probit_and_is_the_likeliest():
    pixels, labels = images(120)
    train_rows, held = (pixels[:60], labels[:60]), (pixels[60:], labels[60:])
    plain = LaplaceClassifier.fit(trained_cnn(train_rows), train_rows)
    warm = plain.tuned(held, prior=False)
    assert plain.temperature == 1.0
    assert warm.prior == plain.prior
    prediction = plain.predict(held[0])
    scaled = (prediction.mean / torch.sqrt(1 + math.pi / 8 * prediction.variance))[None].numpy()
    fine = np.exp(np.linspace(np.log(0.05), np.log(50.0), 4001))
    losses = losses_of_members(scaled, held[1].numpy(), fine)
    assert warm.temperature == pytest.approx(fine[int(np.argmin(losses))], rel=2e-3)
    expected = (torch.from_numpy(scaled[0]) / warm.temperature).softmax(dim=1)
    torch.testing.assert_close(warm.predict(held[0]).probabilities, expected, rtol=1e-9, atol=0)


@laplace
def test_laplace_leaves_the_network_as_it_was_and_marks_broken_rows():
    pixels, labels = images()
    network = trained_cnn((pixels, labels))
    network.zero_grad()
    before = copy.deepcopy(network.state_dict())
    broken = pixels[:7].clone()
    broken[2] = torch.inf
    peer = LaplaceClassifier.fit(network, (pixels, labels), (pixels, labels))
    found, whole = peer.predict(broken), peer.predict(pixels[:7])
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in network.parameters())
    others = torch.arange(7) != 2
    assert found.valid.tolist() == others.tolist()
    assert torch.isinf(found.score[2])
    torch.testing.assert_close(found.score[others], whole.score[others], rtol=1e-6, atol=0)


def shared(every: int) -> nn.Module:
    """Calls its convolution twice, and lists its layers backwards."""

    def forward(net, x):
        both = net.same(x), net.same(x[..., ::every, ::every])
        return net.last(sum(torch.tanh(part).mean(dim=(2, 3)) for part in both))

    return Net(forward, last=nn.Linear(3, 2), same=nn.Conv2d(1, 3, 3)).double().eval()


@laplace
def test_a_layer_called_twice_has_one_gradient_and_with_two_sizes_is_refused():
    pixels, labels = images(20)
    peer = LaplaceClassifier.fit(shared(1), (pixels, labels % 2))
    expected = peer.posterior.laplace(pixels, pred_type="glm", link_approx="probit")
    torch.testing.assert_close(peer.predict(pixels).probabilities, expected, rtol=1e-9, atol=0)
    with pytest.raises(ValueError, match="do not match their Kronecker factors"):
        LaplaceClassifier.fit(shared(2), (pixels, labels % 2))
