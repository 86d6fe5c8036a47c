"""What a fit says when it ends early: what is kept, what to change, how to go on."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..executors.progress import Reporter
from .checkpoint import Checkpoint

DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM}


@contextmanager
def explain_interrupts(report: Reporter, store: Checkpoint | None) -> Iterator[None]:
    """Ctrl-C, too little memory and a full disk keep their kind, and say how the fit goes on.

    Args:
        report: Knows how far it is.
        store: Where solved experts are kept; None: they are not.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        report.say("stopping: what has begun is brought to its end")
        raise KeyboardInterrupt(f"the fit was stopped{_where(report)}. {_kept(store)}") from error
    except torch.OutOfMemoryError as error:
        raise torch.OutOfMemoryError(_memory_text(report, store, error)) from error
    except MemoryError as error:
        raise MemoryError(_memory_text(report, store, error)) from error
    except OSError as error:
        if store is None or error.errno not in DISK:
            raise
        said = f"{error.strerror}. When the disk has room, or the folder can be written: {_kept(store)}"
        raise OSError(error.errno, said) from error
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # it came while a lock was waited for
            raise KeyboardInterrupt(f"the fit was stopped{_where(report)}. {_kept(store)}") from error
        if "DefaultCPUAllocator" not in str(error):  # torch has no kind of its own for the CPU
            raise
        raise MemoryError(_memory_text(report, store, error)) from error


def _where(report: Reporter) -> str:
    standing = report.standing()
    return f" while {standing}" if standing else ""


def _kept(store: Checkpoint | None) -> str:
    if store is None:
        return "Nothing of it is kept; with checkpoint=FOLDER solved experts are, and the same call goes on."
    count = store.count()
    number = (
        f"{count} solved expert{' is' if count == 1 else 's are'}" if count else "no solved expert is yet"
    )
    return f"{number} in {store.folder}; the same call goes on from there."


def _memory_text(report: Reporter, store: Checkpoint | None, error: BaseException) -> str:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else "no more can be had"
    return (
        f"out of memory{_where(report)}: {reason.removesuffix('.')}. Fewer workers "
        f"(executor=trustgp.Threads(1)) need less. {_kept(store)} More experts, a budget, outputs='pseudo' "
        "or witness=None need less too, but make another fit, which begins anew."
    )
