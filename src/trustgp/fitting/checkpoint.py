"""Solved experts on disk: a killed fit can resume, and a fit that ends early explains how."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any

import torch

from ..data.atomic_file import PART, explained
from ..data.fingerprint import tensor_fingerprint
from ..data.tensor_file import ArtifactError, Reader, read, write
from ..data.trees import moved, structure
from ..data.user_warnings import warn_user
from ..data.version import __version__
from ..executors.progress import Reporter
from ..experts.expert import Solved, Task
from ..math.held_out import CalibrationRows
from ..math.quantiles import NUM_MEASURES
from ..state.expert_tensors import expert_tensors, read_experts
from ..tangents.base import TangentMap
from ..tangents.network import TangentNetwork
from ..tangents.probes import Probes

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

KIND = "trustgp-expert"
NOTE, LOCK = "fit.trustgp", ".fit.trustgp.lock"
OWN = re.compile(r"expert-\d{3,}-\d{5,}\.trustgp")
_NAMES = r"fit|pictures-\w+|expert-\d{3,}-\d{5,}"
OWN_PART = re.compile(rf"\.({_NAMES})\.trustgp\.[0-9a-f]{{16}}{re.escape(PART)}")
ANEW = f"Use another folder, or remove {NOTE} and the expert-*.trustgp beside it to start over."
DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM}


@dataclass(frozen=True)
class Checkpoint:
    """A folder of solved experts, all of one fit."""

    folder: Path
    fingerprint: str  # of the data, the network and every setting; stored in each file

    @classmethod
    def open(
        cls, folder: Path, settings: Mapping[str, Any], probed: tuple[Probes, TangentNetwork] | None = None
    ) -> Checkpoint:
        """Resume from a folder that is `locked`, or start a new one. Raise ArtifactError for a folder of
        another fit, also if only the network's outputs on the probes differ."""
        settings = {**settings, "torch": str(torch.__version__), "trustgp": __version__}
        fingerprint = tensor_fingerprint(text=json.dumps(settings, sort_keys=True))
        names = [entry.name for entry in folder.iterdir()]
        for name in filter(OWN_PART.fullmatch, names):  # partial files of a killed fit
            (folder / name).unlink(missing_ok=True)
        note = folder / NOTE
        if note.exists():
            try:
                text, table = read(note, kind="trustgp-checkpoint")
            except ArtifactError as error:
                raise ArtifactError(f"{error} {ANEW}") from error
            if text.get("fingerprint") != fingerprint:
                stored = text.get("settings")
                stored = stored if isinstance(stored, dict) else settings  # then no setting is named
                changed = ", ".join(name for name in settings if stored.get(name) != settings[name])
                raise _of_another_fit(folder, changed or "unknown")
            if "probes" in text and probed is not None:
                where, (probes, network) = str(note), probed
                nesting = structure(probes.inputs)
                first = Probes.read(Reader(table, where=where), text["probes"], nesting, network.names, where)
                if difference := first.difference(network):
                    raise _of_another_fit(folder, f"the network's outputs; {difference}")
        elif foreign := next(filter(OWN.fullmatch, names), None):  # it would be overwritten
            raise ArtifactError(f"{folder} has {foreign}, but no {NOTE} that identifies its fit. {ANEW}")
        else:
            text, table = {"fingerprint": fingerprint, "settings": settings}, {"none": torch.zeros(1)}
            if probed is not None:
                text, table = text | {"probes": probed[0].text()}, probed[0].tensors()
            write(note, kind="trustgp-checkpoint", text=text, tensors=table)
        return cls(folder, fingerprint)

    def keep(self, mixture: int, expert: int, solved: Solved) -> None:
        """Write one solved expert atomically."""
        table = {f"expert.{k}": v for k, v in expert_tensors((solved.expert,)).items()}
        if solved.held_out is not None:
            table |= {f"held.{name}": value for name, value in vars(solved.held_out).items()}
        write(self._path(mixture, expert), kind=KIND, text=self._text(mixture, expert), tensors=table)

    def finished(self, mixture: int, tasks: list[Task], tangents: TangentMap) -> dict[int, Solved]:
        """Stored experts by position; damaged files, and files of experts with other rows, are skipped."""
        finished = {}
        for expert, task in enumerate(tasks):
            path = self._path(mixture, expert)
            with suppress(ArtifactError):
                if path.exists() and _belongs(solved := self._read(path, mixture, expert, tangents), task):
                    finished[expert] = solved
        return finished

    def _read(self, path: Path, mixture: int, expert: int, tangents: TangentMap) -> Solved:
        text, table = read(path, kind=KIND)
        if text != self._text(mixture, expert):
            raise ArtifactError(f"{path}: of another fit, or another expert.")
        reader = Reader(table, where=str(path))
        outputs = table["expert.scale"].shape[-1] if "expert.scale" in table else 0
        (read_back, *_) = read_experts(reader, "expert.", tangents, outputs)
        held_out, kinds = {}, {"output": torch.int64}
        for name in [field.name for field in fields(CalibrationRows)] if reader.matching("held.") else []:
            shape = (None, NUM_MEASURES) if name == "measures" else (None,)
            held_out[name] = reader.take(f"held.{name}", kinds.get(name, torch.float64), *shape)
        reader.finish()
        read_back = moved(read_back, lambda tensor: tensor.to(tangents.network.device))
        return Solved(read_back, CalibrationRows(**held_out) if held_out else None)

    def _text(self, mixture: int, expert: int) -> dict[str, Any]:
        return {"fingerprint": self.fingerprint, "mixture": mixture, "expert": expert}

    def _path(self, mixture: int, expert: int) -> Path:
        return self.folder / f"expert-{mixture:03d}-{expert:05d}.trustgp"


