"""`trustgp study control`: a simulated arm whose controller falls back on rows that are flagged."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...core.arm import scaled_rows
from ...core.cases import ENSEMBLE, METHOD, OURS
from ...core.claim import versus
from ...core.dropout import FIRST
from ...core.grid import Grid
from ...core.pivot import Measure, Pivot
from ...core.recipes import mlp_recipe
from ...core.regression import compare, row_novelty, row_std
from ...core.result import Column, Result, Setting, Table, make_result, note, prose
from ...datasets import simulate, standardise
from ...datasets.arm import TYPICAL_TORQUE, friction_torque, inverse_dynamics, random_motion, states
from ...peers.registry import fit_methods
from ...training.train import run_network

AXES = ("alarms", "tested", "method")
METHODS = (
    *("gated know-nothing", ENSEMBLE, "heteroscedastic", "MC-dropout 20", "Laplace GLM"),
    *("Laplace last layer", "SFR", "DEUP", "SNGP", "ARD GP on inputs", OURS),
)
QUICK_METHODS = ("gated know-nothing", ENSEMBLE, OURS)
NEVER, ALWAYS, ORACLE, NOVELTY = "never", "always", "largest errors", f"{OURS}, novelty"
FULL = mlp_recipe([21, 128, 128, 128, 7], activation=nn.SiLU, epochs=40, together=True)
QUICK = mlp_recipe([21, 16, 7], epochs=3)
# for training and validation, of 500 rows each, every 20th of which is used
TRAJECTORIES, QUICK_TRAJECTORIES = 600, 40
TESTED = {"like the training": ("slow", 14), "elsewhere": ("shifted", 3), "faster, elsewhere": ("fast", 3)}
ALL = "all motions"
SHARES = (0.1, 0.2, 0.3)  # of all rows, that every method flags; the last is the share of foreign motions
SECONDS, QUICK_SECONDS = 3.0, 0.2  # length of a motion
STEP, HOLD = 0.005, 2  # seconds of a step of the simulation, and steps between decisions
SOFT, STIFF = 5.0, 50.0  # stiffness: typical torques per radian, where the network is trusted, and where not
DAMPING = {SOFT: 0.1, STIFF: 0.03}  # seconds, times the stiffness
ERROR = Measure("error", Column("tracking error", digits=1, better="low", unit="mrad"), factor=1000.0)
EFFORT = Measure("effort", Column("feedback torque", digits=1, better="low", unit="%"), factor=100.0)
FLAGGED = Column("alarms on foreign motions", digits=1, better="high", unit="%")
FOREIGN = Measure("foreign", FLAGGED, factor=100.0)
TITLE = "Does an error bar help a controller to know when not to trust its network?"


def run(setting: Setting) -> Result:
    """Train one network per seed; every method flags the same number of rows."""
    grid = Grid.run(setting, one_seed, [()], axes=AXES, read=_read)
    network = setting.sized(FULL, QUICK).words()
    protocol, numbers = prose(__name__, setting=setting, network=network), {"seeds": grid.parts[()]}
    return make_result(setting, "control", TITLE, protocol, numbers, summarise, network=network)


def one_seed(setting: Setting, seed: int) -> dict[str, Any]:
    """Tracking error, feedback torque and alarms by share of alarms, kind of motion and method."""
    trajectories = setting.sized(TRAJECTORIES, QUICK_TRAJECTORIES)
    slow = simulate(rows=500 * trajectories, seed=seed)
    held_out = 500 * (trajectories // 10)
    train, validation = slice(0, -held_out, 20), slice(-held_out, None, 20)
    scaling = standardise(slow.inputs[train], slow.targets[train])
    pairs = [scaled_rows(scaling, slow, part) for part in (train, validation)]
    bundle = setting.sized(FULL, QUICK).bundle(*pairs, seed=seed, dropout=FIRST[1], **setting.place)
    steps = round(setting.sized(SECONDS, QUICK_SECONDS) / STEP)
    times = torch.arange(steps, dtype=torch.float64) * STEP
    generator, wanted, kinds = torch.Generator().manual_seed(seed), [], []
    for name, (style, count) in TESTED.items():
        count = setting.sized(count, 1)
        wanted.append(torch.stack(states(random_motion(style, count, generator), times)))  # [3, T, k, 7]
        kinds += [name] * count
    path = torch.cat(wanted, dim=1)
    rows = torch.cat(list(path[:, :, ::HOLD]), dim=-1).flatten(0, 1)  # [T decisions, 21]
    inputs = scaling.inputs(rows).float().to(setting.device)
    torque = scaling.restore_targets(run_network(bundle.network, inputs).double().cpu())
    true = inverse_dynamics(*rows.split(7, dim=1)) + friction_torque(rows[:, 7:14])
    size = torch.tensor(TYPICAL_TORQUE, dtype=torch.float64)
    scores = {NEVER: None, ALWAYS: None, ORACLE: ((torque - true) / size).square().mean(dim=1)}
    for fitted in fit_methods(bundle, setting.sized(METHODS, QUICK_METHODS)):
        prediction = fitted.predict(inputs)
        novelty, std = row_novelty(prediction), row_std(prediction)
        if fitted.name == OURS and novelty is not None:
            scores[NOVELTY] = novelty.cpu()
        scores[fitted.name] = (std if novelty is None or fitted.name == OURS else novelty).cpu()
    shape, by_share = (len(scores), path.shape[1], -1), {}
    for share in SHARES:
        flags = torch.stack([_flags(name, score, len(rows), share) for name, score in scores.items()])
        flags = flags.reshape(shape)
        error, effort = track(path, torque.reshape(*shape[1:], 7), flags, size)
        by_share[_percent(share)] = _by_kind(list(scores), kinds, error, effort, flags.double().mean(dim=2))
    return by_share


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _flags(name: str, score: Tensor | None, rows: int, share: float) -> Tensor:
    """Mask [rows] of the share of the rows with the largest scores; without a score, of all or none."""
    if score is None:
        return torch.full((rows,), name == ALWAYS)
    chosen = score.argsort(descending=True, stable=True)[: round(share * rows)]
    return torch.zeros(rows, dtype=torch.bool).index_fill_(0, chosen, True)


def _by_kind(names: list[str], kinds: list[str], *measured: Tensor) -> dict[str, dict[str, Any]]:
    """Root mean squares and alarms on foreign motions by kind and method; `measured` are [m, T] each."""
    error, effort, alarms = measured
    foreign = torch.tensor([kind != kinds[0] for kind in kinds])
    parts = {ALL: torch.ones(len(kinds), dtype=torch.bool)}
    parts |= {kind: torch.tensor([one == kind for one in kinds]) for kind in dict.fromkeys(kinds)}
    return {
        kind: {
            name: {
                "error": float(error[m, part].mean().sqrt()),
                "effort": float(effort[m, part].mean().sqrt()),
                "foreign": float(alarms[m, foreign].mean()),
            }
            for m, name in enumerate(names)
        }
        for kind, part in parts.items()
    }


def track(path: Tensor, torque: Tensor, flags: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean squares [m, T] of the tracking error, and of the feedback torque over typical torques.

    .. math:: \tau = w \hat\tau + K (q_d - q) + D (\dot q_d - \dot q)

    with w = 1 and a soft K where the network is trusted, w = 0 and a stiff one where a row is flagged. `path`
    has wanted states [3, T, k, 7]; torques are [T, k', 7] and flags [m, T, k'], by decision. In semi-implicit
    Euler steps damping and friction act on the new velocity, so that stiff joints are stable.
    """
    many, (trajectories, steps) = len(flags), path.shape[1:3]
    wanted = path[:, None].expand(-1, many, -1, -1, -1).flatten(1, 2)  # [3, m T, k, 7]
    feed, flags = torque.repeat(many, 1, 1), flags.flatten(0, 1)
    q, dq = wanted[0, :, 0].clone(), wanted[1, :, 0].clone()
    error, effort, mass = torch.zeros(len(q)).double(), torch.zeros(len(q)).double(), torch.empty(0)
    for step in range(steps):
        decision = step // HOLD
        bias, turned = dynamics(q, dq, step % HOLD == 0)
        mass = mass if turned is None else turned
        stiff = flags[:, decision, None]
        stiffness = torch.where(stiff, STIFF, SOFT) * size
        damping = stiffness * torch.where(stiff, DAMPING[STIFF], DAMPING[SOFT])
        feedback = stiffness * (wanted[0, :, step] - q) + damping * (wanted[1, :, step] - dq)
        total = torch.where(stiff, 0.0, feed[:, decision]) + feedback
        total = total - bias - friction_torque(dq)
        slope = (friction_torque(dq + 1e-4) - friction_torque(dq - 1e-4)) / 2e-4
        implicit = mass + torch.diag_embed(STEP * (damping + slope) + STEP**2 * stiffness)
        dq = dq + torch.linalg.solve(implicit, STEP * total)
        q = q + STEP * dq
        error += (wanted[0, :, step] - q).square().mean(dim=1) / steps
        effort += (feedback / size).square().mean(dim=1) / steps
    return error.reshape(many, trajectories), effort.reshape(many, trajectories)


