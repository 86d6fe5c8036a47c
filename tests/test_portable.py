"""What only some systems have is asked for before it is used."""

import os

import torch

from trustgp import executors
from trustgp.data import atomic_file, tensor_file
from trustgp.fitting import plan


def test_cores_are_counted_where_a_process_is_not_bound_to_some(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert executors.Threads().workers == executors.usable_cores() == 3
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert executors.usable_cores() == 1


def test_free_memory_is_unknown_where_nobody_tells(monkeypatch, tmp_path):
    monkeypatch.setattr(plan, "Path", lambda *_: tmp_path / "nothing")
    assert plan._available(torch.device("cpu")) is None


def test_a_file_is_written_where_folders_cannot_be_opened(monkeypatch, tmp_path):
    inner = os.open

    def no_folders(path, *rest):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return inner(path, *rest)

    class Windows:
        name, open = "nt", staticmethod(no_folders)

        def __getattr__(self, name):
            return getattr(os, name)

    monkeypatch.setattr(atomic_file, "os", Windows())
    tensor_file.write(tmp_path / "file", kind="test", text={"a": 1}, tensors={})
    assert tensor_file.read(tmp_path / "file", kind="test")[0]["a"] == 1
