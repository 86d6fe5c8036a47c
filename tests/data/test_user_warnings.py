"""What a user is told, and at which line."""

import inspect
import traceback
import warnings

import pytest
import torch

import trustgp
from trustgp.data.user_warnings import add_note, explain_call


def test_a_warning_from_deep_inside_names_the_users_line():
    network = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).eval()
    rows = torch.randn(12, 1), torch.randn(12, 1)  # few enough to be warned of
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        line = inspect.currentframe().f_lineno + 1
        trustgp.fit(network, rows, num_experts=1, progress=False, witness=None)
    own = [one for one in caught if issubclass(one.category, UserWarning)]
    assert own
    assert {(one.filename, one.lineno) for one in own} == {(__file__, line)}


@explain_call("f((inputs, targets))")
def f(network, train, *, progress=True):
    return network, train, progress


def test_calls_with_wrong_arguments_are_answered_with_what_there_is():
    assert f(1, train=2, progress=False) == (1, 2, False)
    refused = [
        ({"train": 2, "progres": False}, r'progres=. Did you mean "progress"\? There are progress\.'),
        ({"train": 2, "y": 3}, r"no option y=. Inputs and targets are one pair: f.* There are progress"),
    ]
    for options, message in refused:
        with pytest.raises(TypeError, match=message):
            f(1, **options)
    with pytest.raises(TypeError, match=r"takes network, train; all else is named.*one pair: f\(\(inputs"):
        f(1, 2, 3)


def test_a_note_is_kept_and_shown_by_every_python():
    error = KeyError("a mistake")
    add_note(error, "expert 3")
    add_note(error, "of 5")
    assert error.__notes__ == ["expert 3", "of 5"]
    shown = "".join(traceback.format_exception(type(error), error, None))
    assert all(text in shown for text in ("a mistake", "expert 3", "of 5"))
