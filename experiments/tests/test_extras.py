"""Missing optional packages: all of them are named at once, with one command."""

import pytest

from trustgp_experiments.core import registry as extras


@pytest.fixture
def hidden(monkeypatch):
    """Modules that cannot be found; all others can."""
    names: set[str] = set()
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in names else object())
    return names


def test_nothing_is_said_where_nothing_is_missing(hidden):
    extras.require_extras("The demo", extras.MODULES)


def test_every_missing_extra_is_in_one_command_and_the_others_are_not(hidden):
    hidden.update({"matplotlib", "PIL"})
    with pytest.raises(ImportError) as caught:
        extras.require_extras("The demo", ["plots", "detection", "ray"])
    told = str(caught.value)
    assert told.startswith("The demo needs matplotlib, PIL,")
    assert 'pip install "trustgp[plots,detection]"' in told
    assert "transformers" not in told


def test_packages_that_must_come_alone_have_a_command_of_their_own(hidden):
    hidden.add("laplace")
    with pytest.raises(ImportError, match="then pip install --no-deps laplace-torch"):
        extras.require_extras("The study transfer", ["peers"])
