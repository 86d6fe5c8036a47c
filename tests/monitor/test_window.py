"""A sliding window against a plain recomputation, frame by frame."""

import numpy as np
import pytest

from trustgp.monitor.window import FrameHistory, SlidingWindow


def test_sums_and_maxima_are_those_of_the_last_rows_and_what_has_left_leaves_no_trace():
    draw = np.random.default_rng(0)
    for size in (1, 2, 5, 16):
        window, rows = SlidingWindow(size, 3), []
        for number in range(4 * size + 3):
            values, counts = draw.integers(-9, 9, 3).astype(float), draw.random(3) < 0.7
            values = (
                values * 1e300 if number == size else values
            )  # beside it a running sum would lose the rest
            window.push(values, counts=counts)
            rows = [*rows, (values, counts)][-size:]
            kept, counted = (np.array(part) for part in zip(*rows, strict=True))
            found, top = np.where(counted, kept, 0.0).sum(0), np.where(counted, kept, -np.inf).max(0)
            sums, maxima = window.totals
            np.testing.assert_array_equal(maxima, top, err_msg=f"size {size}, row {number}")
            np.testing.assert_allclose(sums, found, rtol=1e-15, err_msg=f"size {size}, row {number}")


def test_a_history_counts_all_frames_and_looks_back_at_the_last_ones():
    history = FrameHistory(2, ("ok", "bad"))
    assert history.statistics().frames == 0
    for status, numbers in (("ok", [1.0, 3.0]), ("bad", None), ("ok", [0.5, 1.0]), ("ok", [0.25, 2.0])):
        history.add(status, None if numbers is None else np.array(numbers))
    found = history.statistics()
    assert (history.frames, history.counts, history.episodes) == (4, {"ok": 3, "bad": 1}, {"ok": 2, "bad": 1})
    assert (found.frames, dict(found.shares)) == (2, {"ok": 1.0, "bad": 0.0})
    assert (found.score_mean, found.score_max, history.largest_score) == (0.375, 0.5, 1.0)
    assert (found.std_mean.tolist(), found.std_max.tolist()) == ([1.5], [2.0])
    with pytest.raises(TypeError):
        found.shares["ok"] = 0.0
