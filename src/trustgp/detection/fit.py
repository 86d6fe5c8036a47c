"""From a detector and pictures to its error bars: one pass over the pictures, and sums of what was seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler

from ..data.user_warnings import warn_user
from ..executors.progress import Reporter, reporting
from ..experts.witness import Witness
from ..fitting.checkpoint import locked
from ..tangents.modules import clone_module, unwrap
from .adapter import Detector
from .calibration import ClassTemperature, EdgeErrors, EdgeNoise
from .model import DetectionModel
from .pass_checkpoint import PassCheckpoint
from .picture_pass import LOT, HeldOut, PicturePass, lots
from .query_rows import Detection, QueryRows
from .readout import Readout
from .scenes import SceneStream
from .state import DetectorState, novelty_of

LEAST = 20  # rows, to fit anything
TENTH = 10  # one picture of so many is held out where none are given
HELD = (
    "{} of the {} training pictures are kept from the experts, to fit the size of the error bars; pass "
    "validation=, pictures that the detector has not seen, for honest ones."
)
TOO_FEW = f"{{}} pictures are too few to hold some out; pass validation=, or {TENTH} pictures."
GROUPS = "pictures are held out as validation="
SINGLE = "a detector has one expert for each class, from sums over one pass"
REFUSED = {  # options of `trustgp.fit`, and why they say nothing here
    "unpack": "pictures are passed with their Things",
    "groups": GROUPS,
    "output": "what it returns is known",
    "outputs": SINGLE,
    "tangents": SINGLE,
    "num_experts": SINGLE,
    "patchwork": SINGLE,
    "division": SINGLE,
    "executor": SINGLE,
    "budget": "an error bar of a detector holds classes x d x d numbers, whatever it is fitted on",
    "memory": SINGLE,
}


def fit_detector(network: Any, train: Any, settings: Detection, **given: Any) -> DetectionModel:
    """Error bars for the boxes and classes of a detector, left as it is: `trustgp.fit` with `Detection()`.

    What to train on is told in `SceneStream`: pictures are read as they are needed, `LOT` at a time, and go
    through the detector once. Of the options of `trustgp.fit`, `validation`, `device`, `checkpoint` and
    `progress` count; `validation` is like `train`, of pictures that the detector has not seen: the size of
    the error bars is fitted to them. None: every tenth training picture is kept for that.
    """
    options = _checked(given)
    private = clone_module(unwrap(network)).eval()
    detector = Detector(private if options.device is None else private.to(options.device), settings.adapter)
    streams = {"train": SceneStream(train, detector, name="train")}
    if options.validation is not None:
        streams["validation"] = SceneStream(options.validation, detector, name="validation")
    _check_streams(streams, detector)
    with locked(options.checkpoint), reporting(enabled=options.progress) as report:
        store = None
        if options.checkpoint is not None:
            _require_order(train, options.validation)
            store = PassCheckpoint.open(options.checkpoint, detector, settings, streams)
        with _explained_stop(report, store):
            passes = [
                _passed(detector, settings, name, stream, "validation" in streams, report, store)
                for name, stream in streams.items()
            ]
    return DetectionModel(_calibrated(passes[0], passes[-1]))


def _passed(
    detector: Detector,
    settings: Detection,
    name: str,
    stream: SceneStream,
    validated: bool,
    report: Reporter,
    store: PassCheckpoint | None,
) -> PicturePass:
    """One of the two passes; where no pictures are held out for validation, the only one."""
    every = TENTH if not validated else 1 if name == "validation" else None
    made = PicturePass(detector, settings, HeldOut(every, stream.total))
    if store is not None:
        store.resume(name, made)
    total = None if stream.total is None else -(-stream.total // LOT)
    given = lots(stream.scenes(made.done))
    stage = "held-out pictures" if name == "validation" else "training pictures"
    for lot in report.track(given, stage=stage, total=total, done=made.done // LOT):
        made.take(lot)
        if store is not None:
            store.keep(name, made)
    if store is not None:
        store.keep(name, made, force=True)
    if every is not None and not made.held:
        raise ValueError(TOO_FEW.format(made.done))
    if made.queries is not None:
        _enough(int(made.queries.count.sum()), settings, "train")
        _warn_of_classes(made.queries.count)
    if every is not None:
        held = QueryRows.joined(made.held)
        if every == TENTH:
            warn_user(HELD.format(len(held.pictures), made.done))
        _enough(len(held.found), settings, "the held-out pictures")
    return made


def _check_streams(streams: dict[str, SceneStream], detector: Detector) -> None:
    """What can be said before all pictures are read."""
    sizes = {}
    for name, stream in streams.items():
        assert stream.first is not None
        images = stream.first[0]
        sizes[name] = {tuple(one.shape[-2:]) for one in images}
        try:
            detector(images[:1] if isinstance(images, Tensor) else images[0][None])
        except RuntimeError as error:
            said = f"the detector takes no pictures [channels, height, width] of {tuple(images[0].shape)}"
            raise ValueError(f"{said}: {error}") from error
    total = streams["train"].total
    if "validation" not in streams and total is not None and total < TENTH:
        raise ValueError(TOO_FEW.format(total))
    known = all(
        stream.first is not None and len(stream.first[0]) == stream.total for stream in streams.values()
    )
    if known and len(sizes["train"]) == 1 and not sizes["train"] & sizes.get("validation", sizes["train"]):
        (size,), (other, *_) = sizes["train"], sizes["validation"]
        raise ValueError(f"validation: pictures are {other} pixels; the model was fitted on {size}.")


@contextmanager
def _explained_stop(report: Reporter, store: PassCheckpoint | None) -> Iterator[None]:
    """Ctrl-C says how the fit goes on."""
    try:
        yield
    except KeyboardInterrupt as error:
        kept = "Nothing of it is kept; with checkpoint=FOLDER the same call goes on from there."
        if store is not None:
            kept = f"How far it is stands in {store.folder}; the same call goes on from there."
        raise KeyboardInterrupt(f"the fit was stopped while {report.standing}. {kept}") from error


def _require_order(*given: Any) -> None:
    """Pictures must come in the same order when a fit is taken up."""
    for one in given:
        if isinstance(one, DataLoader) and isinstance(one.sampler, RandomSampler):
            raise ValueError(
                "checkpoint= needs pictures in the same order each time; pass the Dataset, or "
                "DataLoader(..., shuffle=False)."
            )


@dataclass(frozen=True)
class _Options:
    validation: Any
    device: Any
    progress: bool
    checkpoint: Path | None


def _checked(given: dict[str, Any]) -> _Options:
    """Options that say nothing about detectors are refused."""
    given = dict(given)
    for name, reason in REFUSED.items():
        if given.pop(name, None) is not None:
            raise ValueError(f"{name}= is not for detectors: {reason}.")
    if given.pop("witness", None) not in (None, Witness()):
        raise ValueError("witness= is not for detectors: it takes vectors; leave it out.")
    given.pop("seed", None)  # nothing is drawn
    given.pop("strict", None)  # nor can an expert fail
    names = ("validation", "device", "progress", "checkpoint")
    validation, device, progress, folder = (given.pop(name, None) for name in names)
    if given:
        raise TypeError(f"trustgp.fit has no option {min(given)!r}.")
    return _Options(validation, device, progress is not False, None if folder is None else Path(folder))


def _enough(found: int, settings: Detection, name: str) -> None:
    if found < LEAST:
        raise ValueError(
            f"in {name} the detector finds {found} of the things, at least {LEAST} are needed: "
            f"more pictures, a lower overlap (now {settings.overlap}), or a better detector."
        )


def _warn_of_classes(count: Tensor) -> None:
    """Of classes that were never found; they are judged by what all have in common."""
    none = (count == 0).nonzero().flatten().tolist()
    if none:
        names = ", ".join(map(str, none[:5])) + (" ..." if len(none) > 5 else "")
        warn_user(f"{len(none)} of {len(count)} classes have no training row ({names}).")


def _calibrated(learnt: PicturePass, judged: PicturePass) -> DetectorState:
    """What is known of classes and pictures, and how sure that makes held-out detections."""
    told, changed = QueryRows.joined(judged.held), QueryRows.joined(judged.changed)
    assert learnt.queries is not None
    assert learnt.pictures is not None
    assert learnt.size is not None
    found = told.found
    readout = Readout.fit(learnt.queries, told.seen[found], told.kinds[found])
    pictures = Readout.fit(learnt.pictures, told.pictures, _alone(told))
    unknown, whole = readout(told.seen, told.kinds), pictures(told.pictures, _alone(told))
    errors = [_edge_errors(rows, readout, pictures) for rows in (told, changed)]
    return DetectorState(
        learnt.detector.network,
        readout,
        pictures,
        ClassTemperature.fit(told.logits, unknown, told.labels),
        EdgeNoise.fit(*errors),
        names=learnt.detector.names,
        size=learnt.size,
        mixed=learnt.mixed or judged.mixed or learnt.size != judged.size,
        rows=int(learnt.queries.count.sum()),
        settings=learnt.settings,
        held_scores=novelty_of(unknown[told.sure]),
        held_pictures=novelty_of(whole),
    )


def _alone(rows: QueryRows) -> Tensor:
    """The one class of pictures."""
    return torch.zeros(len(rows.pictures), dtype=torch.int64)


def _edge_errors(rows: QueryRows, readout: Readout, pictures: Readout) -> EdgeErrors:
    found = rows.found
    whole = pictures(rows.pictures, _alone(rows))
    unknown = readout(rows.seen[found], rows.kinds[found])
    return EdgeErrors(rows.errors[found], unknown, whole[rows.picture[found]])
