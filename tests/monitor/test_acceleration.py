"""Accelerations from the velocities of a log: against signals whose slope is known."""

import numpy as np
import pytest
from many import each

from trustgp import logs
from trustgp.logs.joint_state import MIN_SAMPLES

RATE, START = 100, 10**18


def uneven(count, draw):
    """Times in nanoseconds, up to a third of a step off."""
    return START + ((np.arange(count) + draw.uniform(-1, 1, count) / 3) / RATE * 1e9).astype(int)


def states_of(times, velocity, **more):
    for time, row in zip(times.tolist(), velocity, strict=True):
        yield logs.JointState(time, ("a", "b")[: len(row)], row, row, row, **more)


def signal(times):
    """Two joints: a slope that is a cosine, and one that changes evenly."""
    t = (times - START) / 1e9
    velocity = np.stack([np.sin(3 * t), 2 * t**2 - t], axis=1)
    return velocity, np.stack([3 * np.cos(3 * t), 4 * t - 1], axis=1)


def online(states, **options):
    differentiate = logs.Differentiator(**options)
    return np.stack([differentiate(state) for state in states])


def test_a_parabola_on_uneven_stamps_is_differentiated_exactly():
    times = uneven(60, np.random.default_rng(0))
    velocity, slope = signal(times)
    slopes = online(states_of(times, velocity))
    assert np.isnan(slopes[: MIN_SAMPLES - 1]).all()
    np.testing.assert_allclose(slopes[MIN_SAMPLES - 1 :, 1], slope[MIN_SAMPLES - 1 :, 1], rtol=0, atol=1e-9)


def test_no_window_reaches_across_a_gap():
    times = uneven(40, np.random.default_rng(2))
    times[20:] += 10**9
    velocity = np.where(np.arange(40)[:, None] < 20, 0.0, 5.0)  # a jump nobody saw
    states = list(states_of(times, velocity))
    slopes = online(states)
    np.testing.assert_allclose(slopes[~np.isnan(slopes)], 0.0, atol=1e-9)
    assert np.flatnonzero(np.isnan(slopes[:, 0])).tolist() == [0, 1, 2, 20, 21, 22]
    assert np.nanmax(np.abs(online(states, gap=2.0))) > 1.0  # the gap is what keeps them apart


def bad_states(times, velocity, place, how):
    states = list(states_of(times, velocity))
    if how == "unread":
        states[place] = states[place].unread(states[place].time, "damaged")
    else:
        stamp = {"again": int(times[place - 1]), "future": START + 10**18, "past": 5}.get(how)
        row = velocity[place] * (np.nan if how == "nan" else 1.0)
        states[place] = logs.JointState(int(times[place]), ("a", "b"), row, row, row, stamp=stamp)
    return states


@each("how", ["unread", "nan", "again", "future", "past"])
def test_a_bad_message_or_stamp_is_nan_and_harms_no_other(how):
    times = uneven(60, np.random.default_rng(3))
    velocity, slope = signal(times)
    states = bad_states(times, velocity, 30, how)
    slopes = online(states)
    finite = ~np.isnan(slopes[:, 0])
    assert not finite[30]
    np.testing.assert_allclose(slopes[finite, 1], slope[finite, 1], rtol=0, atol=1e-6)
    assert finite[4:30].all()
    assert finite[31 + MIN_SAMPLES :].all()


def test_stamps_of_the_header_are_preferred_to_the_time_of_recording():
    times = uneven(30, np.random.default_rng(4))
    velocity, slope = signal(times)
    late = times + np.random.default_rng(5).integers(0, 3 * 10**6, 30)
    rows = zip(late.tolist(), times.tolist(), velocity, strict=True)
    states = [logs.JointState(time, ("a", "b"), row, row, row, stamp=stamp) for time, stamp, row in rows]
    slopes = online(states)[MIN_SAMPLES - 1 :]
    np.testing.assert_allclose(slopes[:, 1], slope[MIN_SAMPLES - 1 :, 1], rtol=0, atol=1e-9)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="window=3"):
        logs.Differentiator(3)
    with pytest.raises(ValueError, match="gap=0"):
        logs.Differentiator(gap=0)
    with pytest.raises(ValueError, match="0 velocities for 2 joints"):
        logs.Differentiator()(logs.JointState(1, ("a", "b"), np.ones(2), np.ones(0), np.ones(0)))
