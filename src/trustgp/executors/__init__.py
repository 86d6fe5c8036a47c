"""Where the experts are solved: threads, or a Ray cluster."""

from .base import (
    Executor,
    FitContext,
    Processes,
    Threads,
    WorkerLostError,
    nearby,
    usable_cores,
    usual_threads,
)
from .ray import Ray

__all__ = [
    "Executor",
    "FitContext",
    "Processes",
    "Ray",
    "Threads",
    "WorkerLostError",
    "nearby",
    "usable_cores",
    "usual_threads",
]
