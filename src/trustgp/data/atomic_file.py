"""How a file is written whole or not at all: every writer here goes this way."""

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
    """Where to write what shall stand at `path`: it goes there when the block ends without an error.

    It is an empty temporary file in the same folder; afterwards fsync, rename, and fsync of the folder, so
    that a reader, a crash or a power failure finds the old file or the new one. A file that is replaced keeps
    its mode; a new one has that of the user's mask. Through a link its target is written, and the link stays.

    With `named` it is made under its own name, in an empty temporary folder: for what is called after its
    file, and for what is a folder itself. After an OSError the file before it is intact.
    """
    path = Path(path)
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    mode = _mode(path, target)
    temporary = target.parent / f".{target.name}.{secrets.token_hex(8)}{PART}"
    made = temporary / path.name if named else temporary
    with explained(f"cannot write in the folder of {path}"):
        if named:
            temporary.mkdir(0o700)
        else:  # not `tempfile`, whose files nobody but the owner may read
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            os.close(os.open(temporary, flags, 0o666 if mode is None else 0o600))
    try:
        with explained(f"{path} was not written; the file before it is intact"):
            yield made
            for part in (made, *made.rglob("*")):  # of a folder all that is in it
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
    """The mode of the file that is replaced; None: there is none yet. What is no file is refused."""
    try:
        mode = os.lstat(target).st_mode
    except OSError:  # not there; or its folder is not, as whoever writes will see
        return None
    if not stat.S_ISREG(mode):
        folder = stat.S_ISDIR(mode)
        what, kind = ("a folder", errno.EISDIR) if folder else ("not an ordinary file", errno.EINVAL)
        raise OSError(kind, f"{path} was not written: {target} is {what}; name a file")
    return stat.S_IMODE(mode)


def _sync(path: Path, mode: int | None) -> None:
    """Bring a file to the disk, with this mode, or the names in a folder: a rename is durable only then."""
    if (folder := path.is_dir()) and os.name == "nt":  # has no call for it
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
    """Raise an OSError in the block as one of the same kind (`PermissionError` and so on) that says what it
    means."""
    try:
        yield
    except OSError as error:
        reason = f"{what}: {error.strerror or error}"
        raise (OSError(error.errno, reason) if error.errno else OSError(reason)) from error
