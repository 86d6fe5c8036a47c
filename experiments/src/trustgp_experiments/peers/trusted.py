r"""trustgp itself among its peers: one fit and two ways to read it; and parts of it on their own.

These are one GP on some rows, without experts; the witness, without any network; and `LandmarkGP`, a sparse
GP with the tangent kernel, on landmarks, over all rows. That is the deterministic training conditional. With
the landmarks' kernel :math:`K_{mm} = L L^\top` and features :math:`\psi(x) = L^{-1} k_m(x)`, all rows enter
through :math:`\sum_i \psi(x_i) \psi(x_i)^\top = V \Lambda V^\top` alone, and the variance is

.. math:: s \big( k(x, x) - |\psi(x)|^2 + \sum_j \tfrac{\tau}{\lambda_j + \tau} (v_j^\top \psi(x))^2 \big) :

the prior's part outside the landmarks' span, which no row can reduce, and what the rows leave inside.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from trustgp.api import fit, paper
from trustgp.data.chunking import chunks
from trustgp.data.rows import Rows, read_rows
from trustgp.data.trees import Inputs, as_inputs, to_device
from trustgp.executors import FitContext, Threads
from trustgp.executors.progress import reporting
from trustgp.experts.expert import Expert
from trustgp.experts.features import NO_COLUMNS, chunk_rows, features_at
from trustgp.experts.neighbours import Patchwork
from trustgp.experts.posteriors import LatentMoments
from trustgp.experts.witness import Witness, WitnessState
from trustgp.experts.witness_fit import find_witness
from trustgp.likelihoods.prediction import Prediction
from trustgp.math.calibration import Calibration, CalibrationRows
from trustgp.math.calibration_fit import held_out_loss
from trustgp.math.evidence import factorise
from trustgp.math.low_rank import pivoted_cholesky_rows, selection_noise
from trustgp.model import UncertaintyModel
from trustgp.state.model_file import file_bytes
from trustgp.state.model_state import ModelState, answers
from trustgp.tangents.base import Features, TangentMap

from .tuning import NoisyPeer

Device = str | torch.device
READINGS = ("own", "corrected")
EXACT = {"budget": "none", "progress": False}  # options of `fit`


@dataclass(frozen=True)
class TrustGP:
    """A fitted model, read in one of two ways. Made by `fit` or `fit_paper`.

    "own": about the network's output; "corrected": about the corrected mean.
    """

    model: UncertaintyModel
    reading: str = "own"

    def __post_init__(self) -> None:
        if self.reading not in READINGS:
            raise ValueError(f"reading={self.reading!r}; allowed are {', '.join(READINGS)}.")

    @classmethod
    def fit(cls, network: nn.Module, train: Any, validation: Any, **options: Any) -> Self:
        """trustgp as it comes: light, calibrated on validation rows; options of `trustgp.fit`."""
        return cls(fit(network, train, validation=validation, **{"progress": False, **options}))

    @classmethod
    def fit_paper(cls, network: nn.Module, train: Any, **options: Any) -> TrustGP:
        """The paper's form, `trustgp.paper`, without validation rows. Its kernel is exact where it is cheap:
        pruned, it is far too sure on rows unlike the training rows."""
        return cls(paper(network, train, **{"pruning": None, "progress": False, **options}))

    @property
    def corrected(self) -> TrustGP:
        """The same model, read about the corrected mean."""
        return replace(self, reading="corrected")

    @property
    def nbytes(self) -> int:
        """Bytes of the network, and of the file that `trustgp.save` would write."""
        own = [*self.model.network.parameters(), *self.model.network.buffers()]
        return file_bytes(self.model.state) + sum(value.nbytes for value in own)

    def predict(self, inputs: Inputs) -> Prediction:
        """The reading's prediction."""
        found = self.model.predict(inputs)
        return found if self.reading == "own" else getattr(found, self.reading)


