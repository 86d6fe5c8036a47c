"""Executors that solve the experts: threads of this process, or a Ray cluster."""

from .base import Executor, FitContext, Threads, WorkerLostError, nearby, usable_cores, usual_threads
from .ray import Ray

__all__ = [
    "Executor", "FitContext", "Ray", "Threads", "WorkerLostError", "nearby", "usable_cores", "usual_threads",
]  # fmt: skip
