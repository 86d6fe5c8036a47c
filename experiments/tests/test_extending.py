"""A new peer and a new study: each a file and a line, as in CONTRIBUTING.md."""

import json
import sys

import pytest
import torch

from trustgp_experiments import studies
from trustgp_experiments.core import registry as study_registry
from trustgp_experiments.peers import Bundle, ConstantNoise, Method, fit_methods, mlp, registry

STUDY = """
from trustgp_experiments.core.result import Column, Result, Setting, Table, provenance

def run(setting: Setting) -> Result:
    table = Table("Widths", [Column.text("method"), Column("width")], [["none", 0.0]])
    return Result("widths", "How wide?", ["No rows."], [table], provenance=provenance(setting, "widths"))
"""


def spread_of_targets(bundle: Bundle) -> ConstantNoise:
    return ConstantNoise(bundle.network, noise=bundle.train[1].double().var(dim=0))


def test_a_new_peer_is_fitted_with_the_others(generator, monkeypatch):
    line = Method("target spread", spread_of_targets)
    monkeypatch.setattr(registry, "METHODS", (*registry.METHODS, line))
    rows, variances = (torch.randn(40, 3, generator=generator), torch.randn(40, 2, generator=generator)), {}
    for fitted in fit_methods(Bundle(mlp([3, 4, 2]), (), None, rows, rows), ["network + noise", line.name]):
        variances[fitted.name] = fitted.predict(rows[0]).variance[0]
    assert list(variances) == ["network + noise", line.name]
    torch.testing.assert_close(variances[line.name], rows[1].var(dim=0))


def test_a_new_study_is_run_and_written(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason='studies draw: pip install "trustgp[plots]"')
    (tmp_path / "studies" / "widths").mkdir(parents=True)
    (tmp_path / "studies" / "widths" / "study.py").write_text(STUDY)
    monkeypatch.setattr(studies, "__path__", [*studies.__path__, str(tmp_path / "studies")])
    monkeypatch.setitem(study_registry.STUDIES, "widths", "how wide a band of zero rows is")  # the one line
    study_registry.run_study("widths", tmp_path / "out", seeds=1, quick=True)
    for name in [name for name in sys.modules if name.startswith("trustgp_experiments.studies.widths")]:
        monkeypatch.delitem(sys.modules, name)
    assert json.loads((tmp_path / "out" / "widths" / "result.json").read_text())["study"] == "widths"
