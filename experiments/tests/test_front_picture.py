"""The picture of the README is made by code, of the default fit."""

import pytest

import trustgp
from trustgp_experiments.demo import default


def test_the_picture_is_of_a_fit_to_which_nothing_else_was_said(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    asked, fit = [], trustgp.fit

    def noted(*rows, **options):
        asked.append(options)
        return fit(*rows, **options)

    monkeypatch.setattr(trustgp, "fit", noted)
    default.draw_default(tmp_path / "toy.png")
    assert asked == [{"progress": False}]
    assert (tmp_path / "toy.png").stat().st_size > 20_000
