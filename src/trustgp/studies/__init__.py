"""One file per experiment: what was measured, beside the peers."""

from .base import Result, Setting
from .running import STUDIES, run_study

__all__ = ["STUDIES", "Result", "Setting", "run_study"]
