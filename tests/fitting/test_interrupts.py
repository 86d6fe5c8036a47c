"""Messages of a fit that ends early."""

import errno

import pytest
import torch

from trustgp import Threads
from trustgp.fitting import solve as solving
from trustgp.fitting.checkpoint import explain_interrupts


@pytest.fixture(scope="module")
def whole(fit_experts):
    return fit_experts(num_experts=6)


@pytest.fixture
def failing(fit_experts, monkeypatch):
    """Fit with six experts on one worker; the fourth of them raises an error."""

    def fit(error, **options):
        real, begun = solving.solve_expert, []

        def solve(problem, task):
            begun.append(task)
            if len(begun) == 4:
                raise error
            return real(problem, task)

        with monkeypatch.context() as patch:
            patch.setattr(solving, "solve_expert", solve)
            return fit_experts(num_experts=6, executor=Threads(1), **options)

    return fit


CPU = RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory")
ERRORS = [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), torch.OutOfMemoryError),
    (CPU, MemoryError),
    (KeyboardInterrupt(), KeyboardInterrupt),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS, ids=lambda value: type(value).__name__)
def test_an_early_end_explains_what_to_change_and_the_same_call_resumes(
    failing, fit_experts, whole, assert_same_state, tmp_path, error, kind
):
    with pytest.raises(kind, match=f"3 solved experts are in {tmp_path}; the same call resumes") as caught:
        failing(error, checkpoint=tmp_path)
    with pytest.raises(kind, match=r"Nothing is kept; with checkpoint=FOLDER"):
        failing(error)
    message = str(caught.value)
    assert "while solving the experts (3 of 6)" in message
    if kind is not KeyboardInterrupt:
        assert message.startswith("out of memory while")
        assert "executor=trustgp.Threads(1)" in message
        assert "witness=None need less" in message
        assert not str(error) or str(error).splitlines()[0].rstrip(".") in message
    assert len(list(tmp_path.glob("expert-*"))) == 3
    assert_same_state(fit_experts(num_experts=6, checkpoint=tmp_path), whole)


def test_other_errors_are_left_as_they_are(failing, tmp_path):
    for error in (RuntimeError("shapes"), OSError(errno.ENOENT, "no such file"), KeyError("k")):
        with pytest.raises(type(error)) as caught:
            failing(error, checkpoint=tmp_path / type(error).__name__)
        assert caught.value is error


def test_ctrl_c_while_a_lock_is_waited_for_is_ctrl_c(report):
    def waited():
        try:
            raise KeyboardInterrupt
        finally:  # as threading.Condition does, when the interrupt comes before it holds its lock again
            raise RuntimeError("release unlocked lock")

    with pytest.raises(KeyboardInterrupt, match="the fit was stopped"), explain_interrupts(report, None):
        waited()
