from itertools import combinations, product

import pytest
from many import Many, each
from pairwise import every_pair


def checked(tried: list[str], *, outside: bool) -> None:
    with Many() as check:
        for name in ("one", "two", "three"):
            with check(name, len(name)):
                tried.append(name)
                assert name != "one", "no"
                tried.append({"two": "right"}[name])
        if outside:
            raise KeyError("outside")


def test_every_fact_is_checked_every_failure_is_named_and_other_errors_are_not_hidden():
    tried = []
    with pytest.raises(AssertionError, match=r"(?s)2 failed:\none, 3: .*Error: no.*three, 5: KeyError"):
        checked(tried, outside=False)
    assert tried == ["one", "two", "right", "three"]
    with pytest.raises(KeyError, match="outside"):
        checked([], outside=True)


def test_a_case_that_fails_is_named_and_the_others_are_tried():
    tried = []

    @each(("number", "work"), [(1, lambda: None), (2, lambda: pytest.fail("no")), (3, lambda: None)])
    def test(number, work):
        tried.append(number)
        work()

    with pytest.raises(AssertionError, match=r"1 failed:\ncase 1, {'number': 2, .*"):
        test()
    assert tried == [1, 2, 3]


def test_any_two_choices_meet_in_few_combinations():
    choices = "ab", [1, 2], [0.5, 0.25], (None, True, False)
    pairs = every_pair(*choices)
    assert len(pairs) < 12
    for first, second in combinations(range(4), 2):
        met = {(one[first], one[second]) for one in pairs}
        assert met == set(product(choices[first], choices[second]))
