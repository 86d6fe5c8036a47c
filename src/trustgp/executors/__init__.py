"""Where the experts are solved: one interface, kept by threads, by processes and by a cluster."""

from .base import Executor, FitContext, Threads, WorkerLostError, nearby, usable_cores, usual_threads
from .processes import Processes
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