@dataclass(frozen=True)
class SubsetGP(TrustGP):
    """One exact GP with the tangent kernel: trustgp with one expert on a random subset. Made by `fit`.

    Kernel, evidence, leave-one-out scale and the calibration on validation rows are trustgp's own, so what
    is left of a difference comes from the experts (and from the witness, which is not asked).
    """

    @classmethod
    def fit(
        cls, network: nn.Module, train: Any, validation: Any, *, rows: int = 2000, seed: int = 0, **more: Any
    ) -> Self:
        """An exact GP on `rows` random training rows, or on all; more options are those of `trustgp.fit`."""
        every = read_rows(train, name="train")
        kept = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))[:rows]
        subset = every.take(kept), every.targets[kept.to(every.targets.device)]
        alone = {"num_experts": 1, "patchwork": Patchwork(neighbours=0), "witness": None, **EXACT}
        return super().fit(network, subset, validation, **{**alone, "seed": seed, **more})


@dataclass(frozen=True)
class InputGP(NoisyPeer):
    """Local Gaussian processes on the inputs alone, what the witness would say on its own. Made by `fit`."""

    witness: WitnessState  # the local Gaussian processes

    @classmethod
    def fit(cls, train: Any, validation: Any, *, seed: int = 0, device: Device | None = None) -> Self:
        """Local GPs on 50 rows or more of at most 64 numbers, and their variance's scale and tails: they know
        their noise, and with another a scale could run to 0, and with it what they say far away."""
        place = torch.device(device or "cpu")
        rows = read_rows(train, name="train")
        with reporting(enabled=False) as report:
            context = FitContext(place, seed, Threads(1 if place.type == "cuda" else None), report)
            witness = find_witness(rows, Witness(), context, None)
        if witness is None:
            raise ValueError("a GP on the inputs needs at least 50 rows of at most 64 real numbers each.")
        error, spread = cls(witness).against(validation)
        noise, scale = torch.zeros(error.shape[1]).to(error), float((error.square() / spread).mean())
        return cls(witness, noise=noise, scale=scale).tailed(validation, rows)

    def moments(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Mean and variance of the Gaussian process that a row falls to, the noise that it knows included."""
        said = self.witness(to_device(as_inputs(inputs), self.witness.offset.device))
        return said.mean, said.variance


DECADES = range(-8, 3)  # tau, as powers of ten of the kernel's mean diagonal: the range that experts search
FRAME_ROWS = 256  # rows of the exact GP whose place the sparse one takes
JITTER = 1e-8  # on the landmarks' kernel, over its mean diagonal: the least tau that experts use, too


@dataclass(frozen=True)
class LandmarkGP(TrustGP):
    """A network and one sparse GP: a model with one expert, a `LandmarkPosterior`. Made by `fit`."""

    tau: float = field(kw_only=True)  # the chosen noise ratio

    @classmethod
    def fit(
        cls,
        network: nn.Module,
        train: Any,
        validation: Any,
        *,
        landmarks: int = 512,
        candidates: int = 2048,
        seed: int = 0,
        **options: Any,
    ) -> Self:
        """Landmarks by pivoted Cholesky, one pass over all rows, tau by the validation likelihood.

        Each output's scale is the evidence's. The calibration on the validation rows is trustgp's own (but
        for the leave-one-out scale, which is 1), so what is left of a difference comes from the experts
        (and from the witness, which is not asked). The m landmarks are chosen from random candidates, most
        uncertain first; options are those of `trustgp.fit`, such as the device.
        """
        rows, held = read_rows(train, name="train"), read_rows(validation, name="validation")
        # all but the posterior is the same
        model = SubsetGP.fit(network, rows, held, rows=FRAME_ROWS, seed=seed, **options).model
        (mixture,) = model.mixtures
        with torch.no_grad():
            chosen = choose_landmarks(mixture.tangents, rows, landmarks, candidates, seed)
            sums = accumulate(mixture.tangents, chosen, rows)
            tau, calibrations = _choose(model, sums, rows.targets, held)
        sparse = replace(mixture, experts=(_expert(mixture.experts[0], sums, tau),))
        state = ModelState(model.network, (sparse,), model.origin, calibrations)
        return cls(UncertaintyModel(state), tau=tau)

    @property
    def nbytes(self) -> int:
        """Bytes of the network and of what the model holds: no file takes such an expert."""
        own = [*self.model.network.parameters(), *self.model.network.buffers()]
        return self.model.nbytes + sum(value.nbytes for value in own)


def _choose(
    model: UncertaintyModel, sums: LandmarkSums, targets: Tensor, held: Rows
) -> tuple[float, tuple[Calibration, Calibration]]:
    """The tau of the largest likelihood of the validation rows, each with its own calibrations."""
    tangents, state = model.mixtures[0].tangents, model.state
    seen = [sums.project(tangents(held.take(index))) for index in chunks(len(held), chunk_rows(tangents))]
    every = zip(*(vars(one).values() for one in seen), strict=True)
    projected = Projected(*(torch.cat(parts) for parts in every))
    # as the calibration wants the rows, with another GP's answers
    pairs = [(held.take(index), held.targets[index.to(held.targets.device)]) for index in chunks(len(held))]
    rows_of = state.likelihood.calibration_rows
    frame = CalibrationRows.cat([rows_of(*answers(state, inputs), targets) for inputs, targets in pairs])
    found = []
    for decade in DECADES:
        tau = float(sums.level) * 10.0**decade
        rows = _held_out(sums, tau, projected, frame)
        calibrations = model.origin.likelihood.calibrate(rows, model.shape, targets)
        found.append((held_out_loss(calibrations[0], rows), tau, calibrations))
    _, tau, calibrations = min(found, key=lambda entry: entry[0])
    return tau, calibrations


def _held_out(sums: LandmarkSums, tau: float, rows: Projected, frame: CalibrationRows) -> CalibrationRows:
    """The validation rows with the sparse GP's answers at one tau."""
    found, scale = sums.posterior(tau).answer(rows), sums.scale(tau)
    unit = found.unit.clamp_min(0.0)[:, None]  # rounding; predictions warn about it

    def entries(values: Tensor) -> Tensor:
        return values.expand(found.residual_mean.shape).flatten().to(frame.residual)

    return replace(
        frame,
        residual_mean=entries(found.residual_mean),
        epistemic=entries(unit * scale),
        noise=entries(tau * scale),
        novelty=entries((unit / found.prior[:, None]).clamp_max(1.0)),
        log_kappa=torch.zeros_like(frame.log_kappa),
    )


