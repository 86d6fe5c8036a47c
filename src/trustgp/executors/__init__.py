"""Where the experts are solved: threads, or a Ray cluster."""

# ruff: noqa: I001
from .base import Executor, FitContext, Processes, Threads, WorkerLostError
from .base import nearby, usable_cores, usual_threads
from .ray import Ray

__all__ = ["Executor", "FitContext", "Processes", "Ray", "Threads", "WorkerLostError"]
__all__ += ["nearby", "usable_cores", "usual_threads"]