def _of_another_fit(folder: Path, different: str) -> ArtifactError:
    return ArtifactError(f"{folder} holds a checkpoint of another fit; different: {different}. {ANEW}")


def _belongs(solved: Solved, task: Task) -> bool:
    """Whether an expert has the rows of a task: another machine may divide them a little differently."""
    rows, own = solved.expert.rows.cpu(), int(solved.expert.own)
    same, lent = torch.isin(rows[:own], task.own), torch.isin(rows[own:], task.candidates)
    return own == len(task.own) and bool(same.all()) and bool(lent.all())


@contextmanager
def locked(folder: Path | None) -> Iterator[None]:
    """Make the folder of a checkpoint and lock it against a second fit; None: there is no checkpoint.

    The system releases the lock when its process ends, even by `kill -9`: a leftover file locks nothing.
    """
    if folder is None:
        yield
        return
    with explained(f"the folder of the checkpoint, {folder}, cannot be created"):
        folder.mkdir(parents=True, exist_ok=True)
    file = _lock(folder)
    try:
        yield
    finally:
        if file is not None and fcntl is not None:
            (folder / LOCK).unlink(missing_ok=True)  # while the lock is held: see `_lock`
            fcntl.flock(file, fcntl.LOCK_UN)  # a forked process may have the file open, too
            file.close()


def _lock(folder: Path) -> IO[str] | None:
    """Open file whose lock is held; None, with a warning, if files in this folder cannot be locked."""
    path, file = folder / LOCK, None
    try:
        if fcntl is None:
            raise OSError(errno.ENOSYS, "this system has no flock")
        file = open(path, "a+")  # noqa: SIM115 - it stays open for as long as the lock is held
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                file.truncate(0)
                file.write(f"process {os.getpid()} on {platform.node()}")
                file.flush()
                return file
        file.close()
        return _lock(folder)  # its owner has just removed this file: it locks nothing
    except BlockingIOError as error:
        assert file is not None
        file.seek(0)
        owner = file.read(200) or "unknown"
        file.close()
        raise BlockingIOError(
            error.errno,
            f"another fit uses the checkpoint {folder} ({owner}). Wait until it has ended, or stop it, and "
            "the same call resumes from there; or use another folder.",
        ) from error
    except OSError as error:
        if file is not None:
            file.close()
        warn_user(
            f"the checkpoint {folder} cannot be locked ({error.strerror}): make sure that no other fit uses "
            "it at the same time."
        )
        return None


@contextmanager
def explain_interrupts(report: Reporter, store: Checkpoint | None) -> Iterator[None]:
    """Make the errors of Ctrl-C, of too little memory and of a full disk explain how to resume the fit."""
    try:
        yield
    except (KeyboardInterrupt, MemoryError, OSError, RuntimeError) as error:
        if isinstance(error, KeyboardInterrupt):
            report.log("stopping: running tasks are finished first")
        if (explanation := _explained(error, report, store)) is None:
            raise
        raise explanation from error


def _explained(error: BaseException, report: Reporter, store: Checkpoint | None) -> BaseException | None:
    """Error to raise instead, which explains what is kept of the fit; None if `error` is of another kind."""
    where = f" while {report.position}" if report.position else ""
    kept = "Nothing is kept; with checkpoint=FOLDER, solved experts are, and the same call resumes."
    if store is not None:
        count = len(list(store.folder.glob("expert-*.trustgp")))
        experts = f"{count or 'no'} solved expert{' is' if count == 1 else 's are'}"
        kept = f"{experts} in {store.folder}; the same call resumes from there."
    if isinstance(error, OSError):
        if store is None or error.errno not in DISK:
            return None
        return OSError(error.errno, f"{error.strerror}. Once the disk has space and can be written: {kept}")
    kind = torch.OutOfMemoryError if isinstance(error, torch.OutOfMemoryError) else MemoryError
    if not isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        # a RuntimeError may be due to Ctrl-C while waiting for a lock
        if isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt):
            return KeyboardInterrupt(f"the fit was stopped{where}. {kept}")
        if "DefaultCPUAllocator" not in str(error):  # torch has no error class of its own for the CPU
            return None
    reason = str(error).strip().splitlines()[0] if str(error).strip() else "no more is available"
    return kind(
        f"out of memory{where}: {reason.removesuffix('.')}. Fewer workers "
        f"(executor=trustgp.Threads(1)) need less. {kept} More experts, a budget, outputs='pseudo' or "
        "witness=None need less too, but start another fit."
    )
