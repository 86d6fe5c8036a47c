"""How a function travels to worker processes: small things as bytes, large tensors beside them, uncopied.

Nothing here is read from a file that a user hands over: a worker unpacks what its own parent process packed.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
from torch import Tensor

BESIDE = 2**14  # bytes from which a tensor travels beside the function


@dataclass(frozen=True)
class Packed:
    """A function, ready to travel."""

    parts: list[memoryview]  # the function itself, then the memory of every large CPU tensor that it holds
    devices: frozenset[str]  # types of those that its tensors are on


def pack(function: Callable[[Any], Any]) -> Packed:
    """Take a function apart, with all that it holds; the tensors' memory is not copied."""
    file, beside, devices = io.BytesIO(), [], set()
    try:
        _Packer(file, beside, devices).dump(function)
    except Exception as error:  # whatever an object raises that does not want to travel
        reason = str(error).partition("\n")[0]
        raise TypeError(
            f"this cannot be sent to other processes ({type(error).__name__}: {reason}). A network with "
            "open files, locks or generators stays in its process: use trustgp.executors.Threads()."
        ) from error
    return Packed([file.getbuffer(), *(buffer.raw() for buffer in beside)], frozenset(devices))


def unpack(parts: Sequence[Any]) -> Callable[[Any], Any]:
    """The function again, around the memory of a `Packed`, or a copy of it; tensors are views of that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")  # nothing writes to them
        return pickle.loads(parts[0], buffers=parts[1:])


_held: dict[str, Callable[[Any], Any]] = {}


def held(name: str, fetch: Callable[[], Sequence[Any]]) -> Callable[[Any], Any]:
    """The function of one run, unpacked once in this process; the one before it is dropped."""
    if name not in _held:
        _held.clear()
        _held[name] = unpack(fetch())
    return _held[name]


def work(function: Callable[[Any], Any], task: Any) -> Any:
    """The function's result in a worker process, on one BLAS thread; errors come in a form that travels."""
    torch.set_num_threads(1)
    try:
        return function(task)
    except Exception as error:
        raise _sendable(error) from error


def _sendable(error: Exception) -> Exception:
    """The error itself if it survives the way back, else its words."""
    try:
        if type(pickle.loads(cloudpickle.dumps(error))) is type(error):
            return error
    except Exception:  # its class wants other arguments, say
        pass
    plain = RuntimeError(f"{type(error).__name__}: {error}")
    for note in getattr(error, "__notes__", []):
        plain.add_note(note)
    return plain


class _Packer(cloudpickle.Pickler):
    """Notes the devices, and lets the memory of large tensors travel beside the bytes."""

    def __init__(self, file: io.BytesIO, beside: list[pickle.PickleBuffer], devices: set[str]) -> None:
        super().__init__(file, protocol=5, buffer_callback=beside.append)
        self.devices = devices

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Tensor):
            self.devices.add(obj.device.type)
            # large and plain: its memory is all there is to it
            plain = type(obj) is Tensor and obj.layout == torch.strided and not obj.requires_grad
            plain = plain and obj.device.type == "cpu" and not (obj.is_conj() or obj.is_neg())
            if plain and obj.is_contiguous() and obj.nbytes >= BESIDE:
                memory: Any = obj.flatten().view(torch.uint8).numpy()
                return _tensor, (pickle.PickleBuffer(memory), obj.dtype, tuple(obj.shape))
        return super().reducer_override(obj)


def _tensor(memory: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.frombuffer(memory, dtype=dtype).reshape(shape)
