"""Where the experts are solved: one interface, one file per way."""

from .base import Executor, WorkerLostError, nearby
from .processes import Processes
from .ray import Ray
from .threads import Threads

__all__ = ["Executor", "Processes", "Ray", "Threads", "WorkerLostError", "nearby"]
