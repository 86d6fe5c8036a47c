"""Sizes as people write them."""

import pytest

from trustgp.data.quantities import Budget, parse_budget, parse_bytes, size_text

SIZES = {
    **{"1 B": 1, "2 kB": 2_000, "3 MB": 3_000_000, "1.5 GB": 1_500_000_000, "1 KiB": 1_024},
    **{"2 MiB": 2_097_152, ".5 GiB": 536_870_912, 1: 1, 700: 700},
}
TEXTS = {
    **{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 2**20: "1.0 MiB"},
    **{2**30 - 2**26: "960.0 MiB", 2**30: "1.00 GiB", 5 * 2**40: "5120.00 GiB"},
}


def test_sizes_and_budgets_are_parsed():
    for text, expected in SIZES.items():
        assert parse_bytes(text, name="budget") == expected
        assert parse_budget(text, name="budget") == Budget(size=expected)
    assert parse_budget(None, name="budget") == Budget()
    assert parse_budget("none", name="budget") == Budget(exact=True)


NO_SIZES = ["0 B", "0.4 B", 0, -1, "2 ms", "MiB", "1 parsec", "1 MB, 2 MB", [], "", True, 2.5, "-1 B"]


def test_what_is_no_size_is_refused_with_what_to_do():
    for given in NO_SIZES:
        for parse in (parse_bytes, parse_budget):
            with pytest.raises(ValueError, match="budget="):
                parse(given, name="budget")


def test_sizes_are_shown_with_a_unit():
    assert {size: size_text(size) for size in TEXTS} == TEXTS
