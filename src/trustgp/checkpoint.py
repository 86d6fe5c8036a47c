"""Finished experts on disk, so that a killed fit goes on where it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .experts import Solved, Task
from .fingerprint import settings_fingerprint
from .math.calibration import HeldOut
from .safefile import ArtifactError, Reader, read, write
from .state import expert_tensors, read_experts
from .tangents.base import TangentMap

KIND = "trustgp-expert"


@dataclass(frozen=True)
class Checkpoint:
    """A folder of solved experts, all of one fit.

    Args:
        folder: Where they lie.
        fingerprint: Of the data, the network and every setting; each file carries it.
    """

    folder: Path
    fingerprint: str

    @classmethod
    def open(cls, folder: Path, settings: Mapping[str, Any]) -> Checkpoint:
        """Take up the folder, or begin it; one that belongs to another fit is refused."""
        fingerprint = settings_fingerprint({**settings, "torch": str(torch.__version__)})
        folder.mkdir(parents=True, exist_ok=True)
        note = folder / "fit.trustgp"
        if note.exists():
            try:
                text, _ = read(note, kind="trustgp-checkpoint")
            except ArtifactError as error:
                raise ArtifactError(f"{error} Remove the folder {folder} to begin anew.") from error
            known = text.get("settings")
            if text.get("fingerprint") != fingerprint:
                changed = _differences(known, settings)
                raise ArtifactError(
                    f"{folder} holds a checkpoint of another fit; different: {changed}. Use another folder, "
                    "or remove this one to begin anew."
                )
        else:
            text = {"fingerprint": fingerprint, "settings": dict(settings)}
            write(note, kind="trustgp-checkpoint", text=text, tensors={"none": torch.zeros(1)})
        return cls(folder, fingerprint)

    def keep(self, mixture: int, expert: int, solved: Solved) -> None:
        """Write one solved expert, whole or not at all."""
        table = {f"expert.{k}": v for k, v in expert_tensors((solved.expert,)).items()}
        if solved.held_out is not None:
            for field in fields(HeldOut):
                table[f"held.{field.name}"] = getattr(solved.held_out, field.name)
        text = {"fingerprint": self.fingerprint, "mixture": mixture, "expert": expert}
        write(self._path(mixture, expert), kind=KIND, text=text, tensors=table)

    def finished(self, mixture: int, tasks: list[Task], tangents: TangentMap) -> dict[int, Solved]:
        """The experts that are already there; a damaged file counts as not there."""
        found = {}
        for expert in range(len(tasks)):
            path = self._path(mixture, expert)
            if path.exists():
                try:
                    found[expert] = self._read(path, tangents)
                except ArtifactError:
                    path.unlink()
        return found

    def _read(self, path: Path, tangents: TangentMap) -> Solved:
        text, table = read(path, kind=KIND)
        if text.get("fingerprint") != self.fingerprint:
            raise ArtifactError(f"{path}: of another fit.")
        reader = Reader(table, where=str(path))
        outputs = table["expert.scale"].shape[1] if "expert.scale" in table else 0
        expert = read_experts(reader, "expert.", tangents, outputs)[0]
        held: dict[str, Tensor] = {}
        for name in reader.matching("held."):
            dtype = torch.int64 if name == "output" else torch.float64
            held[name] = reader.take(f"held.{name}", dtype, None)
        reader.finish()
        from .model import moved

        device = tangents.network.device
        expert = moved(expert, lambda tensor: tensor.to(device))
        return Solved(expert, HeldOut(**held) if held else None)

    def _path(self, mixture: int, expert: int) -> Path:
        return self.folder / f"expert-{mixture:03d}-{expert:05d}.trustgp"


def _differences(known: Any, settings: Mapping[str, Any]) -> str:
    if not isinstance(known, dict):
        return "unknown"
    names = [name for name in settings if known.get(name) != settings[name]]
    return ", ".join(names) or "the version of torch"
