"""How a function travels to Ray's workers: small things as bytes, large tensors beside them, uncopied.

Nothing here is read from a user's file: a worker unpacks what its own driver packed.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

OUT_OF_BAND = 2**14  # bytes from which a tensor travels beside the function


def pack(function: Any) -> tuple[list[memoryview], set[str]]:
    """A function with all that it refers to, as bytes, then the memory of every large CPU tensor, uncopied;
    and the types of devices that its tensors are on."""
    from ray import cloudpickle

    file, buffers, devices = io.BytesIO(), [], set()

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, Tensor):
                devices.add(obj.device.type)
                # large and plain: its memory is all there is to it
                plain = type(obj) is Tensor and obj.layout == torch.strided and not obj.requires_grad
                plain = plain and obj.device.type == "cpu" and not (obj.is_conj() or obj.is_neg())
                if plain and obj.is_contiguous() and obj.nbytes >= OUT_OF_BAND:
                    memory: Any = obj.flatten().view(torch.uint8).numpy()
                    return _tensor, (pickle.PickleBuffer(memory), obj.dtype, tuple(obj.shape))
            return super().reducer_override(obj)

    try:
        Pickler(file, protocol=5, buffer_callback=buffers.append).dump(function)
    except Exception as error:  # whatever an object raises that cannot be pickled
        reason = str(error).partition("\n")[0]
        what = f"this cannot be sent to other processes ({type(error).__name__}: {reason})"
        advice = "A network with open files, locks or generators stays here: use trustgp.executors.Threads()."
        raise TypeError(f"{what}. {advice}") from error
    return [file.getbuffer(), *(buffer.raw() for buffer in buffers)], devices


def unpack(parts: Sequence[Any]) -> Any:
    """The function again, around the memory from `pack`, or a copy of it; tensors are views of that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")  # nothing writes to them
        return pickle.loads(parts[0], buffers=parts[1:])


_cache: dict[str, Callable[[Any], Any]] = {}


def cached_function(name: str, parts: Sequence[Any]) -> Callable[[Any], Any]:
    """The function of one run, unpacked once in this process; the previous one is dropped."""
    if name not in _cache:
        _cache.clear()
        _cache[name] = unpack(parts)
    return _cache[name]


def sendable(error: Exception) -> Exception:
    """The error itself if it survives pickling, else its text."""
    try:
        if type(unpack(pack(error)[0])) is type(error):
            return error
    except Exception:  # its class wants other arguments, say
        pass
    plain = RuntimeError(f"{type(error).__name__}: {error}")
    for note in getattr(error, "__notes__", []):
        plain.add_note(note)
    return plain


def _tensor(memory: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.frombuffer(memory, dtype=dtype).reshape(shape)
