"""Bars, rates, and what is closed when the work ends early."""

import io
import logging
import threading

import pytest
from rich.console import Console

from trustgp.executors.progress import Reporter, rate_text


@pytest.fixture
def lines(caplog):
    """Our messages from this test's own thread: a library's thread may log at any time."""
    caplog.set_level(logging.DEBUG, logger="trustgp")
    here = ("trustgp", threading.get_ident())
    return lambda: [r.getMessage() for r in caplog.records if (r.name, r.thread) == here]


def test_the_log_and_a_terminal_show_items_and_time_left(lines):
    screen = io.StringIO()
    reporter = Reporter(Console(file=screen, force_terminal=True, width=120), enabled=True)
    with reporter._progress:
        list(reporter.track([3, 4], stage="dividing", total=2))
    assert "2/2" in screen.getvalue()
    begun, first, last = lines()
    assert begun == "dividing"
    assert first.startswith("dividing: 1 of 2, about ")
    assert last == "dividing: 2 of 2, about 0 s left"


def test_rates_have_three_digits():
    rates = {0.01234: "0.0123", 1.0: "1", 56.78: "56.8", 123.4: "123", 1_234_567: "1,230,000"}
    assert {rate: rate_text(rate) for rate in rates} == rates


def test_the_reporter_knows_the_stage_and_how_far_it_is(report):
    assert report.position == ""
    tracked = report.track("abc", stage="solving the experts", total=4, done=1)
    next(tracked)
    assert report.position == "solving the experts (1 of 4)"
    next(tracked)
    assert report.position == "solving the experts (2 of 4)"
    list(tracked)
    assert report.position == ""
