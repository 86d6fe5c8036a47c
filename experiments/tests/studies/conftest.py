"""One small run of each study, made when a test first needs it and shared by all."""

from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from trustgp_experiments.core.registry import run_study
from trustgp_experiments.core.result import Result

NEEDED = {
    "transfer": ("laplace", "pinocchio"),
    "tables": ("laplace",),
    "control": ("laplace",),
    "classification": ("laplace",),
    "runtime": ("laplace", "onnx", "onnxruntime"),
    "distributed": ("pinocchio",),
    "detection": ("transformers", "PIL", "laplace"),
}


def patch_study(name: str, patch: pytest.MonkeyPatch) -> None:
    """Leave out recordings but for `transfer`, Ray, which starts slowly, and large networks."""
    if name != "transfer":
        patch.delenv("TRUSTGP_DATA", raising=False)
    if name == "transfer":
        from trustgp_experiments.studies.transfer import study as transfer

        both = [("barrett", "new motions"), ("barrett", "known motions")]
        patch.setattr(transfer, "trainings", lambda quick: both)
    if name == "distributed":
        from trustgp_experiments.studies.distributed import study as distributed

        patch.setattr(distributed, "settings", lambda device, cores: [("threads", 1), ("threads", 2)])
    if name == "runtime":
        from trustgp_experiments.studies.runtime import study as runtime

        def absent(seed):
            raise ImportError("it needs a package")

        chosen = runtime.kinds(quick=True, device="cpu")
        one = replace(chosen["MLP"], budgets=lambda network: {"large": {"budget": "1 MiB"}}, members=False)
        two = {"MLP": one, "ConvNet": replace(chosen["ConvNet"], network=absent)}
        patch.setattr(runtime, "kinds", lambda **options: two)


@pytest.fixture(scope="session")
def small_run(tmp_path_factory, request):
    """A function from a study's name to the folder of all results and the result of its small run."""

    @cache
    def run(name: str) -> tuple[Path, Result]:
        missing = [package for package in ("matplotlib", *NEEDED.get(name, ())) if find_spec(package) is None]
        if missing:
            pytest.skip(f"{', '.join(missing)} is not installed")
        if name == "transfer":
            request.getfixturevalue("data_root")
        out = tmp_path_factory.mktemp(name)
        with pytest.MonkeyPatch.context() as patch:
            patch_study(name, patch)
            return out, run_study(name, out, quick=True, seeds=2 if name == "toy" else 1)

    return run
