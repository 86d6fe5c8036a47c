"""Know-nothing and its gate, GPs by GPyTorch, DEUP and SNGP: their formulas, in float64."""

import pytest
import torch
from draws import Draws, normal
from scipy.stats import t as student
from torch import Tensor

from trustgp_experiments.peers import Bundle, mlp
from trustgp_experiments.peers import input_gps as gps
from trustgp_experiments.peers.deup import Deup
from trustgp_experiments.peers.know_nothing import GATE, GatedKnowNothing, KnowNothing
from trustgp_experiments.peers.sngp import FEATURES, DistanceAwareNetwork, Sngp

FAR = 50.0


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    """Errors of the network that grow with the first input, two outputs."""
    draws = Draws()
    x, noise = draws.uniform(700, 2) * 2 - 1, draws.normal(700, 2)
    network = mlp([2, 8, 2], seed=1).double().eval()
    with torch.no_grad():
        y = network(x) + (0.02 + 0.5 * (x[:, :1] > 0)) * noise + torch.tensor([3.0, 0.0])
    how = {"epochs": 3, "batch_size": 50, "learning_rate": 0.01}
    return Bundle(network, (), None, (x[:300], y[:300]), (x[300:], y[300:]), training=how)


def test_know_nothing_is_a_student_t_with_the_moments_of_the_training_targets(bundle):
    targets = bundle.train[1]
    rows = torch.full((3, 2), FAR, dtype=torch.float64)
    values = normal(3, 2, seed=1)
    scale = (targets.var(dim=0) / 3.0).sqrt()  # of a t with 3 degrees of freedom and that variance
    expected = student.logpdf(values, 3, loc=targets.mean(dim=0), scale=scale)
    likely = KnowNothing.fit(bundle).predict(rows).log_prob(values)
    torch.testing.assert_close(likely.double(), torch.from_numpy(expected), rtol=1e-6, atol=1e-6)


def test_the_gate_lets_its_share_of_validation_rows_pass_and_nothing_far_away(bundle):
    gate = GatedKnowNothing.fit(bundle)
    scaled = [(part[0] - gate.offset) / gate.spread for part in (bundle.validation, bundle.train)]
    passed = torch.cdist(*scaled).amin(dim=1) <= gate.threshold
    assert float(passed.double().mean()) == pytest.approx(GATE, abs=0.005)
    rows = torch.cat([bundle.train[0][:2], torch.full((1, 2), FAR, dtype=torch.float64)])
    p, inner, outer = (one.predict(rows) for one in (gate, gate.inner, gate.outer))
    values = torch.zeros(3, 2, dtype=torch.float64)
    torch.testing.assert_close(p.log_prob(values)[:2], inner.log_prob(values)[:2])
    # outliers of the inner one share the far rows, but have no further variance there
    torch.testing.assert_close(p.log_prob(values)[2], outer.log_prob(values)[2], atol=0.02, rtol=0)
    assert p.novelty[2] > 0.5 > p.novelty[0]


def dense(kernel: Tensor, cross: Tensor, own: Tensor, noise: Tensor, targets: Tensor, mean: Tensor):
    """Posterior of a GP, by the textbook."""
    solve = torch.linalg.solve(kernel + noise * torch.eye(len(kernel)), cross.T)
    return mean + solve.T @ (targets - mean), own - (cross * solve.T).sum(dim=1)


@pytest.mark.parametrize("residual", [False, True])
def test_the_exact_processes_are_those_of_the_textbook(bundle, residual):
    pytest.importorskip("gpytorch")
    peer = gps.InputGP.fit(bundle, residual=residual, steps=3)
    offset, spread, centre, size = peer.scaling
    rows = bundle.validation[0][:5]
    columns = [gps._columns(bundle.network, part, residual) for part in (bundle.train[0], rows)]
    targets = bundle.train[1] - (bundle.network(bundle.train[0]).detach() if residual else 0.0)
    plain = bundle.network(rows).detach() if residual else torch.zeros(5, 2)
    process = peer.process
    for c in range(2):
        parts = process.kernel.kernels if residual else [process.kernel]

        def kernel(a: Tensor, b: Tensor, parts=parts, c=c) -> Tensor:
            total = torch.zeros(len(a), len(b), dtype=torch.float64)
            for part in parts:
                dims, lengths = part.base_kernel.active_dims, part.base_kernel.lengthscale[c]
                squared = torch.cdist(a[:, dims] / lengths, b[:, dims] / lengths).square()
                total = total + part.outputscale[c] * torch.exp(-0.5 * squared)
            return total

        train, test = ((part - offset) / spread for part in columns)
        scaled = (targets[:, c] - centre[c]) / size[c]
        noise, mean = process.likelihood.noise.reshape(-1)[c], process.mean.constant[c]
        own = kernel(test, test).diagonal()
        expected = dense(kernel(train, train), kernel(test, train), own, noise, scaled, mean)
        found = [part[:, c] for part in peer.moments(rows)]
        moved = expected[0] * size[c] + centre[c] + plain[:, c]
        torch.testing.assert_close(found[0], moved, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found[1], expected[1] * size[c] ** 2, rtol=1e-3, atol=1e-5)


def test_sparse_processes_learn_a_curve_and_know_less_far_away(bundle, monkeypatch):
    pytest.importorskip("gpytorch")
    monkeypatch.setattr(gps, "EXACT_ROWS", 10)
    monkeypatch.setattr(gps, "POINTS", 20)
    peer = gps.InputGP.fit(bundle, steps=60)
    _, spread = peer.moments(torch.tensor([[0.0, 0.0], [FAR, FAR]], dtype=torch.float64))
    assert (spread[1] > 3 * spread[0]).all()


def test_deup_knows_where_errors_are_large(bundle):
    rows = torch.tensor([[-0.7, 0.0], [0.7, 0.0]], dtype=torch.float64)
    _, spread = Deup.fit(bundle).moments(rows)
    assert spread[1, 1] > 5 * spread[0, 1]  # the first output is off everywhere


def test_sngp_is_bounded_and_its_variance_is_that_of_the_last_layer(bundle):
    peer = Sngp.fit(bundle)
    phi, new = (peer.network.features(part).detach() for part in (bundle.train[0], bundle.validation[0][:4]))
    inverse = torch.linalg.inv(phi.T @ phi + torch.eye(FEATURES))
    expected = ((new @ inverse) * new).sum(dim=1)[:, None] * bundle.train[1].var(dim=0)
    torch.testing.assert_close(peer.moments(bundle.validation[0][:4])[1], expected, rtol=1e-8, atol=1e-12)
    network = DistanceAwareNetwork(mlp([2, 8, 8, 1]), bound=0.5, seed=0)
    rows = torch.randn(4, 2, generator=torch.Generator().manual_seed(2))
    for _ in range(50):
        network.train()(rows)
    slope = torch.func.jacrev(network.eval().hidden[0])(rows[0])
    assert float(torch.linalg.matrix_norm(slope, 2).detach()) == pytest.approx(0.5, rel=1e-3)
