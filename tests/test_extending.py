"""A new tangent, likelihood, peer and study: each a file and a line, as in CONTRIBUTING.md."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

import trustgp
from trustgp import likelihoods, tangents
from trustgp_experiments import studies
from trustgp_experiments.core import registry as study_registry
from trustgp_experiments.peers import registry as peer_registry

GUIDE = Path(__file__).parents[1] / "CONTRIBUTING.md"

TANGENT = '''
"""Random Fourier features of the inputs: a kernel without the network."""
from dataclasses import dataclass

import torch

from trustgp.tangents import TangentMap, Tangents
from trustgp.tangents.rows import RowFeatures


@dataclass(frozen=True)
class Fourier(Tangents):
    width: int = 16
    parameters: str = "all"

    def bind(self, network, mix, sample, targets):
        generator = torch.Generator().manual_seed(0)
        frequencies = torch.randn(sample.shape[1], self.width, generator=generator)
        return FourierMap(network, mix, frequencies.double())

    def restore(self, network, state):
        return FourierMap(network, state["mix"], state["frequencies"])

    def read_tensor(self, reader, name, full, network):
        return reader.take(full, torch.float64, None, self.width)


class FourierMap(TangentMap):
    kind = RowFeatures

    def __init__(self, network, mix, frequencies):
        super().__init__(network, mix)
        self.frequencies = frequencies

    def with_outputs(self, inputs):
        waves = inputs.double() @ self.frequencies
        return RowFeatures(torch.cat([waves.sin(), waves.cos()], dim=1).to(inputs.dtype)), None

    def num_columns(self, *, expert):
        return 2 * self.frequencies.shape[1]

    def row_bytes(self):
        return 16 * self.frequencies.shape[1]

    def working_bytes(self):
        return 2 * self.row_bytes()

    def state(self):
        return {"mix": self.mix, "frequencies": self.frequencies}
'''

LIKELIHOOD = '''
"""Real targets; the evidence's variance times one factor, fitted to held-out rows."""
from dataclasses import dataclass
from typing import ClassVar

import torch

from trustgp import Prediction
from trustgp.likelihoods import Likelihood
from trustgp.likelihoods.base import common_fields


@dataclass(frozen=True)
class Factor:
    value: torch.Tensor


@dataclass(frozen=True)
class Squares:
    ratio: torch.Tensor

    @classmethod
    def cat(cls, parts):
        return cls(torch.cat([part.ratio for part in parts]))


@dataclass(frozen=True)
class OneFactor(Likelihood):
    least: float = 0.1
    titles: ClassVar = ("factor",)
    needs_held_out: ClassVar = True
    uses_witness: ClassVar = False

    def settings(self):
        return {"least": self.least}

    def check(self, num_outputs, targets, *, name):
        if num_outputs != targets.shape[1]:
            raise ValueError(f"{name}: {targets.shape[1]} targets for {num_outputs} outputs.")

    def residual(self, outputs, targets):
        return targets.double() - outputs.double()

    def calibration_rows(self, outputs, raw, targets):
        return Squares(self.residual(outputs, targets).square() / (raw.epistemic + raw.noise))

    def calibrate(self, rows, shape, targets, *, seen=False, far=None):
        factor = torch.ones(()) if rows is None else rows.ratio.mean().clamp_min(self.least)
        return (Factor(factor.double()),)

    def recalibrate(self, rows, shape, calibrations):
        return self.calibrate(rows, shape, None)

    def read_calibrations(self, reader, prefix, shape):
        return (Factor(reader.positive(f"{prefix}0.value")),)

    def prediction(self, outputs, raw, calibrations, valid=None, familiar=None):
        factor = calibrations[0].value
        return Prediction(
            mean=outputs,
            epistemic=(factor * raw.epistemic).reshape(outputs.shape).to(outputs.dtype),
            aleatoric=(factor * raw.noise).reshape(outputs.shape).to(outputs.dtype),
            excess=torch.zeros_like(outputs),
            **common_fields(outputs, raw, None, valid, familiar),
        )
'''

PEER = '''
"""The spread of the targets, everywhere: the error bar that any other must beat."""
from dataclasses import dataclass
from typing import Any

import torch

from trustgp import Prediction


@dataclass(frozen=True)
class TargetSpread:
    network: Any
    variance: torch.Tensor

    @classmethod
    def fit(cls, network, train):
        return cls(network, train[1].var(dim=0))

    def predict(self, inputs):
        with torch.no_grad():
            mean = self.network(inputs)
        flat, rows = torch.zeros_like(mean), torch.zeros(len(mean))
        return Prediction(mean, flat, self.variance.expand_as(mean), flat, rows, rows.long(), rows == 0)
