"""What every peer promises, whatever it does inside."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import pytest
import torch
from draws import Draws
from torch import Tensor, nn
from zoo import Net

from trustgp.likelihoods.prediction import Prediction
from trustgp_experiments.peers import Bundle, KronPosterior, LaplaceGLM, LaplaceSampled, Swag, Vbll, mlp
from trustgp_experiments.peers.deup import Deup
from trustgp_experiments.peers.fmgp import FixedMeanGP
from trustgp_experiments.peers.heteroscedastic import heteroscedastic
from trustgp_experiments.peers.input_gps import InputGP
from trustgp_experiments.peers.know_nothing import GatedKnowNothing, KnowNothing
from trustgp_experiments.peers.members import ConstantNoise, Ensemble, MCDropout, PropagatedDropout
from trustgp_experiments.peers.sfr import Sfr
from trustgp_experiments.peers.sngp import Sngp
from trustgp_experiments.peers.trusted import SubsetGP, TrustGP


def one_column(inner: nn.Module) -> nn.Module:
    """Outputs [n] instead of [n, C]."""
    return Net(lambda net, x: net.inner(x).squeeze(1), inner=inner).eval()


@dataclass(frozen=True)
class Given:
    """Networks and rows, as a user would have them."""

    networks: list[nn.Module]
    dropping: nn.Module
    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]


def posterior(given: Given, **options) -> KronPosterior:
    return KronPosterior.fit(given.networks[0], given.train, given.validation, **options)


def bundle(given: Given) -> Bundle:
    """As a study hands it over."""
    how = {"epochs": 3, "batch_size": 50, "learning_rate": 0.01}
    return Bundle(given.networks[0], given.networks[1:], None, given.train, given.validation, training=how)


FITS: dict[str, Callable[[Given], object]] = {
    "constant noise": lambda g: ConstantNoise.fit(g.networks[0], g.validation),
    "ensemble": lambda g: Ensemble.fit(g.networks, g.validation),
    "MC-dropout": lambda g: MCDropout.fit(g.dropping, g.validation, samples=5, seed=3),
    "propagated dropout": lambda g: PropagatedDropout.fit(g.dropping, g.validation),
    "Laplace GLM": lambda g: LaplaceGLM.fit(posterior(g), g.validation),
    "Laplace sampled": lambda g: LaplaceSampled.fit(posterior(g), g.validation, samples=5, seed=3),
    "Laplace last layer": lambda g: LaplaceGLM.fit(posterior(g, last_layer=True), g.validation),
    "subset GP": lambda g: SubsetGP.fit(g.networks[0], g.train, g.validation, rows=30),
    "sparse NTK GP": lambda g: Sfr.fit(g.networks[0], g.train, g.validation, points=20, shared=True),
    "heteroscedastic": lambda g: heteroscedastic(bundle(g), members=2),
    "SWAG": lambda g: Swag.fit(bundle(g)),
    "VBLL": lambda g: Vbll.fit(bundle(g)),
    "fixed-mean GP": lambda g: FixedMeanGP.fit(g.networks[0], g.train, g.validation, points=10, steps=20),
    "SFR": lambda g: Sfr.fit(g.networks[0], g.train, g.validation, points=20),
    "know-nothing": lambda g: KnowNothing.fit(bundle(g)),
    "gated know-nothing": lambda g: GatedKnowNothing.fit(bundle(g)),
    "DEUP": lambda g: Deup.fit(bundle(g)),
    "SNGP": lambda g: Sngp.fit(bundle(g)),
    "RIO": lambda g: InputGP.fit(bundle(g), residual=True, steps=5),
    "ARD GP": lambda g: InputGP.fit(bundle(g), steps=5),
    "trustgp": lambda g: TrustGP.fit(g.networks[0], g.train, g.validation, num_experts=2),
    "trustgp corrected": lambda g: TrustGP.fit(g.networks[0], g.train, g.validation, num_experts=2).corrected,
    "paper form": lambda g: TrustGP.fit_paper(g.networks[0], g.train, num_experts=2),
}


def given(*, outputs: int = 2, dtype: torch.dtype = torch.float32, column: bool = False) -> Given:
    draws = Draws()
    networks = [mlp([3, 8, outputs], activation=nn.Tanh, seed=seed).to(dtype).eval() for seed in range(3)]
    dropping = mlp([3, 8, outputs], activation=nn.Tanh, dropout=0.2).to(dtype).eval()
    inputs = draws.normal(160, 3, dtype=dtype)
    with torch.no_grad():
        targets = networks[0](inputs) + 0.3 * draws.normal(160, outputs, dtype=dtype)
    if column:
        networks, dropping = [one_column(n) for n in networks], one_column(dropping)
        targets = targets[:, 0]
    return Given(networks, dropping.eval(), (inputs[:100], targets[:100]), (inputs[100:], targets[100:]))


def rows(n: int = 7, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(9), dtype=dtype)


def ask(name: str, problem: Given, inputs: Tensor) -> Prediction:
    if "Laplace" in name and find_spec("laplace") is None:
        pytest.skip("laplace-torch is not installed")
    if name in ("RIO", "ARD GP"):
        pytest.importorskip("gpytorch")
    return FITS[name](problem).predict(inputs)  # pyright: ignore[reportAttributeAccessIssue]


def check_fields(found: Prediction, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for field in ("mean", "epistemic", "aleatoric", "excess", "variance", "std"):
        assert getattr(found, field).shape == shape, field
        assert getattr(found, field).dtype == dtype, field
        assert torch.isfinite(getattr(found, field)).all(), field
    assert (found.variance > 0).all()
    assert found.novelty.shape == found.valid.shape == (7,)
    assert found.expert.shape in ((7,), (7, 2))
    assert found.expert.dtype == torch.int64
    assert found.valid.all()


def check_unchanged(problem: Given, before: Given, attributes: list[set[str]]) -> None:
    """Networks keep their weights, modes and attributes, and rows their numbers."""
    for network, old, own in zip(
        (*problem.networks, problem.dropping), (*before.networks, before.dropping), attributes, strict=True
    ):
        assert set(vars(network)) == own
        pairs = zip(network.state_dict().items(), old.state_dict().values(), strict=True)
        assert [key for (key, value), other in pairs if not torch.equal(value, other)] == []
        assert [m.training for m in network.modules()] == [m.training for m in old.modules()]
        assert all(p.grad is None and p.requires_grad for p in network.parameters())
    for pair, old in ((problem.train, before.train), (problem.validation, before.validation)):
        assert all(torch.equal(x, y) for x, y in zip(pair, old, strict=True))


@pytest.mark.parametrize("name", FITS)
def test_a_peer_keeps_the_contract(name):
    """Shapes, nothing changed by a fit, the same answer twice and without gradients, invalid rows marked."""
    problem, inputs = given(), rows()
    before, generator = copy.deepcopy(problem), torch.get_rng_state()
    attributes = [set(vars(network)) for network in (*problem.networks, problem.dropping)]
    first = ask(name, problem, inputs)
    assert torch.equal(torch.get_rng_state(), generator)
    check_fields(first, (7, 2), torch.float32)
    check_unchanged(problem, before, attributes)
    broken = inputs.clone()
    broken[3, 0] = torch.nan
    torch.rand(5)
    with torch.no_grad():
        again = ask(name, given(), broken)
    others = torch.arange(7) != 3
    assert again.valid.tolist() == others.tolist()
    assert torch.isinf(again.variance[3]).all()
    # to rounding: a chunk of another length may be multiplied in another order
    torch.testing.assert_close(again.mean[others], first.mean[others], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(again.variance[others], first.variance[others], rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", FITS)
def test_a_peer_follows_the_dtype_and_shape_of_the_network_and_refuses_other_targets(name):
    if name in ("propagated dropout", "SNGP"):  # made from a Sequential only, and that gives [n, C]
        problem, shape = given(dtype=torch.float64), (7, 2)
    else:
        problem, shape = given(outputs=1, column=True, dtype=torch.float64), (7,)
    check_fields(ask(name, problem, rows(dtype=torch.float64)), shape, torch.float64)
    problem = given()
    wrong = torch.zeros(len(problem.validation[0]), 3)
    train = problem.train if name != "paper form" else (problem.train[0], torch.zeros(100, 3))
    with pytest.raises(ValueError, match="must agree"):
        ask(name, Given(problem.networks, problem.dropping, train, (problem.validation[0], wrong)), rows())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", FITS)
def test_a_network_on_cuda_takes_rows_from_the_cpu_and_answers_like_one_on_the_cpu(name):
    here = given(dtype=torch.float64)
    there = Given([copy.deepcopy(n).cuda() for n in here.networks], copy.deepcopy(here.dropping).cuda(),
                  here.train, here.validation)  # fmt: skip
    inputs = rows(dtype=torch.float64)
    found, expected = ask(name, there, inputs), ask(name, here, inputs)
    assert found.mean.device.type == "cuda"
    if name not in ("MC-dropout", "Laplace sampled"):  # their draws differ between devices
        torch.testing.assert_close(found.mean.cpu(), expected.mean, rtol=1e-4, atol=1e-6)
        # rounding of other libraries, enlarged by the searches for noise and scale
        torch.testing.assert_close(found.variance.cpu(), expected.variance, rtol=1e-2, atol=0)
