"""A new tangent and a new likelihood from outside of the package, as in CONTRIBUTING.md."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import trustgp
from trustgp import likelihoods, tangents
from trustgp.likelihoods import Likelihood
from trustgp.likelihoods.base import common_fields
from trustgp.tangents import TangentMap, Tangents
from trustgp.tangents.rows import RowFeatures


@dataclass(frozen=True)
class Fourier(Tangents):
    """Random Fourier features of the inputs: a kernel without the network."""

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
    """Real targets; the evidence's variance times one factor, fitted to held-out rows."""

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
        parts = {"epistemic": raw.epistemic, "aleatoric": raw.noise, "excess": torch.zeros_like(outputs)}
        scaled = {k: (calibrations[0].value * v).reshape(outputs.shape).to(outputs) for k, v in parts.items()}
        fields = common_fields(outputs, raw, None, valid, familiar)
        return trustgp.Prediction(mean=outputs, **scaled, **fields)


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
    member, options = fitted_zoo["regression-default"], {"tangents": Fourier(width=8)}
    model = round_trip(member, tmp_path / "m", tangents.KINDS, Fourier, monkeypatch, **options)
    familiar, far = (model.predict(x).novelty.mean() for x in (member.inputs, 40 + member.inputs))
    assert float(familiar) < float(far)
    with pytest.raises(trustgp.ExportError, match="FourierMap features"):
        trustgp.export_onnx(model, tmp_path / "m.onnx", member.inputs[:2])


def test_a_new_likelihood_is_fitted_saved_and_loaded(fitted_zoo, tmp_path, monkeypatch):
    member, options = fitted_zoo["regression-default"], {"likelihood": OneFactor(least=0.2)}
    model = round_trip(member, tmp_path / "m", likelihoods.KINDS, OneFactor, monkeypatch, **options)
    assert model.predict(member.inputs).mean.equal(member.network(member.inputs))


def test_the_guide_names_the_files_of_these_tests():
    guide = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    assert all(f"src/trustgp/{name}/__init__.py" in guide for name in ("tangents", "likelihoods"))