def _expert(frame: Expert, sums: LandmarkSums, tau: float) -> Expert:
    """The sparse GP in the place of an expert."""
    scale, none = sums.scale(tau), torch.empty(0, dtype=torch.int64)
    made: dict[str, Any] = {"posterior": sums.posterior(tau), "scale": scale, "noise": tau * scale}
    made |= {"kappa": torch.ones_like(scale), "jitter": scale.new_zeros(())}
    return replace(frame, rows=none, own=sums.rows.long(), **made)


@dataclass(frozen=True)
class Projected:
    """Rows as the landmarks see them, whatever tau is."""

    inside: Tensor  # V^T psi               [n, m]
    outside: Tensor  # k(x, x) - |psi|^2    [n]
    prior: Tensor  # k(x, x)                [n]


@dataclass(frozen=True)
class LandmarkPosterior:
    """What a sparse GP answers with at one noise ratio."""

    sums: LandmarkSums
    shrink: Tensor  # tau / (lambda + tau)                     [m]
    weights: Tensor  # of the residual mean in the basis V     [m, C]
    columns = NO_COLUMNS  # as a `Posterior` says that it keeps all
    failed = signed = False

    def __call__(self, features: Features) -> LatentMoments:
        return self.answer(self.sums.project(features))

    def answer(self, rows: Projected) -> LatentMoments:
        """Unit variance, prior and residual mean."""
        unit = rows.outside + (self.shrink * rows.inside.square()).sum(dim=1)
        return LatentMoments(unit, rows.prior, rows.inside @ self.weights)


