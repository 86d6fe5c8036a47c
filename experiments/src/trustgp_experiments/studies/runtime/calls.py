"""Every method in every runtime as a call on one batch of inputs, and the times of these calls."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from trustgp.export import export_onnx
from trustgp.export.trace.trace import traced
from trustgp.tangents.sketch import Sketch

from ...core.result import threads
from ...core.stage_timer import call_peak
from ...training.train import moments, record_graph
from .fixtures import BATCHED, DEFAULT, ENSEMBLE, LAPLACE, MEMBERS, PLAIN, SAMPLES, SERIAL, FittedCase, ours
from .timing import Interleaved, Times, noting, reason_of

EAGER, GRAPH, COMPILED, ONNX = "torch eager", "torch graph", "torch compiled", "onnxruntime"
RECORDED = "CUDA graph"  # of a whole call; `predict` records itself, so on a GPU that is its runtime
SEPARATE = {COMPILED: "-compiled", RECORDED: "-recorded"}  # runtimes that share no rounds with others
MAX_GRADIENT_BYTES = 2**29  # of an exported sketch, which has several copies of them
MIDDLE = "medium"  # beside the default the only budget that is compiled: it takes minutes
RUNTIMES = (EAGER, RECORDED, GRAPH, COMPILED, ONNX)

OWN_CODE = (EAGER, RECORDED)  # run the Python code of network and methods; others only the operations
Cell = tuple[str, str]  # a method, and a runtime


@dataclass(frozen=True)
class Workload:
    """Number of rows in a call, number of threads of one operation, and runtimes."""

    batch: int
    threads: int
    runtimes: Sequence[str]

    @property
    def name(self) -> str:
        return f"{self.batch}-{self.threads}{SEPARATE.get(self.runtimes[0], '')}"


def measure(case: FittedCase, load: Workload, timing: Interleaved) -> list[dict[str, Any]]:
    """Entries by method and runtime: seconds, ratios within rounds, peak bytes, or the reason for a gap."""
    peaks = {}
    with threads(load.threads):
        calls = Calls(case, load)
        single = load.threads == 1 and case.device == "cpu"
        timing = replace(timing, device=case.device, busy=time.thread_time if single else None)
        times = timing.run(calls.made)
        for cell, one in times.items():
            if one.seconds and cell[1] != ONNX:  # which keeps the memory of its first call
                with noting(one):
                    peaks[cell] = call_peak(calls.made[cell], case.device)
    times |= {cell: Times(reason=why) for cell, why in calls.reasons.items()}
    entries = []
    for (method, runtime), own in times.items():
        plain, passes, five = (times.get((name, runtime), Times()) for name in (PLAIN, SERIAL, ENSEMBLE))
        ratios = {"over_network": own.over(plain), "passes_over_this": passes.over(own)}
        ratios |= {"over_ensemble": own.over(five), "peak": peaks.get((method, runtime))}
        entry = {"method": method, "runtime": runtime, "batch": load.batch, "threads": load.threads}
        entries.append({**entry, **own.summary(), **ratios, "reason": own.reason})
    return entries


class Calls:
    """Calls by method and runtime, and the reasons why some are missing. With more than one row, passes and
    members are called only in `OWN_CODE`. onnxruntime has the workload's threads; the caller sets torch's."""

    def __init__(self, case: FittedCase, load: Workload) -> None:
        self.case, self.load = case, load
        self.made: dict[Cell, Callable[[], object]] = {}
        self.reasons: dict[Cell, str] = {}
        self.inputs = case.inputs(load.batch)
        for runtime in load.runtimes:
            self._add(runtime)

    def _add(self, runtime: str) -> None:
        if runtime == COMPILED:
            torch.compiler.reset()  # code for other shapes or threads
        given = self.inputs.cpu().numpy() if runtime == ONNX else self.inputs.clone()
        try:
            plain = self._ready(PLAIN, runtime)
            with torch.no_grad():
                plain(given)
        except Exception as error:
            for name in (PLAIN, SERIAL, BATCHED, ENSEMBLE):
                self.reasons[name, runtime] = reason_of(error)
        else:
            self._add_network(runtime, plain, given)
        budgets = list(self.case.budgets)
        chosen = {COMPILED: [ours(DEFAULT), ours(MIDDLE)]}
        chosen[EAGER] = [*LAPLACE, *([] if self.inputs.is_cuda else budgets)]
        for name in chosen.get(runtime, budgets):
            try:
                call = partial(self._ready(name, runtime), given)
                self.made[name, runtime] = call if runtime in OWN_CODE else torch.no_grad()(call)
            except Exception as error:  # of any kind: the table has the reason
                self.reasons[name, runtime] = reason_of(error)

    def _add_network(self, runtime: str, plain: Callable[[Any], Tensor], given: Any) -> None:
        """Add calls of the network, passes and members; outside `OWN_CODE` as many calls of the network."""
        own = runtime in OWN_CODE
        noisy, members = (self.case.noisy, self.case.members) if own else (plain, [plain] * MEMBERS)

        def add(name: str, call: Callable[[], Any]) -> None:
            call = torch.no_grad()(call)
            try:
                self.made[name, runtime] = recorded(call, self.inputs, given) if runtime == RECORDED else call
            except RuntimeError as error:  # it reads a value of the GPU
                self.reasons[name, runtime] = reason_of(error)

        def many(rows: Tensor) -> Tensor:
            return rows.repeat(SAMPLES, *[1] * (rows.ndim - 1))

        add(PLAIN, lambda: plain(given))
        if not own and self.load.batch > 1:
            return
        add(SERIAL, lambda: moments(torch.stack([noisy(given) for _ in range(SAMPLES)])))
        if own or runtime == ONNX:  # a trace is of one batch size
            ready = None if own else many(self.inputs).cpu().numpy()
            add(BATCHED, lambda: moments(noisy(many(given) if own else ready).unflatten(0, (SAMPLES, -1))))
        add(ENSEMBLE, lambda: moments(torch.stack([member(given) for member in members])))

    def _ready(self, name: str, runtime: str) -> Callable[[Any], Any]:
        """Network or method as a function of the inputs: its own Python code, a traced graph of torch
        operations, compiled or not, or an exported file."""
        case, inputs = self.case, self.inputs
        if runtime in OWN_CODE:
            return case.network if name == PLAIN else case.method(name).predict
        if runtime == ONNX:
            return self._exported(name)
        if name == PLAIN:
            with torch.no_grad():  # fake tensors, so that a network cannot look at what it is given
                graph = make_fx(case.network, tracing_mode="fake", _allow_non_fake_inputs=True)(inputs)
        else:
            graph = traced(case.method(name), inputs)
        return torch.compile(graph, dynamic=False) if runtime == COMPILED else graph

    def _exported(self, name: str) -> Callable[[Any], Any]:
        plain = name == PLAIN
        model: Any = self.case.network if plain else self.case.method(name)
        if not plain and isinstance(model.origin.tangents, Sketch):
            # an exported sketch computes the gradients of all rows of a call at once, `predict` of a few
            weights = model.mixtures[0].tangents.network.parameters.values()
            needed = self.load.batch * sum(value.numel() for value in weights) * 4
            if needed > MAX_GRADIENT_BYTES:
                size = f"{self.load.batch} rows at once have {needed / 2**30:.1f} GiB of gradients"
                raise MemoryError(f"{size} in the exported graph; use fewer rows a call")
        file = self.case.file(name, ".onnx")
        if not file.exists():
            (export_network if plain else export_onnx)(model, file, self.inputs)
        session = onnx_session(file, self.load.threads)
        entry = session.get_inputs()[0].name
        if plain:
            return lambda rows: torch.from_numpy(session.run(None, {entry: rows})[0])
        return lambda rows: session.run(None, {entry: rows})


def recorded(call: Callable[[], Any], inputs: Tensor, place: Tensor) -> Callable[[], list[Tensor]]:
    """CUDA graph of a whole call that reads `place`; each replay copies the inputs in and the results out."""
    graph, output = record_graph(call, inputs.device)
    results = [output] if isinstance(output, Tensor) else list(output)

    def play() -> list[Tensor]:
        place.copy_(inputs)
        graph.replay()
        return [result.clone() for result in results]

    return play


def onnx_session(file: Path, threads: int) -> Any:
    """Session of onnxruntime on this many CPU threads, which do not spin while they wait."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def export_network(network: nn.Module, file: Path, inputs: Tensor) -> None:
    """Export the network alone as ONNX, for any number of rows up to 2^16."""
    rows = torch.export.Dim("rows", min=1, max=2**16)
    example = inputs[:1].repeat(2, *[1] * (inputs.ndim - 1))
    options: Any = {"dynamic_shapes": ({0: rows},), "verbose": False, "external_data": False}
    program = torch.onnx.export(network, (example,), dynamo=True, **options)
    assert program is not None
    program.save(str(file))