'''

STUDY = '''
"""How wide is a band of zero rows? A study to prove that one can be added."""
from trustgp_experiments.core.result import Column, Result, Setting, Table, provenance


def run(setting: Setting) -> Result:
    table = Table("Widths", [Column.text("method"), Column("width")], [["none", 0.0]])
    return Result("widths", "How wide?", ["No rows."], [table], provenance=provenance(setting, "widths"))
'''


def module_of(text, name, folder, monkeypatch):
    """A file outside of the package, imported."""
    file = folder / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def round_trip(member, path, kinds, kind, monkeypatch, **options):
    """Fit, save, load: refused while the kind is not registered, the same predictions when it is."""
    model = member.fit(num_experts=2, witness=None, **options)
    prediction = model.predict(member.inputs)
    assert bool(torch.isfinite(prediction.std).all())
    assert bool((prediction.std > 0).all())
    model.save(path)
    with pytest.raises(trustgp.ArtifactError, match=rf"'{kind.__name__}' is not in trustgp\.\w+\.KINDS"):
        trustgp.load(path, member.network)
    monkeypatch.setitem(kinds, kind.__name__, kind)  # the one line
    again = trustgp.load(path, member.network).predict(member.inputs)
    torch.testing.assert_close(again.std, prediction.std, rtol=1e-6, atol=0)
    return model


def test_a_new_tangent_is_fitted_saved_loaded_and_refused_by_the_export(fitted_zoo, tmp_path, monkeypatch):
    kind, member = (
        module_of(TANGENT, "fourier", tmp_path, monkeypatch).Fourier,
        fitted_zoo["regression-default"],
    )
    options = {"tangents": kind(width=8)}
    model = round_trip(member, tmp_path / "m.trustgp", tangents.KINDS, kind, monkeypatch, **options)
    near, far = (model.predict(x).novelty.mean() for x in (member.inputs, 40 + member.inputs))
    assert float(near) < float(far)
    with pytest.raises(trustgp.ExportError, match="features of FourierMap"):
        trustgp.export_onnx(model, tmp_path / "m.onnx", member.inputs[:2])


def test_a_new_likelihood_is_fitted_saved_and_loaded(fitted_zoo, tmp_path, monkeypatch):
    kind = module_of(LIKELIHOOD, "one_factor", tmp_path, monkeypatch).OneFactor
    member, options = fitted_zoo["regression-default"], {"likelihood": kind(least=0.2)}
    model = round_trip(member, tmp_path / "m.trustgp", likelihoods.KINDS, kind, monkeypatch, **options)
    assert model.predict(member.inputs).mean.equal(member.network(member.inputs))


def test_a_new_peer_is_fitted_with_the_others(fitted_zoo, tmp_path, monkeypatch):
    peer, member = module_of(PEER, "target_spread", tmp_path, monkeypatch), fitted_zoo["regression-default"]
    line = peer_registry.Method("target spread", lambda b: peer.TargetSpread.fit(b.network, b.train))
    monkeypatch.setattr(peer_registry, "METHODS", (*peer_registry.METHODS, line))
    rows, names = (member.inputs, member.targets), ["network + noise", "target spread"]
    bundle = peer_registry.Bundle(member.network, (), None, rows, rows)
    peers = {fitted.name: fitted for fitted in peer_registry.fit_methods(bundle, names)}
    assert list(peers) == names
    torch.testing.assert_close(peers["target spread"].predict(rows[0]).variance[0], rows[1].var(dim=0))


def test_a_new_study_is_run_and_written(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason='studies draw: pip install "trustgp[plots]"')
    (tmp_path / "studies" / "widths").mkdir(parents=True)
    (tmp_path / "studies" / "widths" / "study.py").write_text(STUDY)
    monkeypatch.setattr(studies, "__path__", [*studies.__path__, str(tmp_path / "studies")])
    monkeypatch.setitem(study_registry.STUDIES, "widths", "how wide a band of zero rows is")  # the one line
    study_registry.run_study("widths", tmp_path / "out", seeds=1, quick=True)
    for name in [name for name in sys.modules if name.startswith("trustgp_experiments.studies.widths")]:
        monkeypatch.delitem(sys.modules, name)
    written = json.loads((tmp_path / "out" / "widths" / "result.json").read_text())
    assert written["study"] == "widths"


def test_the_guide_names_the_files_of_these_tests():
    words = GUIDE.read_text()
    for name in ("src/trustgp/tangents/__init__.py", "src/trustgp/likelihoods/__init__.py"):
        assert name in words
    for name in ("peers/registry.py", "core/registry.py"):
        assert f"experiments/src/trustgp_experiments/{name}" in words
