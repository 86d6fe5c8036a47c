from itertools import combinations, product

import pytest
from many import Many, each
from pairwise import every_pair


def three_facts(tried: list[str]) -> None:
    with Many() as check:
        for name in ("one", "two", "three"):
            with check(name, len(name)):
                tried.append(name)
                assert name != "one", "no"
                tried.append({"two": "right"}[name])


def test_every_fact_is_tried_and_every_failure_is_named():
    tried = []
    with pytest.raises(AssertionError, match=r"(?s)2 failed:\none, 3: .*Error: no.*three, 5: KeyError"):
        three_facts(tried)
    assert tried == ["one", "two", "right", "three"]


def stopped() -> None:
    with Many() as check:
        with check("first"):
            raise AssertionError
        raise KeyError


def test_an_error_outside_a_check_is_not_hidden():
    with pytest.raises(KeyError):
        stopped()


@each("wrong", [lambda: 1 / 0, lambda: pytest.fail("no"), lambda: [].index(0)])
def test_a_case_that_fails_is_named_and_the_others_are_tried(wrong):
    tried = []

    @each(("number", "work"), [(1, lambda: None), (2, wrong), (3, lambda: None)])
    def test(number, work):
        tried.append(number)
        work()

    with pytest.raises(AssertionError, match=r"^case 1, {'number': 2, .*"):
        test()
    assert tried == [1, 2, 3]


def test_any_two_choices_meet_in_few_combinations():
    choices = "ab", [1, 2], [0.5, 0.25], (None, True, False)
    found = every_pair(*choices)
    assert len(found) < 12
    for first, second in combinations(range(4), 2):
        met = {(one[first], one[second]) for one in found}
        assert met == set(product(choices[first], choices[second]))