@dataclass(frozen=True)
class LandmarkSums:
    """All that the rows leave behind, none of it as long as they are; float64."""

    features: Features  # of the m landmarks
    factor: Tensor  # L                                     [m, m]
    values: Tensor  # lambda, of the sum of psi psi^T       [m]
    basis: Tensor  # V                                      [m, m]
    targets: Tensor  # V^T times the sum of psi t^T         [m, C]
    residual: Tensor  # V^T times the sum of psi r^T        [m, C]
    power: Tensor  # sum of t^2                             [C]
    level: Tensor  # mean of k(x, x)                        []
    rows: Tensor  # n                                       []

    def scale(self, tau: float) -> Tensor:
        r"""The evidence's scale :math:`s_c = t_c^\top (\Psi \Psi^\top + \tau I)^{-1} t_c / n`, shape [C]."""
        explained = (self.targets.square() / (self.values + tau)[:, None]).sum(dim=0)
        scale = (self.power - explained) / (tau * self.rows)
        # where the rows leave nothing unexplained, the difference is rounding, of either sign
        return torch.maximum(scale, 1e-12 * self.power / (tau * self.rows) + torch.finfo(scale.dtype).tiny)

    def posterior(self, tau: float) -> LandmarkPosterior:
        """The posterior at one noise ratio."""
        grown = self.values + tau
        return LandmarkPosterior(self, tau / grown, self.residual / grown[:, None])

    def project(self, features: Features) -> Projected:
        """Some rows in the basis of the landmarks' span, and what lies outside it."""
        psi, prior = whitened(features, self.features, self.factor), features.diag()
        # a difference, so in float64; what falls below zero is for the caller to see
        return Projected(psi @ self.basis, prior - psi.square().sum(dim=1), prior)


def choose_landmarks(
    tangents: TangentMap, rows: Rows, landmarks: int, candidates: int, seed: int
) -> Features:
    """Features of m landmarks: of random candidates the most uncertain first, a pivoted Cholesky."""
    if landmarks < 1:
        raise ValueError(f"landmarks={landmarks}; at least 1 is needed.")
    wanted = max(landmarks, candidates)
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:wanted]
    features = features_at(tangents, rows, chosen, NO_COLUMNS, None)
    gram = features.gram(features)
    return features.take(pivoted_cholesky_rows(gram, landmarks, selection_noise(gram)))


def whitened(features: Features, landmarks: Features, factor: Tensor) -> Tensor:
    """psi(x) = L^-1 k_m(x), shape [n, m], float64."""
    cross = features.gram(landmarks)
    return torch.linalg.solve_triangular(factor, cross.T, upper=False).T


def accumulate(tangents: TangentMap, landmarks: Features, rows: Rows) -> LandmarkSums:
    """One pass over all rows, chunk by chunk; nothing of the rows' length is kept."""
    gram = landmarks.gram(landmarks)
    factor, _ = factorise(gram, JITTER * float(gram.diagonal().mean()))
    square, both = torch.zeros_like(gram), gram.new_zeros(len(gram), 2 * rows.targets.shape[1])
    power, level = gram.new_zeros(rows.targets.shape[1]), gram.new_zeros(())
    direction = tangents.direction(NO_COLUMNS)
    for index in chunks(len(rows), chunk_rows(tangents)):
        inputs = rows.take(index)
        features = tangents(inputs)
        psi = whitened(features, landmarks, factor)
        outputs = tangents.network.matrix(inputs).double()
        residual = rows.targets[index.to(rows.targets.device)].to(outputs) - outputs  # r
        slope = tangents.network.directional(inputs, direction).double()  # J theta, of pseudo-targets t
        targets, residual = (slope + residual).to(psi), residual.to(psi)
        square.addmm_(psi.T, psi)
        both.addmm_(psi.T, torch.cat([targets, residual], dim=1))
        power += targets.square().sum(dim=0)
        level += features.diag().sum() / len(rows)
    values, basis = torch.linalg.eigh(square)
    targets, residual = (basis.T @ both).chunk(2, dim=1)
    n = torch.tensor(float(len(rows))).to(gram)
    return LandmarkSums(landmarks, factor, values.clamp_min(0.0), basis, targets, residual, power, level, n)
