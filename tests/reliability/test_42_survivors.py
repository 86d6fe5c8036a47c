"""Promise 42: three mutants that lived. Each test kills one."""

import pytest
import torch
from draws import Draws, normal
from reliability.helpers import quiet_fit, trained

from trustgp.data.chunking import evenly
from trustgp.experts import system
from trustgp.experts.system import DualSystem
from trustgp.fitting import leave_out
from trustgp.math.calibration_fit import PRIOR_STDS, choose_spread, initial_calibration
from trustgp.math.held_out import CalibrationRows
from trustgp.tangents.rows import RowFeatures


def test_jitter_is_part_of_the_posterior(monkeypatch):
    draws = Draws()
    phi, new, targets = draws.normal(4, 6), draws.normal(3, 6), draws.normal(4, 1)
    tau, jitter, gram = torch.tensor(0.1).double(), 0.5, phi @ phi.T
    regular = gram + (0.1 + jitter) * torch.eye(4).double()
    monkeypatch.setattr(system, "factorise", lambda *_: (torch.linalg.cholesky(regular), jitter))

    class Shared:
        def at(self, targets):
            return tau, torch.ones(1).double()

    dual = DualSystem(torch.arange(4), RowFeatures(phi), gram)
    solved = dual.solve(torch.zeros(0).long(), targets, targets, Shared())
    moments, cross = solved.posterior(RowFeatures(new)), new @ phi.T
    unit = (new * new).sum(dim=1) - (cross * torch.linalg.solve(regular, cross.T).T).sum(dim=1)
    torch.testing.assert_close(moments.unit, unit)
    torch.testing.assert_close(moments.residual_mean, cross @ torch.linalg.solve(regular, targets))


def test_rows_of_left_out_clusters_are_evenly_spread(monkeypatch):
    monkeypatch.setattr(leave_out, "MAX_ROWS", 5)
    network, x, y = trained(120)
    model = quiet_fit(network, (x, y), num_experts=3)
    (mixture,) = model.mixtures
    expected = set()
    for expert in mixture.experts:
        own = expert.rows[: int(expert.own)]
        assert len(own) > 10
        expected |= set(y[own[evenly(len(own), 5)], 0].tolist())
    far = model.memory.far
    targets = set(far.target[far.output == 0].tolist())
    assert len(targets) >= 5
    assert targets <= expected


@pytest.mark.parametrize(("blocks", "spread"), [(True, PRIOR_STDS[0]), (False, PRIOR_STDS[-1])])
def test_folds_of_the_calibration_are_blocks_of_consecutive_rows(blocks, spread):
    """Errors are large in one third and small in the next: what two thirds teach is wrong for the last."""
    n, ones = 240, torch.ones(240, 1).double()
    residual = torch.tensor([0.3, 1.0, 3.3]).double().repeat_interleave(n // 3) * normal(n)
    order = torch.arange(n) if blocks else torch.arange(n).reshape(3, -1).T.flatten()
    parts = {"residual": residual[order][:, None], "epistemic": ones, "novelty": 0.01 * ones}
    rows = CalibrationRows.of(torch.arange(1), **parts)
    start = initial_calibration(rows, 1, corrected=False)
    assert choose_spread(rows, start) == spread
