"""Fixtures of the experiments' tests, most of them shared with the library's."""

from shared_fixtures import *  # noqa: F403 (pytest finds them here)
