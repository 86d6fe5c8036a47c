"""Drawing leaves nothing behind but the file, and draws what it says."""

import importlib

import numpy as np
import pytest
import torch
from many import each
from metrics.by_hand import make

import trustgp
from trustgp import plots
from trustgp.plots import style

matplotlib = pytest.importorskip("matplotlib")


@pytest.fixture
def axes():
    """Empty axes of a figure that is not written."""
    with plots.figure(None, width=3, height=2) as drawn:
        return drawn.subplots()


@pytest.fixture(scope="module")
def evaluation(fitted, toy) -> trustgp.Evaluation:
    inputs, targets = toy(60, seed=4)
    return trustgp.evaluate(fitted, (inputs, targets), (4 * inputs, targets), names=["hip", "knee"])


def lines(axes) -> dict[str, np.ndarray]:
    return {line.get_label(): line.get_xydata() for line in axes.lines}


def heights(axes) -> np.ndarray:
    return np.array([[bar.get_height() for bar in group] for group in axes.containers])


def test_a_figure_is_written_and_the_settings_of_matplotlib_stay(tmp_path, evaluation):
    before = dict(matplotlib.rcParams)
    with plots.figure(tmp_path / "a.png", width=3, height=2) as figure:
        left, right = figure.subplots(1, 2)
        x = torch.linspace(0, 1, 20)
        plots.draw_band(left, x, x.sin(), 0.1 + x, label="band", line="mean")
        plots.draw_histograms(right, {"near": x + 0.1, "far": x + 10})
    plots.overview(evaluation, tmp_path / "b.png")
    for name in ("a.png", "b.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert dict(matplotlib.rcParams) == before


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    def missing(name, *rest):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r"trustgp\[plots\]"):
        style.require_matplotlib()


def test_zeros_and_infinities_are_counted_at_the_ends(axes):
    sample = torch.tensor([0.0, 0.0, 1.0, 10.0, torch.inf])
    plots.draw_histograms(axes, {"novelty": sample}, bins=4)
    np.testing.assert_allclose(heights(axes), [[0.6, 0, 0, 0.4]], atol=1e-12)


@each("sample", [torch.zeros(0), torch.tensor([-1.0]), torch.tensor([torch.nan])])
def test_what_has_no_place_in_a_histogram_is_refused_by_name(axes, sample):
    with pytest.raises(ValueError, match="novelty"):
        plots.draw_histograms(axes, {"novelty": sample})


def test_bands_follow_the_input_however_the_rows_are_ordered(axes):
    x = torch.tensor([2.0, 0.0, 1.0])
    prediction = make(torch.stack([x, 10 * x], 1), torch.full((3, 2), 4.0))
    plots.draw_bands(axes, x[:, None], prediction, targets=x, output=1, label="network")
    assert lines(axes)["network"].tolist() == [[0, 0], [1, 10], [2, 20]]
    for band, sigma in zip(axes.collections[:3], (3, 2, 1), strict=True):
        heights = band.get_paths()[0].vertices[:, 1]
        assert (heights.min(), heights.max()) == (-2 * sigma, 20 + 2 * sigma)
    assert axes.collections[3].get_offsets().tolist() == [[2, 2], [0, 0], [1, 1]]


def test_the_calibration_curve_is_the_average_or_one_output(axes, evaluation):
    plots.draw_calibration(axes, evaluation, label="all")
    plots.draw_calibration(axes, evaluation, output="knee", label="knee")
    drawn = lines(axes)
    levels = evaluation.levels.numpy()
    np.testing.assert_array_equal(drawn["all"], np.stack([levels, evaluation.observed.mean(1)], 1))
    np.testing.assert_array_equal(drawn["knee"], np.stack([levels, evaluation.observed[:, 1]], 1))
    assert [line.get_label() for line in axes.lines].count("ideal") == 1


def test_sparsification_shows_the_oracle_below_and_random_order_level(axes, evaluation):
    plots.draw_sparsification(axes, evaluation, output="hip")
    drawn = lines(axes)
    np.testing.assert_allclose(drawn["ranked by std"][:, 1] ** 2, evaluation.risk[:, 0], rtol=1e-12)
    assert (drawn["oracle"][:, 1] <= drawn["ranked by std"][:, 1] + 1e-12).all()
    np.testing.assert_allclose(drawn["random order"][:, 1], evaluation.outputs["hip"].rmse, rtol=1e-12)


def test_parity_draws_targets_predictions_and_misses_apart(axes, evaluation):
    plots.draw_parity(axes, evaluation, output="knee")
    inside, missed = (container.lines[0].get_xydata() for container in axes.containers)
    rows = np.concatenate([inside, missed])
    order = evaluation.targets[:, 1].argsort()
    pairs = torch.stack([evaluation.targets[order, 1], evaluation.prediction.mean[order, 1]], 1)
    np.testing.assert_array_equal(rows[rows[:, 0].argsort()], pairs)
    assert len(inside) == round(evaluation.outputs["knee"].coverage * 60)
    assert len(missed) + len(inside) == 60


@pytest.mark.parametrize("draw", [plots.draw_calibration, plots.draw_sparsification, plots.draw_parity])
def test_an_unknown_output_is_refused_with_the_known_ones(axes, evaluation, draw):
    with pytest.raises(ValueError, match=r"output='foot'; this evaluation has \['hip', 'knee'\]"):
        draw(axes, evaluation, output="foot")


def test_the_overview_needs_neither_foreign_rows_nor_a_prediction_for_every_row(tmp_path):
    mean = torch.linspace(-1, 1, 30, dtype=torch.float64)[:, None].clone()
    targets = mean + 0.1 * mean.cos()
    mean[3] = torch.nan
    variance = torch.where(torch.isfinite(mean), 0.01, torch.inf)
    plots.overview(trustgp.evaluate(make(mean, variance), targets), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 0
