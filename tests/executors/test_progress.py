"""Bars, rates, and what is closed when the work ends early."""

import io
import logging
import threading
import time

import pytest
from rich.console import Console

from trustgp.executors.progress import Reporter, rate_text


@pytest.fixture
def lines(caplog):
    """Our messages from this test's own thread: a library's thread may log at any time."""
    caplog.set_level(logging.DEBUG, logger="trustgp")
    here = ("trustgp", threading.get_ident())
    return lambda: [r.getMessage() for r in caplog.records if (r.name, r.thread) == here]


def test_the_log_has_the_stage_and_each_tenth_of_it(lines, report):
    list(report.track(range(40), stage="dividing", total=40))
    assert lines() == ["dividing", *(f"dividing ({4 * k} of 40)" for k in range(1, 11))]


def test_a_terminal_shows_items_and_rows_per_second():
    screen = io.StringIO()
    reporter = Reporter(Console(file=screen, force_terminal=True, width=120), enabled=True)
    with reporter._progress:
        for _ in reporter.track(range(3), stage="dividing", total=3, rows=lambda item: 1000):
            time.sleep(0.002)
    assert "3/3" in screen.getvalue()
    assert "rows/s" in screen.getvalue()


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
