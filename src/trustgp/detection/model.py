"""A detector with an error bar: boxes and classes unchanged, with how sure they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.rows import finite_rows
from ..data.trees import leaves
from ..export.trace.trace import traced
from ..likelihoods.base import FamiliarScores
from ..likelihoods.detections import Detections
from ..metrics.boxes import corners
from ..state import model_state
from ..state.model_state import FittedModel, of_state
from .detector import Detector
from .query_rows import PICTURES, Detection, kept, known_rows, probabilities
from .scenes import as_pictures, as_scenes
from .state import DetectorState, save_detector


class DetectionModel(FittedModel):
    """A detector and its error bar: how sure its classes are, and, from the same kernel, its edges.

    Made by `trustgp.fit(detector, ..., likelihood=trustgp.Detection())` or `trustgp.load`.
    """

    state: DetectorState  # all that is known; `threshold` replaces it
    size: tuple[int, int] = of_state("size", "Height and width of the pictures.")
    settings: Detection = of_state("settings", "What the user said.")

    def __init__(self, state: DetectorState, *, record: bool = False) -> None:
        super().__init__()
        self.network, self.finding, self.state = state.network, state.finding, state
        self.training = False
        self._recorded = _recorded(state) if record else None

    @property
    def nbytes(self) -> int:
        """What the error bar holds in memory, the network itself not counted."""
        return self.finding.nbytes

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
        unknown = Detections(four, four, empty.long(), empty, told, empty, False, self._limit)
        return [next(found) if fine else unknown for fine in good.tolist()]

    def traced(self) -> DetectionModel:
        """The same model with its error bar recorded as a graph: exact to rounding, and faster for few rows.

        Takes a few seconds. Boxes and classes are the detector's own all the same.
        """
        return DetectionModel(self.state, record=True)

    def _predict(self, detector: Detector, images: Tensor) -> list[Detections]:
        seen = detector(images)
        chances = probabilities(seen.logits, detector.labels)
        image, query = kept(chances, self.state.settings)
        size = seen.boxes.new_tensor([images.shape[3], images.shape[2]] * 2)
        boxes = (corners(seen.boxes) * size)[image, query]
        confidence, kind = chances[image, query].max(dim=1)
        told, score = chances.new_zeros(0, detector.labels + 1), boxes.new_zeros(0)
        rows = seen.rows(self.state.names, image, query)
        if len(image) and self._recorded is not None:
            told, score = self._recorded(rows)
        elif len(image):
            said = self.finding.predict(rows)
            told, score = said.probabilities, said.score
        std = self.state.edges.std(score).to(boxes)
        sizes = torch.bincount(image, minlength=len(images)).tolist()
        parts = zip(*(p.split(sizes) for p in (boxes, std, kind, confidence, told, score)), strict=True)
        sound = torch.isfinite(seen.logits.sum(dim=(1, 2)) + seen.boxes.sum(dim=(1, 2))).tolist()
        pairs = zip(parts, sound, strict=True)
        return [Detections(*lot, valid=valid, _threshold=self._limit) for lot, valid in pairs]

    @property
    def _limit(self) -> float | None:
        return FamiliarScores.of(self.held_scores, self.alarm).threshold

    @torch.no_grad()
    def threshold(self, scenes: Any = None, *, false_alarm: float = 0.01) -> float:
        """Fit the threshold of the novelty, by which `is_novel` goes from now on.

        A new detection that has found a thing like those it is fitted on lies above it with probability
        `false_alarm` at most, however many there are. It is saved with the model.

        Args:
            scenes: Familiar pictures and their things, as for `trustgp.fit`, that neither the detector nor
                the experts have seen. None: those passed to the fit as `validation`.
            false_alarm: In (0, 1); it takes at least 1 / false_alarm - 1 detections that have found a thing.
        """
        state, scores = self.state, self.held_scores
        if scenes is not None:
            detector = state.detector
            pictures = as_scenes(scenes, detector, size=state.size, name="scenes")
            rows = known_rows(detector, state.names, *pictures, state.settings)
            scores = self.finding.predict(rows.inputs).score.cpu().double()[rows.sure]
        return self._with_threshold(scores, false_alarm)

    def watch(self) -> DetectionRunner:
        """The model as `trustgp.Monitor` takes it: one answer a picture."""
        return DetectionRunner(self)

    def save(self, path: str | Path) -> None:
        """Write the error bar to one file, whole or not at all; the detector is not in it."""
        save_detector(self.state, path)

    def __repr__(self) -> str:
        height, width = self.size
        sizes = f"pictures: {height} x {width} pixels, height x width"
        return f"{type(self).__name__}\n  {sizes}\n{model_state.describe(self.finding.state)}"

    def _apply(self, fn, recurse: bool = True) -> DetectionModel:
        super()._apply(fn, recurse)
        if self._recorded is not None:  # a graph keeps to its device
            self._recorded = _recorded(self.state)
        return self


@torch.no_grad()
def _recorded(state: DetectorState) -> Callable[[dict[str, Tensor]], tuple[Tensor, Tensor]]:
    """What the error bar says of rows, as a graph that keeps to the device where the model is now."""
    first, detector = next(state.network.parameters()), state.detector
    shape = (1, detector.channels, *state.size)
    picture = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(first)
    one = torch.zeros(1, dtype=torch.int64, device=first.device)
    graph = traced(state.finding, detector(picture).rows(state.names, one, one), plain=False)
    return lambda rows: itemgetter("probabilities", "score")(graph(*leaves(rows)))


class DetectionRunner:
    """A `DetectionModel` as a `PredictionSource` (see `trustgp.monitor.readings`), for `trustgp.Monitor`.

    Of a picture `mean` is how many things are found in it, `variance` that of their least sure edge in square
    pixels, and `novelty` the largest of their novelties; all 0 where nothing is found.
    """

    def __init__(self, model: DetectionModel) -> None:
        self.model = model

    @property
    def metadata(self) -> Mapping[str, Any]:
        """With the threshold, where one was fitted: it is the monitor's."""
        alarm = self.model.alarm
        return {} if alarm is None else {"threshold": float(alarm.threshold)}

    def __call__(self, images: Tensor, /) -> dict[str, Tensor]:
        """By name: "mean" and "variance" [n, 1], "novelty" and "valid" [n]."""
        if isinstance(images, Tensor) and images.ndim != 4:
            raise ValueError(f"pictures are {tuple(images.shape)}; [n, channels, height, width] is needed.")
        found = self.model.predict(images)
        told = [{**one.summary, "valid": one.valid} for one in found]
        columns = ([one[name] for one in told] for name in ("novelty", "std", "valid"))
        novelty, std, valid = (torch.tensor(column, dtype=torch.float64) for column in columns)
        return {
            "mean": torch.tensor([[float(len(one))] for one in found]).reshape(-1, 1),
            "variance": std.square()[:, None],
            "novelty": novelty,
            "valid": valid.bool() & torch.isfinite(std) & torch.isfinite(novelty),
        }
