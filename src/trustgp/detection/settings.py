"""What a user says about a detector."""

from __future__ import annotations

from dataclasses import dataclass

from ..tangents.sketch import Sketch


@dataclass(frozen=True)
class Detection:
    """A detector of the DETR family: each picture gives a row for each query that is kept.

    Args:
        threshold: A query is kept when its surest class has at least this probability.
        overlap: A query has found a thing when their boxes overlap by this (intersection over union).
        most: Queries of a picture that are kept, at most: the surest.
        tangents: Of the decoder's last layer and the heads. None: a sketch of what comes after the queries
            have looked at each other, which says nothing about the picture.
        outputs: "pseudo", "shared" or "separate".
        whole: Whether `tangents` may be of all parameters of the detector; None then stands for a sketch of
            all of them. Each detection takes a pass through the whole detector and back.
    """

    threshold: float = 0.5
    overlap: float = 0.5
    most: int = 100
    tangents: Sketch | None = None
    outputs: str = "pseudo"
    whole: bool = False

    def __post_init__(self) -> None:
        for name in ("threshold", "overlap"):
            value = getattr(self, name)
            if not 0.0 < value < 1.0:
                raise ValueError(f"{name}={value}; it must lie between 0 and 1.")
        if self.most < 1:
            raise ValueError(f"most={self.most}; at least one query must be kept.")
