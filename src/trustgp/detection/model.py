"""A detector with an error bar: boxes and classes unchanged, with how sure they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.quantities import size_text
from ..data.rows import finite_rows
from ..likelihoods.base import FamiliarScores, NoveltyThreshold
from ..likelihoods.detections import Detections
from ..metrics.boxes import corners
from ..state.model_state import FittedModel, of_state
from .adapter import Detector
from .candidates import Candidates, candidates
from .foreign_scenes import foreign_scenes
from .query_rows import PICTURES, Detection, kept, known_rows, probabilities, with_background
from .scenes import as_pictures, as_scenes
from .state import DetectorState, novelty_of, save_detector
from .things import Things


class DetectionModel(FittedModel):
    """A detector and its error bar: how sure its classes and its edges are, and how familiar a picture is.

    Made by `trustgp.fit(detector, ..., likelihood=trustgp.Detection())` or `trustgp.load`.
    """

    state: DetectorState  # all that is known; `threshold` replaces it
    size: tuple[int, int] = of_state("size", "Height and width of the pictures.")
    settings: Detection = of_state("settings", "What the user said.")

    def __init__(self, state: DetectorState) -> None:
        super().__init__()
        self.network, self.state = state.network, state
        self.training = False

    @property
    def nbytes(self) -> int:
        """What the error bar holds in memory, the network itself not counted."""
        return self.state.readout.nbytes + self.state.pictures.nbytes

    @torch.no_grad()
    def predict(self, images: Any) -> list[Detections]:
        """Detections of each picture.

        Args:
            images: As the detector takes them, [n, channels, height, width], one of them, or a list. Of one
                that holds NaN or infinity `valid` is False; the others come out as if it were not there.
        """
        detector = self.state.detector
        pictures = as_pictures(images, channels=detector.channels, size=self.state.size)
        good = finite_rows(pictures)
        fine = pictures if bool(good.all()) else pictures[good]
        parts = fine.split(PICTURES) if len(fine) else ()
        found = iter([one for part in parts for one in self._predict(detector, part)])
        place, labels = detector.place, detector.labels
        empty, four, told = place.new_zeros(0), place.new_zeros(0, 4), place.new_zeros(0, labels + 1)
        shared = {**self._shared, "valid": False, "picture_novelty": 1.0}
        unknown = Detections(four, four, empty.long(), empty, told, empty, **shared)
        return [next(found) if fine else unknown for fine in good.tolist()]

    @property
    def _shared(self) -> dict[str, Any]:
        """What all pictures have in common."""
        state, alarm = self.state, self.alarm
        limits = [
            FamiliarScores.of(scores, None).threshold for scores in (state.held_scores, state.held_pictures)
        ]
        if alarm is not None:
            limits = [float(alarm.threshold), _limit(state.held_pictures, float(alarm.false_alarm))]
        names = ("_threshold", "_picture_threshold")
        return {"df": float(state.edges.df), **dict(zip(names, limits, strict=True))}

    def _predict(self, detector: Detector, images: Tensor) -> list[Detections]:
        seen, state, shared = detector(images), self.state, self._shared
        chances = probabilities(seen.logits, detector.labels)
        image, query = kept(chances, seen.boxes, state.settings)
        size = seen.boxes.new_tensor([images.shape[3], images.shape[2]] * 2)
        boxes = (corners(seen.boxes) * size)[image, query]
        confidence, kind = chances[image, query].max(dim=1)
        unknown = state.readout(seen.seen[image, query], kind)
        whole = state.pictures(seen.seen.mean(dim=1), image.new_zeros(len(images)))
        logits = with_background(seen.logits[image, query], detector.labels)
        told = state.temperature(logits, unknown).to(boxes)
        std = state.edges.std(unknown, whole[image]).to(boxes)
        novelty = novelty_of(unknown).to(boxes)
        sizes = torch.bincount(image, minlength=len(images)).tolist()
        parts = zip(*(p.split(sizes) for p in (boxes, std, kind, confidence, told, novelty)), strict=True)
        sound = torch.isfinite(seen.logits.sum(dim=(1, 2)) + seen.boxes.sum(dim=(1, 2)) + whole).tolist()
        each = zip(parts, sound, novelty_of(whole).tolist(), strict=True)
        return [Detections(*lot, valid=fine, picture_novelty=new, **shared) for lot, fine, new in each]

    @torch.no_grad()
    def threshold(self, scenes: Any = None, *, false_alarm: float = 0.01) -> float:
        """Fit the threshold of the novelty, by which `is_novel` goes from now on.

        A new detection that has found a thing like those it is fitted on lies above it with probability
        `false_alarm` at most, however many there are; and so does a picture, above one of its own, where
        there are enough of them. They are saved with the model.

        Args:
            scenes: Familiar pictures and their things, as for `trustgp.fit`, that neither the detector nor
                the experts have seen. None: those passed to the fit as `validation`.
            false_alarm: In (0, 1); it takes at least 1 / false_alarm - 1 detections that have found a thing.
        """
        state, scores = self.state, self.held_scores
        if scenes is not None:
            detector = state.detector
            images, things = as_scenes(scenes, detector, size=state.size, name="scenes")
            parts = [
                known_rows(detector, images[i : i + PICTURES], things[i : i + PICTURES], state.settings)
                for i in range(0, len(images), PICTURES)
            ]
            scores = torch.cat([novelty_of(state.readout(p.seen, p.kinds)[p.sure]) for p in parts])
            seen = torch.cat([part.pictures for part in parts])
            whole = novelty_of(state.pictures(seen, torch.zeros(len(seen), dtype=torch.int64)))
            NoveltyThreshold.fit(scores, false_alarm)  # before anything is replaced
            self.state = replace(state, held_pictures=whole)
        return self._with_threshold(scores, false_alarm)

    def candidates(self, images: Any) -> list[Candidates]:
        """Every query of the detector in each picture, sure or not, without error bars: what AP is of.

        Args:
            images: As for `predict`.
        """
        return candidates(self.state.detector, images, size=self.state.size)

    def read_scenes(
        self, given: Any, *, name: str, foreign: bool = False
    ) -> tuple[Tensor, list[Things] | None]:
        """Pictures and their things, read and checked as `fit` does it: for `trustgp.evaluate`.

        Args:
            given: As for `trustgp.fit`.
            name: What it is called in errors.
            foreign: They may come without things (None), or with things of classes that the detector does not
                know, whose labels begin where its own end.
        """
        read = foreign_scenes if foreign else as_scenes
        return read(given, self.state.detector, name=name, size=self.state.size)

    def watch(self) -> DetectionRunner:
        """The model as `trustgp.Monitor` takes it: one answer a picture."""
        return DetectionRunner(self)

    def save(self, path: str | Path) -> None:
        """Write the error bar to one file, whole or not at all; the detector is not in it."""
        save_detector(self.state, path)

    def __repr__(self) -> str:
        (height, width), state = self.size, self.state
        facts = {
            "detector": f"{type(state.network).__name__}, {len(state.readout.centre):,} classes",
            "pictures": f"{height} x {width} pixels, height x width",
            "seen": f"{', '.join(state.names)}: {state.readout.centre.shape[1]:,} numbers",
            "rows": f"{state.rows:,} queries that had found a thing",
            "size": size_text(self.nbytes),
            "calibration": f"{len(state.held_scores):,} detections in {len(state.held_pictures):,} held-out "
            "pictures",
        }
        return "\n".join([type(self).__name__, *(f"  {name}: {said}" for name, said in facts.items())])


def _limit(scores: Tensor, false_alarm: float) -> float | None:
    """The threshold of pictures for so many false alarms; None: there are too few."""
    try:
        return float(NoveltyThreshold.fit(scores, false_alarm).threshold)
    except ValueError:
        return FamiliarScores.of(scores, None).threshold


class DetectionRunner:
    """A `DetectionModel` as a `PredictionSource` (see `trustgp.monitor.readings`), for `trustgp.Monitor`.

    Of a picture `mean` is how many things are found in it, `variance` that of their least sure edge in square
    pixels, 0 where nothing is found. `novelty` is r / (1 + r), where r is the largest novelty of a detection,
    or of the picture itself, over its threshold: 0.5 is the threshold of both.
    """

    THRESHOLD = 0.5

    def __init__(self, model: DetectionModel) -> None:
        self.model = model

    @property
    def metadata(self) -> Mapping[str, Any]:
        """With the threshold, where one was fitted: it is the monitor's."""
        return {} if self.model.alarm is None else {"threshold": self.THRESHOLD}

    def __call__(self, images: Tensor, /) -> dict[str, Tensor]:
        """By name: "mean" and "variance" [n, 1], "novelty" and "valid" [n]."""
        if isinstance(images, Tensor) and images.ndim != 4:
            raise ValueError(f"pictures are {tuple(images.shape)}; [n, channels, height, width] is needed.")
        found = self.model.predict(images)
        told = [{**one.summary, "valid": one.valid, "over": one.over_threshold} for one in found]
        columns = ([one[name] for one in told] for name in ("over", "std", "valid"))
        over, std, valid = (torch.tensor(column, dtype=torch.float64) for column in columns)
        return {
            "mean": torch.tensor([[float(len(one))] for one in found]).reshape(-1, 1),
            "variance": std.square()[:, None],
            "novelty": over / (1.0 + over),
            "valid": valid.bool() & torch.isfinite(std) & torch.isfinite(over),
        }
