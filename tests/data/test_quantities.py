"""Sizes and times as people write them."""

import pytest

from trustgp.data.quantities import Budget, parse_budget, parse_bytes, size_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 B", 1),
        ("2 kB", 2_000),
        ("3 MB", 3_000_000),
        ("1.5 GB", 1_500_000_000),
        ("1 KiB", 1_024),
        ("2 MiB", 2_097_152),
        (".5 GiB", 536_870_912),
        (1, 1),
        (700, 700),
    ],
)
def test_a_size(text, expected):
    assert parse_bytes(text, name="budget") == expected
    assert parse_budget(text, name="budget") == Budget(size=expected)


@pytest.mark.parametrize("text", ["0 B", "0.4 B", 0, -1, "2 ms", "MiB", "1 parsec"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="budget="):
        parse_bytes(text, name="budget")


def test_a_budget():
    given = {None: Budget(), "none": Budget(exact=True), "64 MiB": Budget(2**26), 7: Budget(7)}
    for text, expected in {**given, Budget(5): Budget(5)}.items():
        assert parse_budget(text, name="budget") == expected


@pytest.mark.parametrize("given", ["1 MB, 2 MB", [], "", True, ["1 MB"], 2.5, "-1 B"])
def test_what_is_no_budget_is_refused(given):
    with pytest.raises(ValueError, match="budget="):
        parse_budget(given, name="budget")


@pytest.mark.parametrize("given", ["2 ms", "3 µs", "1.5 s", "64 MiB, 2 ms", "0 ms"])
def test_a_time_is_refused_with_what_to_do(given):
    with pytest.raises(ValueError, match=r"times are no longer.*pass a size.*trustgp\.compress"):
        parse_budget(given, name="budget")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**20, "1.0 MiB"),
        (2**30 - 2**26, "960.0 MiB"),
        (2**30, "1.00 GiB"),
        (5 * 2**40, "5120.00 GiB"),
    ],
)
def test_a_size_for_people(size, text):
    assert size_text(size) == text


def test_a_budget_for_people():
    assert str(Budget()) == "no limit"
    assert str(Budget(2**20)) == "1.0 MiB"
