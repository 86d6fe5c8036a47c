"""One folder per experiment: what was measured, beside the peers."""

from ..core.registry import STUDIES, run_study

__all__ = ["STUDIES", "run_study"]
