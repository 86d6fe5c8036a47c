"""Checks of a user's pictures and targets: tensors, a processor's mapping, or COCO annotations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..data.rows import finite_rows
from ..metrics.boxes import corners

LISTS = (list, tuple)
BOX, CATEGORY, CROWD = "bbox", "category_id", "iscrowd"  # of COCO annotations
SLACK = 1.0  # pixels by which a box may leave its picture
MIN_SIDE = 16  # pixels: in a smaller picture boxes in pixels may lie between 0 and 1
ACCEPTED = (
    "The targets of a picture are BoxTargets(boxes, labels) or {'boxes', 'labels'} with left, top, right, "
    "bottom in pixels, a Hugging Face processor's {'boxes', 'class_labels'}, or a list of COCO annotations "
    "{'bbox', 'category_id'}; labels are the detector's class numbers."
)
PIXELS, MASK = "pixel_values", "pixel_mask"  # keys of a processor's mapping
Pictures = Tensor | list[Tensor]  # [n, channels, height, width], or one each where their sizes differ
MAX_BATCH, MAX_BATCH_PIXELS = 32, 2**22  # pictures, and pixels, of one pass of the detector
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class BoxTargets:
    """The objects in a picture: boxes [k, 4], left, top, right, bottom in pixels, and classes, int64, [k].

    Examples:
        >>> one = trustgp.BoxTargets(torch.tensor([[2.0, 3.0, 20.0, 30.0]]), torch.tensor([1]))
    """

    boxes: Tensor
    labels: Tensor


def as_targets(given: Any, sides: tuple[int, int], num_labels: int | None, where: str) -> BoxTargets:
    """Checked targets of a picture of height and width `sides`; `num_labels` None: any class is allowed."""
    try:
        boxes, labels = _read(given, sides)
        boxes = torch.as_tensor(boxes, dtype=torch.float32).as_subclass(Tensor)
        labels = torch.as_tensor(labels, dtype=torch.int64).as_subclass(Tensor).reshape(-1)
        boxes = boxes if boxes.numel() else boxes.reshape(-1, 4)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{where}: cannot read a {type(given).__name__} ({error!r}). {ACCEPTED}") from error
    if boxes.shape != (len(labels), 4):
        raise ValueError(f"{where}: boxes are {tuple(boxes.shape)}, labels {len(labels)}. {ACCEPTED}")
    highest = torch.iinfo(torch.int64).max if num_labels is None else num_labels - 1
    if len(labels) and (int(labels.min()) < 0 or int(labels.max()) > highest):
        allowed = "0 or more" if num_labels is None else f"0 to {highest}, the detector's,"
        raise ValueError(f"{where}: labels are {labels.tolist()}; {allowed} are allowed. {ACCEPTED}")
    height, width = sides
    if len(boxes) and min(sides) >= MIN_SIDE and bool(((boxes >= 0) & (boxes <= 1)).all()):
        raise ValueError(f"{where}: all boxes lie between 0 and 1, in {width} x {height} pixels. {ACCEPTED}")
    edge = boxes.new_tensor([width, height] * 2) + SLACK
    inside = (torch.isfinite(boxes) & (boxes >= -SLACK) & (boxes <= edge)).all(dim=1)
    bad = ~(inside & (boxes[:, 2:] > boxes[:, :2]).all(dim=1))
    if bool(bad.any()):
        what = f"{where}: box {boxes[bad][0].tolist()}, read as left, top, right, bottom in pixels,"
        raise ValueError(f"{what} is empty or leaves the picture, {width} x {height}. {ACCEPTED}")
    return BoxTargets(boxes, labels)


def is_annotations(given: Any) -> bool:
    """Whether `given` is a list of COCO annotations; an empty list counts as one."""
    return isinstance(given, LISTS) and all(isinstance(one, Mapping) and BOX in one for one in given)


def _read(given: Any, sides: tuple[int, int]) -> tuple[Any, Any]:
    """Boxes (left, top, right, bottom in pixels) and labels; raise KeyError or TypeError for other forms."""
    if isinstance(given, BoxTargets):
        return given.boxes, given.labels
    if isinstance(given, Mapping) and "annotations" in given:
        given = given["annotations"]
    if is_annotations(given):
        rows = [row for row in given if not row.get(CROWD)]
        boxes = [[float(value) for value in row[BOX]] for row in rows]
        boxes = torch.tensor(boxes, dtype=torch.float32).reshape(len(rows), 4)
        return torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], dim=1), [row[CATEGORY] for row in rows]
    if not isinstance(given, Mapping):
        raise TypeError("not a mapping")
    if "class_labels" not in given:
        return given["boxes"], given["labels"]
    # a processor's: centre and size over "size", height and width before pictures were padded
    height, width = torch.as_tensor(given.get("size", sides)).flatten().tolist()
    boxes = torch.as_tensor(given["boxes"], dtype=torch.float32).reshape(-1, 4)
    return corners(boxes * boxes.new_tensor([width, height] * 2)), given["class_labels"]


def as_pictures(images: Any, *, channels: int, size: tuple[int, int] | None = None) -> Pictures:
    """Checked floating-point pictures, all of `size` if it is given; from a batch, one picture, a list, or
    a processor's mapping with "pixel_values" and perhaps "pixel_mask"."""
    if isinstance(images, Mapping):
        images = pixel_values(images)
    if isinstance(images, LISTS) and not images:
        return torch.zeros(0, channels, *(size or (0, 0)), dtype=torch.float32)
    if isinstance(images, LISTS) and all(isinstance(one, Tensor) for one in images):
        shapes = sorted({tuple(one.shape) for one in images})
        if len(shapes) > 1 and size is not None:
            raise ValueError(f"pictures have different shapes {shapes}; the model was fitted on {size}.")
        if len(shapes) > 1:
            return [as_pictures(one, channels=channels)[0] for one in images]
        images = torch.stack(list(images))
    shape = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
    if not isinstance(images, Tensor) or images.ndim not in (3, 4):
        allowed = f"a tensor [n, {channels}, height, width], a list of its pictures, or a processor's mapping"
        raise ValueError(f"pictures are {shape}; {allowed} with '{PIXELS}' is needed.")
    images = images if images.ndim == 4 else images[None]
    if not images.is_floating_point():
        what = f"pictures are {images.dtype}; scale them to floats as in the detector's training"
        raise ValueError(f"{what}: with its image processor, or (images.float() / 255 - mean) / std.")
    if images.shape[1] != channels:
        raise ValueError(f"pictures have {images.shape[1]} channels; the detector takes {channels}.")
    if size is not None and len(images) and tuple(images.shape[2:]) != size:
        raise ValueError(f"pictures are {tuple(images.shape[2:])} pixels; the model was fitted on {size}.")
    return images


