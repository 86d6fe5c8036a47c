"""What a fit says when it ends early."""

import errno
from functools import partial

import pytest
import torch

from trustgp import ArtifactError, Threads
from trustgp.fitting import checkpoint
from trustgp.fitting import solve as solving
from trustgp.fitting.checkpoint import Checkpoint, explain_interrupts


@pytest.fixture(scope="module")
def fit_case(fit_case):
    """As ever, but without a witness, which takes half of the time, unless a test asks for one."""
    return partial(fit_case, witness=None)


@pytest.fixture(scope="module")
def whole(fit_case):
    return fit_case(num_experts=6)


@pytest.fixture
def failing(fit_case, monkeypatch):
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
            return fit_case(num_experts=6, executor=Threads(1), **options)

    return fit


CPU = RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory")
ERRORS = [
    (MemoryError(), MemoryError),
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), torch.OutOfMemoryError),
    (CPU, MemoryError),
    (KeyboardInterrupt(), KeyboardInterrupt),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS, ids=lambda value: type(value).__name__)
def test_the_same_call_goes_on_after_an_early_end(
    failing, fit_case, whole, assert_same_state, tmp_path, error, kind
):
    with pytest.raises(kind, match=f"3 solved experts are in {tmp_path}; the same call resumes") as caught:
        failing(error, checkpoint=tmp_path)
    assert "while solving the experts (3 of 6)" in str(caught.value)
    assert len(list(tmp_path.glob("expert-*"))) == 3
    assert_same_state(fit_case(num_experts=6, checkpoint=tmp_path), whole)


@pytest.mark.parametrize(("error", "kind"), ERRORS[:3], ids=lambda value: type(value).__name__)
def test_too_little_memory_says_what_to_change(failing, error, kind):
    with pytest.raises(kind, match=r"out of memory while solving") as caught:
        failing(error)
    said = str(caught.value)
    assert "executor=trustgp.Threads(1)" in said
    assert "witness=None need less" in said
    assert str(error).splitlines()[0].rstrip(".") in said if str(error) else True


def test_without_a_checkpoint_the_user_hears_of_it(failing):
    with pytest.raises(KeyboardInterrupt, match=r"Nothing is kept; with checkpoint=FOLDER"):
        failing(KeyboardInterrupt())


def test_other_errors_are_left_as_they_are(failing, tmp_path):
    for error in (RuntimeError("shapes"), OSError(errno.ENOENT, "no such file"), KeyError("k")):
        with pytest.raises(type(error)) as caught:
            failing(error, checkpoint=tmp_path / type(error).__name__)
        assert caught.value is error


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS])
def test_a_disk_that_refuses_leaves_what_there_is_and_says_so(
    fit_case, whole, monkeypatch, tmp_path, assert_same_state, code
):
    real, written = checkpoint.write, []

    def write(path, **options):
        written.append(path)
        if len(written) == 4:  # the note, two experts, and no more
            raise OSError(code, f"{path} was not written")
        real(path, **options)

    monkeypatch.setattr(checkpoint, "write", write)
    options = {"num_experts": 6, "executor": Threads(1), "checkpoint": tmp_path}
    with pytest.raises(OSError, match=r"was not written.* 2 solved experts are in .*resumes") as caught:
        fit_case(**options)
    assert caught.value.errno == code
    assert_same_state(fit_case(**options), whole)


def test_the_words_fit_the_number_of_experts(report, tmp_path):
    store = Checkpoint(tmp_path, "f")
    for count, words in enumerate(
        ["no solved expert is yet in", "1 solved expert is in", "2 solved experts are in"]
    ):
        with (
            pytest.raises(KeyboardInterrupt, match=f"the fit was stopped. {words}"),
            explain_interrupts(report, store),
        ):
            raise KeyboardInterrupt
        (tmp_path / f"expert-000-0000{count}.trustgp").touch()


def test_expert_files_cut_at_many_places_are_solved_again(fit_case, assert_same_state, tmp_path):
    """Each expert at a place of its own, from nothing to all but the last byte."""
    first = fit_case(num_experts=20, checkpoint=tmp_path)
    files = sorted(tmp_path.glob("expert-*"))
    contents = [path.read_bytes() for path in files]
    for number, (path, content) in enumerate(zip(files, contents, strict=True)):
        path.write_bytes(content[: (len(content) - 1) * number // (len(files) - 1)])
    second = fit_case(num_experts=20, checkpoint=tmp_path)
    assert_same_state(first, second)
    assert [path.read_bytes() for path in files] == contents


def test_a_note_that_is_cut_is_not_trusted(fit_case, tmp_path):
    fit_case(num_experts=2, checkpoint=tmp_path)
    note = tmp_path / "fit.trustgp"
    content = note.read_bytes()
    for length in (0, 7, 8, len(content) // 2, len(content) - 1):
        note.write_bytes(content[:length])
        with pytest.raises(ArtifactError, match=r"Use another folder, or remove .* to start over"):
            fit_case(num_experts=2, checkpoint=tmp_path)


def test_a_folder_that_cannot_be_made_is_named(fit_case, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"the folder of the checkpoint, .*file/c, cannot be created"):
        fit_case(checkpoint=tmp_path / "file" / "c")


def test_ctrl_c_while_a_lock_is_waited_for_is_ctrl_c(report):
    def waited():
        try:
            raise KeyboardInterrupt
        finally:  # as threading.Condition does, when the interrupt comes before it holds its lock again
            raise RuntimeError("release unlocked lock")

    with pytest.raises(KeyboardInterrupt, match="the fit was stopped"), explain_interrupts(report, None):
        waited()
