"""Wrong calls, of the page and rare ones: each raises the error below it, with these words."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from many import Many

PAGE = (Path(__file__).parents[1] / "docs" / "errors.md").read_text()
ROW = re.compile(r"^(\w.+)\n    (\w+Error): (.+?)(?:  # .+)?$", flags=re.MULTILINE)
CALLS = PAGE + (Path(__file__).parent / "rare_calls.txt").read_text()
PARTS = re.findall(r"^## (.+?)$(.*?)(?=^## |\Z)", CALLS, flags=re.MULTILINE | re.DOTALL)
SECTIONS = {name: ROW.findall(text) for name, text in PARTS}


@pytest.fixture(scope="module")
def names():
    """What the page defines."""
    made: dict = {"np": np}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[0], made)
    return made


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("section", SECTIONS)
def test_a_wrong_call_raises_the_error_below_it(names, section):
    with Many() as check:
        for call, error, said in SECTIONS[section]:
            with check(call):
                with pytest.raises(Exception, match=re.escape(said)) as caught:
                    eval(call, names)
                assert error in {kind.__name__ for kind in type(caught.value).__mro__}


def test_every_error_has_its_call():
    lines = re.findall(r"^    \w+Error: ", CALLS, flags=re.MULTILINE)
    assert len(lines) == sum(map(len, SECTIONS.values())) > 90
