"""Every example of the gallery runs and draws a picture; those under examples/ have tests of their own."""

import importlib.util
import runpy
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parent.parent
GALLERY, FOLDER = ROOT / "docs" / "gallery", ROOT / "examples"
OWN_TESTS = {"ros2_node", "training_callbacks"}  # tests/test_stand_ins.py; tests/export compiles examples/cpp
OPTIONAL = ("matplotlib", "mcap", "onnxruntime", "pandas", "transformers")


def example(name: str, folder: Path = FOLDER) -> ModuleType:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", sorted(GALLERY.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_of_the_gallery_runs_and_draws_a_picture(path, tmp_path, monkeypatch):
    """Seconds each: the page is made from the same script, and a reader begins with it."""
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        try:
            names = runpy.run_path(str(path), run_name="__main__")
        except ImportError as error:
            if error.name not in OPTIONAL and "pip install" not in str(error):
                raise
            pytest.skip(f"the example needs an optional package: {error}")
    assert "model" in names or "search" in names
    (picture,) = tmp_path.glob("*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_every_other_example_has_a_test():
    assert {path.stem for path in FOLDER.glob("*.py")} == OWN_TESTS