def pixel_values(given: Mapping) -> Any:
    """The pictures of a processor's mapping, without the padding below and on the right."""
    images, mask = given.get(PIXELS), given.get(MASK)
    if mask is None or images is None or (isinstance(mask, Tensor) and bool(mask.bool().all())):
        return images
    single = isinstance(images, Tensor) and images.ndim == 3
    pairs = zip([images] if single else images, [mask] if single else mask, strict=True)
    cropped = []
    for image, own in ((image, torch.as_tensor(one).bool()) for image, one in pairs):
        height, width = int(own.any(dim=1).sum()), int(own.any(dim=0).sum())
        if not height or not bool(own[:height, :width].all()) or tuple(own.shape) != tuple(image.shape[-2:]):
            what = f"a '{MASK}' {tuple(own.shape)} of a picture {tuple(image.shape)}"
            raise ValueError(f"{what} is no whole rectangle at its top left; processors pad below and right.")
        cropped.append(image[..., :height, :width])
    return cropped[0] if single else cropped


def finite_pictures(pictures: Pictures) -> Tensor:
    """Mask of the pictures without NaN and infinity, bool, [n]."""
    if isinstance(pictures, Tensor):
        return finite_rows(pictures)
    return torch.cat([finite_rows(one[None]).cpu() for one in pictures])


def batch_size(height: int, width: int) -> int:
    """Number of pictures of this size in one forward pass of the detector."""
    return max(1, min(MAX_BATCH, MAX_BATCH_PIXELS // (height * width)))


def by_size(pictures: Pictures | Sequence[Tensor]) -> Iterator[list[int]]:
    """Yield batches of indices, each of pictures of one size and at most `batch_size` long."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, one in enumerate(pictures):
        groups.setdefault(tuple(one.shape[-2:]), []).append(index)
    for (height, width), indices in groups.items():
        step = batch_size(height, width)
        yield from (indices[i : i + step] for i in range(0, len(indices), step))


def for_each(pictures: Pictures, work: Callable[[Tensor], Sequence[Answer]]) -> list[Answer]:
    """Result of `work` for each picture; `work` takes batches of one size [k, channels, height, width]."""
    answers: dict[int, Answer] = {}
    for indices in by_size(pictures):
        batch = pictures[indices[0] : indices[-1] + 1]  # of a tensor all are of one size, one after another
        batch = batch if isinstance(batch, Tensor) else torch.stack([pictures[i] for i in indices])
        answers |= zip(indices, work(batch), strict=True)
    return [answers[i] for i in range(len(pictures))]
