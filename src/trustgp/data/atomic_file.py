"""Atomic writing of files, used by every writer of this library."""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PART = ".part"  # ends the name of a file that is being written


@contextmanager
def atomic_file(path: str | Path, *, named: bool = False) -> Iterator[Path]:
    """Yield a temporary path, which is moved to `path` when the block ends without an error.

    It is an empty file in the same folder; afterwards it is synced, renamed, and the folder synced, so that
    a reader, a crash or a power failure finds the old file or the new one. A replaced file keeps its mode; a
    new file gets the mode of the user's umask. If `path` is a link, its target is written and the link stays.

    With `named` the path has the final name, in an empty temporary folder, and does not exist yet: for
    content that depends on the file name, and for folders. If writing fails, the old file is intact.
    """
    path = Path(path)
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    mode = _mode(path, target)
    temporary = target.parent / f".{target.name}.{secrets.token_hex(8)}{PART}"
    made = temporary / path.name if named else temporary
    with explained(f"cannot write in the folder of {path}"):
        if named:
            temporary.mkdir(0o700)
        else:  # not `tempfile`, whose files only the owner may read
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            os.close(os.open(temporary, flags, 0o666 if mode is None else 0o600))
    try:
        with explained(f"{path} was not written; the file before it is intact"):
            yield made
            for part in (made, *made.rglob("*")):  # of a folder, everything in it
                _sync(part, mode)
            os.replace(made, target)
    finally:
        if named:
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)
    with explained(f"{path} is written, but a power failure may still undo it"):
        _sync(target.parent, None)


def _mode(path: Path, target: Path) -> int | None:
    """Mode of the file to replace; None if there is none yet. Raise OSError if it is no regular file."""
    try:
        mode = os.lstat(target).st_mode
    except OSError:  # no such file, or no such folder: then writing fails
        return None
    if not stat.S_ISREG(mode):
        folder = stat.S_ISDIR(mode)
        what, kind = ("a folder", errno.EISDIR) if folder else ("not an ordinary file", errno.EINVAL)
        raise OSError(kind, f"{path} was not written: {target} is {what}; name a file")
    return stat.S_IMODE(mode)


def _sync(path: Path, mode: int | None) -> None:
    """Sync a file (after setting its mode, unless None) or a folder: a rename is durable only then."""
    if (folder := path.is_dir()) and os.name == "nt":  # which cannot sync folders
        return
    handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    try:
        if mode is not None and not folder:
            os.chmod(path, mode)
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Raise an OSError of the block again, as one of the same kind, with a message that explains it."""
    try:
        yield
    except OSError as error:
        reason = f"{what}: {error.strerror or error}"
        raise (OSError(error.errno, reason) if error.errno else OSError(reason)) from error
