"""Drawing leaves nothing behind but the file."""

import builtins
import importlib

import pytest
import torch

from trustgp import plots

matplotlib = pytest.importorskip("matplotlib")


def test_a_figure_is_written_and_the_settings_of_matplotlib_stay(tmp_path):
    before = dict(matplotlib.rcParams)
    with plots.figure(tmp_path / "a.png", width=3, height=2) as figure:
        left, middle, right = figure.subplots(1, 3)
        x = torch.linspace(0, 1, 20)
        plots.draw_band(left, x, x.sin(), 0.1 + x, label="band", line="mean")
        plots.draw_histograms(middle, {"near": x + 0.1, "far": x + 10})
        plots.draw_bars(right, ["one", "two"], {"a": [0.1, 0.2], "b": [0.3, 0.4]})
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert dict(matplotlib.rcParams) == before


def test_the_band_covers_mean_plus_and_minus_half(tmp_path):
    with plots.figure(tmp_path / "a.svg", width=3, height=2) as figure:
        axes = figure.subplots()
        plots.draw_band(axes, torch.tensor([0.0, 1.0]), torch.zeros(2), torch.tensor([1.0, 2.0]))
        points = axes.collections[0].get_paths()[0].vertices
        assert points[:, 1].min() == -2.0
        assert points[:, 1].max() == 2.0


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    def missing(name, *rest):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r"trustgp\[plots\]"):
        plots.require_matplotlib()


def test_importing_plots_does_not_import_matplotlib(monkeypatch):
    real = builtins.__import__

    def guarded(name, *rest, **more):
        assert not name.startswith("matplotlib")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", guarded)
    importlib.reload(plots)
