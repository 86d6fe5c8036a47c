"""Where the experts are solved: one interface, one file per way."""

from .base import Executor, FitContext, WorkerLostError, nearby
from .processes import Processes
from .ray import Ray
from .threads import Threads, usual_threads

__all__ = [
    "Executor",
    "FitContext",
    "Processes",
    "Ray",
    "Threads",
    "WorkerLostError",
    "nearby",
    "usual_threads",
]
