"""What every peer promises, whatever it does inside."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn

from trustgp.likelihoods.prediction import Prediction
from trustgp_experiments.peers import (
    Bundle,
    ConstantNoise,
    Ensemble,
    KronPosterior,
    LaplaceGLM,
    LaplaceSampled,
    MCDropout,
    PropagatedDropout,
    SubsetGP,
    Swag,
    TrustGP,
    Vbll,
    mlp,
)
from trustgp_experiments.peers.fmgp import FixedMeanGP
from trustgp_experiments.peers.heteroscedastic import heteroscedastic
from trustgp_experiments.peers.sfr import Sfr


class OneColumn(nn.Module):
    """Outputs [n] instead of [n, C]."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).squeeze(1)


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
    "trustgp": lambda g: TrustGP.fit(g.networks[0], g.train, g.validation, num_experts=2),
    "trustgp corrected": lambda g: TrustGP.fit(g.networks[0], g.train, g.validation, num_experts=2).corrected,
    "paper form": lambda g: TrustGP.fit_paper(g.networks[0], g.train, num_experts=2),
}


def every(check: Callable[[str], None]) -> Callable[[], None]:
    """A test that asks each peer in turn; those that fail are gathered and named."""

    def test() -> None:
        failed = []
        for name in FITS:
            if "Laplace" in name and find_spec("laplace") is None:
                continue
            try:
                check(name)
            except (Exception, pytest.fail.Exception) as error:
                failed.append(f"{name}: {error}")
        assert not failed, "\n\n".join(failed)

    return test


def given(*, outputs: int = 2, dtype: torch.dtype = torch.float32, column: bool = False) -> Given:
    generator = torch.Generator().manual_seed(0)
    networks = [mlp([3, 8, outputs], activation=nn.Tanh, seed=seed).to(dtype).eval() for seed in range(3)]
    dropping = mlp([3, 8, outputs], activation=nn.Tanh, dropout=0.2).to(dtype).eval()
    inputs = torch.randn(160, 3, generator=generator, dtype=dtype)
    with torch.no_grad():
        clean = networks[0](inputs)
    targets = clean + 0.3 * torch.randn(clean.shape, generator=generator, dtype=dtype)
    if column:
        networks, dropping = [OneColumn(n) for n in networks], OneColumn(dropping)
        targets = targets[:, 0]
    return Given(networks, dropping.eval(), (inputs[:100], targets[:100]), (inputs[100:], targets[100:]))


def rows(n: int = 7, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(9), dtype=dtype)


def ask(name: str, problem: Given, inputs: Tensor) -> Prediction:
    return FITS[name](problem).predict(inputs)  # pyright: ignore[reportAttributeAccessIssue]


@cache
def first_answer(name: str) -> Prediction:
    """What a peer says at first; every test may compare with it."""
    before = torch.get_rng_state()
    found = ask(name, given(), rows())
    assert torch.equal(torch.get_rng_state(), before), "a global generator has moved"
    return found


@every
def test_every_field_has_the_shape_of_the_contract(name):
    for dtype in (torch.float32, torch.float64):
        double = dtype == torch.float64
        found = ask(name, given(dtype=dtype), rows(dtype=dtype)) if double else first_answer(name)
        for field in ("mean", "epistemic", "aleatoric", "excess", "variance", "std"):
            assert getattr(found, field).shape == (7, 2), field
            assert getattr(found, field).dtype == dtype, field
            assert torch.isfinite(getattr(found, field)).all(), field
        assert (found.variance > 0).all()
        assert found.novelty.shape == found.valid.shape == (7,)
        assert found.expert.shape in ((7,), (7, 2))
        assert found.expert.dtype == torch.int64
        assert found.valid.all()


@every
def test_networks_with_one_dimensional_outputs_keep_their_shape(name):
    if name == "propagated dropout":
        return  # moments pass through a Sequential only, and that gives [n, C]
    found = ask(name, given(outputs=1, column=True), rows())
    assert found.mean.shape == found.variance.shape == (7,)


@every
def test_a_row_that_is_not_finite_is_marked_and_the_others_stay_as_they_are(name):
    broken = rows()
    broken[3, 0] = torch.nan
    found, whole = ask(name, given(), broken), first_answer(name)
    others = torch.arange(7) != 3
    assert found.valid.tolist() == others.tolist()
    assert torch.isinf(found.variance[3]).all()
    # to rounding: a chunk of another length may be multiplied in another order
    torch.testing.assert_close(found.variance[others], whole.variance[others], rtol=1e-5, atol=0)


@every
def test_the_networks_and_the_rows_stay_as_they_were(name):
    problem, inputs = given(), rows()
    before = copy.deepcopy(problem)
    names = [set(vars(network)) for network in (*problem.networks, problem.dropping)]
    ask(name, problem, inputs)
    for network, old, attributes in zip(
        (*problem.networks, problem.dropping), (*before.networks, before.dropping), names, strict=True
    ):
        assert set(vars(network)) == attributes
        for (key, value), (_, other) in zip(
            network.state_dict().items(), old.state_dict().items(), strict=True
        ):
            assert torch.equal(value, other), key
        assert [m.training for m in network.modules()] == [m.training for m in old.modules()]
        assert all(p.grad is None and p.requires_grad for p in network.parameters())
    for pair, old in ((problem.train, before.train), (problem.validation, before.validation)):
        assert all(torch.equal(x, y) for x, y in zip(pair, old, strict=True))


@every
def test_the_same_call_gives_the_same_answer_and_no_global_generator_moves(name):
    first = first_answer(name)
    torch.rand(5)
    again = ask(name, given(), rows())
    assert torch.equal(first.mean, again.mean)
    assert torch.equal(first.variance, again.variance)


@every
def test_targets_that_do_not_fit_the_outputs_are_refused(name):
    problem = given()
    wrong = torch.zeros(len(problem.validation[0]), 3)
    train = problem.train if name != "paper form" else (problem.train[0], torch.zeros(100, 3))
    with pytest.raises(ValueError, match="must agree"):
        ask(name, Given(problem.networks, problem.dropping, train, (problem.validation[0], wrong)), rows())


@every
def test_gradients_switched_off_by_the_caller_change_nothing(name):
    with torch.no_grad():
        off = ask(name, given(), rows())
    assert torch.equal(off.variance, first_answer(name).variance)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every
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
