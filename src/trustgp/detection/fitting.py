"""The fit of a detector's error bars, from one pass over the pictures and moments of the features."""

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler

from ..data.torch_modes import plain_modes
from ..data.user_warnings import explain_call, warn_user
from ..executors.progress import Reporter, reporting
from ..fitting.checkpoint import locked
from ..tangents.modules import check_kind, clone_module, unwrap
from .adapter import Adapter, Detection, Detector, QueryRows
from .class_gaussians import (
    MIN_VARIANCE,
    RIDGES,
    ClassTemperature,
    EdgeErrors,
    EdgeNoise,
    FeaturePool,
    LocalNoise,
)
from .model import DetectionModel
from .picture_pass import CHUNK, HeldOut, PassCheckpoint, PicturePass, chunked
from .scenes import SceneStream
from .state import DetectorState

MIN_MATCHES = 20  # queries that match a target, to fit anything
HELD_OUT_EVERY = 10  # one picture of so many is held out where no validation is given
HELD_OUT = "{} of the {} training pictures are held out to calibrate; pass validation=, which is more honest."
TOO_FEW = f"{{}} pictures are too few to hold some out; pass validation=, or {HELD_OUT_EVERY} pictures."


@explain_call("fit(detector, (images, targets))")
def fit(
    detector: nn.Module,
    pictures: Any,
    *,
    validation: Any = None,
    threshold: float = 0.5,
    overlap: float = 0.5,
    most: int = 100,
    adapter: Adapter = Adapter(),  # noqa: B008 - frozen
    device: str | torch.device | None = None,
    progress: bool = True,
    checkpoint: str | Path | None = None,
) -> DetectionModel:
    """Give a trained detector error bars for its boxes and classes. The detector is not changed.

    Pictures are read as they are needed, 64 at a time, in one pass over the data.

    Args:
        detector: Trained network that returns `logits` and `pred_boxes`, as transformers' detectors do.
        pictures: Its training pictures, with their targets: (images, targets), a Hugging Face processor's
            mapping with "pixel_values" and "labels", or a Dataset or DataLoader of such pairs or mappings.
            The targets of a picture are `BoxTargets`, a processor's labels, or COCO annotations.
        validation: Pictures and targets on which it was not trained, in the same form, to which the size of
            the error bars is fitted. None: every tenth training picture is held out for this.
        threshold: A query is kept as a detection when its likeliest class has at least this probability.
        overlap: A query matches a target when their boxes overlap by this (intersection over union).
        most: Maximum number of detections per picture; the most confident are kept.
        adapter: Settings for a custom detector, such as the modules that give its features.
        device: Device of the fit; None: the device of the detector.
        progress: Whether to show bars in a terminal.
        checkpoint: A folder that keeps the progress over the pictures; the same call resumes after a crash.

    Examples:
        >>> given = {"adapter": adapter, "threshold": 0.01, "overlap": 0.01, "most": 3}
        >>> detections = trustgp.detection.fit(detector, (pictures, boxes), validation=held_pictures, **given)
    """
    check_kind(unwrap(detector), "detector")
    settings = Detection(threshold, overlap, most, adapter)
    folder = None if checkpoint is None else Path(checkpoint)
    with plain_modes():
        private = clone_module(unwrap(detector)).eval()
        watched = Detector(private if device is None else private.to(device), adapter)
        given = {"pictures": pictures} | ({} if validation is None else {"validation": validation})
        streams = {name: SceneStream(source, watched, name=name) for name, source in given.items()}
        _check_streams(streams, watched)
        every = {"pictures": HELD_OUT_EVERY if validation is None else None, "validation": 1}
        passes = {n: PicturePass(watched, settings, HeldOut(every[n], s.total)) for n, s in streams.items()}
        with locked(folder), reporting(enabled=progress) as report:
            store = PassCheckpoint(None)
            if folder is not None:
                loaders = [one for one in given.values() if isinstance(one, DataLoader)]
                if any(isinstance(one.sampler, RandomSampler) for one in loaders):
                    raise ValueError("checkpoint= needs pictures in the same order; pass shuffle=False.")
                store = PassCheckpoint.open(folder, watched, settings, streams)
            try:
                for name, stream in streams.items():
                    _run_pass(passes[name], stream, report, store)
            except KeyboardInterrupt as error:
                kept = "No progress was saved; with checkpoint=FOLDER the same call resumes."
                if folder is not None:
                    kept = f"Its progress is saved in {folder}; the same call resumes."
                raise KeyboardInterrupt(f"the fit was stopped while {report.position}. {kept}") from error
        return DetectionModel(_calibrated(passes["pictures"], passes.get("validation", passes["pictures"])))


