"""Fits the error bar of the detector of rendered scenes, which `trustgp demo --detection` loads.

    python -m trustgp_experiments.training.detector_error_bar

It fits to 3,000 of the pictures that the detector was trained on, calibrates on 500 others of the same style,
and writes `weights/scenes.trustgp` of this package, 0.4 MB; about ten minutes on one core.
"""

import argparse
from pathlib import Path

from torch import Tensor

from trustgp.api import load
from trustgp.data.tensor_file import ArtifactError
from trustgp.detection import BoxTargets, DetectionModel
from trustgp.detection import fit as fit_detector
from trustgp_experiments.datasets.scenes import scenes
from trustgp_experiments.training.detector_network import WEIGHTS, pixels, trained

FILE = WEIGHTS / "scenes.trustgp"
COMMAND = "python -m trustgp_experiments.training.detector_error_bar"
PICTURES, HELD_OUT = 3_000, 500  # to fit on, and to calibrate on
SEED = {"train": 0, "validation": 10}  # of the pictures; the detector was trained on the first ones
FALSE_ALARM = 0.05  # share of known things above the threshold: an alarm that a figure can show


def rendered(n: int, seed: int) -> tuple[Tensor, list[BoxTargets]]:
    """Pictures as inputs of the detector, with their boxes and labels."""
    drawn = scenes(n, "carry", seed=seed)
    return pixels(drawn.images), list(map(BoxTargets, drawn.boxes, drawn.labels))


def load_error_bar(path: Path = FILE) -> DetectionModel:
    """Load the fitted error bar; an error explains how to fit it again."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; fit it with `{COMMAND}` (ten minutes).")
    try:
        model = load(path, trained("scenes"))
    except ArtifactError as error:
        raise ArtifactError(f"{error} To fit it again (ten minutes): `{COMMAND}`.") from error
    assert isinstance(model, DetectionModel)  # no other kind is loaded for a detector
    return model


def main() -> None:
    """Fit the error bar of the detector "scenes", with a threshold, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pictures", type=int, default=PICTURES, help="to fit on; fewer for a quick try")
    parser.add_argument("--held-out", type=int, default=HELD_OUT, help="to calibrate on")
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    train = rendered(options.pictures, SEED["train"])
    validation = rendered(options.held_out, SEED["validation"])
    model = fit_detector(trained("scenes"), train, validation=validation, progress=True)
    model.threshold(false_alarm=FALSE_ALARM)
    model.save(options.out)
    print(model)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
