"""Workers of a Ray cluster: one machine or many, on CPUs or on fractions of GPUs."""

import io
import logging
import os
import pickle
import threading
import uuid
import warnings
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.user_warnings import optional_package
from .base import Results, Threads, Work, WorkerLostError, usable_cores

# A function travels to the workers as bytes, with large tensors beside them, uncopied. Nothing here is read
# from a user's file: a worker unpacks what its own driver packed.
OUT_OF_BAND = 2**14  # bytes from which a tensor travels beside the function


def pack(function: Any) -> tuple[list[memoryview], set[str]]:
    """Pickled function with all that it refers to, then the memory of every large CPU tensor, uncopied; and
    the types of the devices of its tensors."""
    from ray import cloudpickle

    file, buffers, devices = io.BytesIO(), [], set()

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, Tensor):
                devices.add(obj.device.type)
                # large and plain: defined by memory, dtype and shape
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
    """Function from the parts that `pack` returned, or copies of them; its tensors are views of these."""
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
    """The error itself if it survives pickling, else a RuntimeError with its text and notes."""
    try:
        if type(unpack(pack(error)[0])) is type(error):
            return error
    except Exception:  # for example, its class needs other arguments
        pass
    plain = RuntimeError(f"{type(error).__name__}: {error}")
    vars(plain)["__notes__"] = getattr(error, "__notes__", [])
    return plain


def _tensor(memory: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.frombuffer(memory, dtype=dtype).reshape(shape)


class Ray:
    """Executor on a Ray cluster; needs `pip install "trustgp[ray]"` on every node.

    Data that the tasks share are put once into Ray's object store, which each node maps into the memory of
    all its workers. A single task runs in this process. Ray restarts a task if its worker or node is lost. If
    this process itself is lost, only a checkpoint remains.

    Args:
        address: Address of the cluster, "auto" for the one that this machine belongs to; None: the cluster
            that is connected already or that RAY_ADDRESS names, else a new one on this machine.
        workers: Number of tasks at the same time; None: as many as the cluster has room for.
        gpus: GPUs of each task, a fraction or a whole number: 0.25 puts four tasks on each GPU. The fit must
            then be on the first GPU of this machine (`device="cuda"`).
        retries: How often a task is restarted after its worker or its node was lost.

    Examples:
        >>> executor = trustgp.executors.Ray(address="auto", gpus=0.25)
        >>> model = trustgp.fit(network, train, executor=executor, device="cuda")
    """

    def __init__(
        self, address: str | None = None, workers: int | None = None, *, gpus: float = 0.0, retries: int = 3
    ) -> None:
        if retries < 0 or (workers is not None and workers < 1):
            raise ValueError(f"workers={workers}, retries={retries}; at least 1 and 0 are needed.")
        if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
            raise ValueError(f"gpus={gpus}; give a fraction of one GPU, or a whole number of them.")
        self.address, self.gpus, self.retries, self._workers = address, gpus, retries, workers

    @property
    def workers(self) -> int:
        if self._workers is not None:
            return self._workers
        resources = self._connected().cluster_resources()
        return max(1, int(resources.get("GPU", 0) / self.gpus if self.gpus else resources.get("CPU", 1)))

    @property
    def nearby(self) -> Threads:
        """Threads of this process, for short work."""
        return Threads(1 if self.gpus else None)

    def run(self, function: Work, tasks: Sequence[Any]) -> Results:
        if len(tasks) < 2:
            yield from self.nearby.run(function, tasks)
            return
        ray, (parts, devices) = self._connected(), pack(function)
        if "cuda" in devices and not self.gpus:
            advice = 'pass Ray(gpus=0.25), with four tasks on each GPU, or fit on the CPU (device="cpu")'
            raise ValueError(f"the network is on a GPU, but gpus=0 gives the tasks none; {advice}.")
        shared = ray.put([np.frombuffer(part, dtype=np.uint8) for part in parts])
        solve = ray.remote(num_cpus=1, num_gpus=self.gpus, max_retries=self.retries)(_solve)
        upcoming, name = iter(enumerate(tasks)), uuid.uuid4().hex
        pending: dict[Any, int] = {}

        def launch() -> None:
            for position, task in islice(upcoming, (self._workers or len(tasks)) - len(pending)):
                pending[solve.remote(name, shared, task)] = position

        try:
            launch()
            while pending:
                result = self._next(ray, pending)
                launch()  # before the caller works on the result
                yield result
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)

    def _next(self, ray: Any, pending: dict[Any, int]) -> tuple[int, Any]:
        """Next pair (position, result); its task is removed from `pending`."""
        (reference,), _ = ray.wait(list(pending), num_returns=1)
        position = pending.pop(reference)
        try:
            return position, ray.get(reference)
        except ray.exceptions.RayTaskError as error:  # the task raised it
            raise (error.cause if isinstance(error.cause, Exception) else error) from error
        except ray.exceptions.RayError as error:
            reason = str(error).strip().partition("\n")[0]
            what = f"the worker of task {position} was lost {self.retries + 1} times"
            why = f"({type(error).__name__}: {reason}); retries={self.retries} allows no more"
            advice = "If the memory ran out, use fewer workers or smaller experts."
            raise WorkerLostError(f"{what} {why}. {advice}", [position]) from error

    def _connected(self) -> Any:
        """The package ray, connected to a cluster."""
        missing = 'trustgp.executors.Ray needs the package ray: pip install "trustgp[ray]".'
        ray = optional_package("ray", missing)
        if not ray.is_initialized():
            options: dict[str, Any] = {"address": self.address}
            if threading.current_thread() is not threading.main_thread():
                # the processes that Ray starts end with the thread that started them, and this one with them
                raise RuntimeError("Ray must start in the main thread; call ray.init() there before the fit.")
            if self.address is None and "RAY_ADDRESS" not in os.environ:
                cores = max(self._workers or 1, usable_cores())  # another executor may need more later
                options = {"address": "local", "num_cpus": cores, "include_dashboard": False}
            ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
        return ray


def _solve(name: str, parts: list[np.ndarray], task: Any) -> Any:
    """Run a task in a worker, on one BLAS thread; errors are raised in a form that can be pickled."""
    torch.set_num_threads(1)
    try:
        return cached_function(name, parts)(task)
    except Exception as error:
        raise sendable(error) from error