def _run_pass(made: PicturePass, stream: SceneStream, report: Reporter, store: PassCheckpoint) -> None:
    every, settings = made.held_out.every, made.settings
    store.resume(stream.name, made)
    total = None if stream.total is None else -(-stream.total // CHUNK)
    stage = "held-out pictures" if stream.name == "validation" else "training pictures"
    scenes = chunked(stream.scenes(made.done))
    for chunk in report.track(scenes, stage=stage, total=total, done=made.done // CHUNK):
        made.include(chunk)
        store.save(stream.name, made)
    store.save(stream.name, made, force=True)
    if every is not None and not made.held_out_rows:
        raise ValueError(TOO_FEW.format(made.done))
    if made.queries is not None:
        _check_matches(int(made.queries.count.sum()), settings, "the training pictures")
        _warn_missing_classes(made.queries.count)
    if every is not None:
        rows = QueryRows.joined(made.held_out_rows)
        if every == HELD_OUT_EVERY:
            warn_user(HELD_OUT.format(len(rows.pictures), made.done))
        _check_matches(len(rows.matched), settings, "the held-out pictures")


def _check_streams(streams: dict[str, SceneStream], detector: Detector) -> None:
    """Raise ValueError for problems that the first picture and the number of pictures show."""
    for stream in streams.values():
        image = stream.first[0][0]
        try:
            detector(image[None])
        except RuntimeError as error:
            shape = tuple(image.shape)
            raise ValueError(f"the detector takes no pictures of shape {shape}: {error}") from error
    total = streams["pictures"].total
    if "validation" not in streams and total is not None and total < HELD_OUT_EVERY:
        raise ValueError(TOO_FEW.format(total))


def _check_matches(matches: int, settings: Detection, name: str) -> None:
    if matches < MIN_MATCHES:
        what = f"in {name} the detector finds {matches} of the targets, at least {MIN_MATCHES} are needed"
        raise ValueError(f"{what}: pass more pictures, or a lower overlap= (now {settings.overlap}).")


def _warn_missing_classes(count: Tensor) -> None:
    """Warn about classes without a matched query; they share the statistics of all classes."""
    if missing := (count == 0).nonzero().flatten().tolist():
        names = ", ".join(map(str, missing[:5])) + (" ..." if len(missing) > 5 else "")
        warn_user(f"{len(missing)} of {len(count)} classes have no training row ({names}).")


def _calibrated(training: PicturePass, held_out: PicturePass) -> DetectorState:
    """State with Gaussians of the training features, and with a calibration on held-out detections."""
    rows, variants = QueryRows.joined(held_out.held_out_rows), QueryRows.joined(held_out.variant_rows)
    made, matched, parts = cast(Any, training), rows.matched, (rows.features, rows.inside)
    detected = rows.kept[matched] if bool(rows.kept[matched].any()) else torch.ones_like(rows.kept[matched])
    own = [part[matched] for part in parts]
    detections = FeaturePool.fit((made.queries, made.inside), own, rows.predicted[matched], detected)
    whole, every = (rows.pictures, rows.cells), torch.ones(len(rows.pictures), dtype=torch.bool)
    pictures = FeaturePool.fit((made.pictures, made.cells), whole, rows.one_class, every)
    variances = detections.variances(parts, rows.predicted)
    counted = rows.kept if bool(rows.kept.any()) else torch.ones_like(rows.kept)
    local, edges = _edge_noise(training, detections, pictures, rows, variants)
    return DetectorState(
        training.detector.network,
        detections,
        pictures,
        ClassTemperature.fit(rows.logits[counted], variances[counted, 0], rows.labels[counted]),
        local,
        edges,
        names=training.detector.names,
        cells=training.detector.cells or (),
        size=made.size,
        mixed=training.mixed or held_out.mixed or training.size != held_out.size,
        rows=int(made.queries.count.sum()),
        settings=training.settings,
        held_scores=detections(variances[matched[detected]]),
        held_pictures=pictures(pictures.variances(whole, rows.one_class)),
    )


def _edge_noise(
    training: PicturePass, detections: FeaturePool, pictures: FeaturePool, *parts: QueryRows
) -> tuple[LocalNoise, EdgeNoise]:
    """Local noise with the ridge that maximises the likelihood of held-out edges, and the edge noise;
    `parts` are the held-out rows and their photometric variants."""

    def errors(part: QueryRows) -> EdgeErrors:
        own, picture = part.matched, pictures.gaussians[0](part.pictures, part.one_class)
        variance = detections.gaussians[0](part.features[own], part.predicted[own])
        return part.errors[own], variance, picture[part.picture[own]], torch.zeros(len(own), 4)

    rows, sample, fits = parts[0], cast(Any, training.sample), []
    held_out, edges = errors(rows), EdgeNoise.fit(*map(errors, parts))
    variance = detections.gaussians[0](sample.features, sample.labels)
    offset = edges.growth * variance.clamp_min(MIN_VARIANCE).log()
    for ridge in RIDGES:
        local = LocalNoise.fit(sample.features, sample.boxes, sample.errors, offset, ridge)
        given = (*held_out[:3], local(rows.features[rows.matched], rows.boxes[rows.matched]))
        fits.append(((noise := edges.refit(given)).loss(given), local, noise))
    return min(fits, key=lambda fit: fit[0])[1:]