def dynamics(q: Tensor, dq: Tensor, with_mass: bool) -> tuple[Tensor, Tensor | None]:
    """Torques without acceleration or friction [n, 7], and mass matrices [n, 7, 7] or None, in one pass."""
    n, zero = len(q), torch.zeros_like(q)
    if not with_mass:
        return inverse_dynamics(q, dq, zero), None
    unit = torch.eye(7, dtype=torch.float64).repeat_interleave(n, dim=0)
    moves = torch.cat([dq, zero.repeat(8, 1)])
    bias, still, *columns = inverse_dynamics(q.repeat(9, 1), moves, torch.cat([zero, zero, unit])).split(n)
    return bias, torch.stack([column - still for column in columns], dim=2)


def _read(part: Mapping[str, Any]) -> dict[Any, Any]:
    return {
        (share, kind, method): cell
        for share, kinds in part.items()
        for kind, methods in kinds.items()
        for method, cell in methods.items()
    }


def summarise(numbers: Mapping[str, Any]) -> tuple[list[Table], list[str]]:
    """Tables of tracking error by share of alarms and by motion, feedback torque and alarms; and findings,
    our losses first."""
    grid = Grid.of(AXES, {(): numbers["seeds"]}, _read)
    shares = grid.along("alarms")
    columns = [ERROR.at(f"{share} flagged", alarms=share, tested=ALL) for share in shares]
    columns += [FOREIGN.at(alarms=shares[0], tested=ALL), EFFORT.at(alarms=shares[-1], tested=ALL)]
    every = Pivot("Tracking error by share of alarms", METHOD, columns, note=note(__name__, "Tracking"))
    by_motion = [ERROR.at(kind, alarms=shares[0], tested=kind) for kind in grid.along("tested")]
    motions = Pivot(f"Tracking error by motion, {shares[0]} flagged", METHOD, by_motion)
    others = [m for m in grid.along("method") if m not in (OURS, NOVELTY)]
    gaps = {m: compare(grid, [(share, ALL) for share in shares], OURS, m, "error") for m in others}
    lines = [f"{OURS} against {m}, tracking error in rad: {versus(gap, 4)}." for m, gap in gaps.items()]
    return [every.table(grid), motions.table(grid)], sorted(lines, key=lambda line: "worse in 0" in line)
