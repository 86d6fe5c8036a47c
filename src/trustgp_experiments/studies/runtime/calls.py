"""The calls whose time is taken: every method in every runtime, on one batch of inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from trustgp.export import export_onnx
from trustgp.export.trace.trace import traced
from trustgp.model import UncertaintyModel
from trustgp.tangents.sketch import Sketch

from .fixtures import MEMBERS, UNBOUNDED, FittedCase
from .quality import BATCHED, ENSEMBLE, LAPLACE, PLAIN, SAMPLES, SERIAL, ours
from .timing import reason_of

EAGER, GRAPH, COMPILED, ONNX = "torch eager", "torch graph", "torch compiled", "onnxruntime"
HEAVY = 2**29  # bytes of gradients that an exported sketch may hold; it holds several copies of them
MIDDLE = "medium"  # the only budget that is compiled: it takes minutes
RUNTIMES = (EAGER, GRAPH, COMPILED, ONNX)

Call = Callable[[], object]
Cell = tuple[str, str]
"""A method, and a runtime."""


class Calls:
    """Calls by method and runtime, and why some are not there.

    Args:
        case: The network and its error bars.
        batch: Rows of a call; of more than one, passes and members are called in torch eager only.
        threads: Of onnxruntime; torch's are set by who makes the calls.
        folder: For files that onnxruntime reads.
    """

    def __init__(self, case: FittedCase, *, batch: int, threads: int, folder: Path) -> None:
        self.case, self.batch, self.threads, self.folder = case, batch, threads, folder
        self.made: dict[Cell, Call] = {}
        self.reasons: dict[Cell, str] = {}
        self.bytes: dict[Cell, int] = {}
        self.inputs = case.inputs(batch)

    def add(self, runtime: str) -> None:
        """Everything that there is in a runtime."""
        if runtime == EAGER:
            self._add_eager()
            return
        maker = _Exported(self) if runtime == ONNX else _Traced(self, compiled=runtime == COMPILED)
        try:
            plain = maker.network()
            plain(maker.given)
        except Exception as error:
            for name in (PLAIN, SERIAL, BATCHED, ENSEMBLE):
                self.reasons[name, runtime] = reason_of(error)
        else:
            self._add_network(runtime, plain, maker.given)
        bounded = [budget for budget in self.case.budgets if budget != UNBOUNDED]
        for budget in [MIDDLE] if runtime == COMPILED else bounded:
            self._try((ours(budget), runtime), lambda budget=budget: maker.model(budget))

    def _add_eager(self) -> None:
        case, inputs = self.case, self.inputs
        plain, noisy = no_grad(case.network), no_grad(case.noisy)

        def predicting(method: Any) -> Call:
            return lambda: method.predict(inputs)

        @torch.no_grad()
        def ensemble() -> tuple[Tensor, Tensor]:
            return spread([network(inputs) for network in case.members])

        self.made[PLAIN, EAGER] = lambda: plain(inputs)
        self.made[SERIAL, EAGER] = lambda: spread([noisy(inputs) for _ in range(SAMPLES)])
        self.made[BATCHED, EAGER] = lambda: _apart(noisy(_many(inputs)))
        self.made[ENSEMBLE, EAGER] = ensemble
        for name, last in LAPLACE.items():
            self._try((name, EAGER), lambda last=last: predicting(case.laplace(last_layer=last)))
        for budget in case.budgets:
            self._try((ours(budget), EAGER), lambda budget=budget: predicting(case.model(budget)))

    def _add_network(self, runtime: str, plain: Callable[[Any], Tensor], given: Any) -> None:
        """The network, and as many calls of it as passes and members would be."""
        self.made[PLAIN, runtime] = lambda: plain(given)
        if self.batch == 1:
            self.made[SERIAL, runtime] = lambda: spread([plain(given) for _ in range(SAMPLES)])
            self.made[ENSEMBLE, runtime] = lambda: spread([plain(given) for _ in range(MEMBERS)])
            if runtime == ONNX:  # a trace is of one batch size
                many = _many(self.inputs.cpu()).numpy()
                self.made[BATCHED, runtime] = lambda: _apart(plain(many))

    def _try(self, cell: Cell, make: Callable[[], Call]) -> None:
        try:
            self.made[cell] = make()
        except Exception as error:  # of any kind: what cannot be had is told in the table
            self.reasons[cell] = reason_of(error)


class _Traced:
    """Operations of torch one after another, without the network's own Python code."""

    def __init__(self, calls: Calls, *, compiled: bool) -> None:
        self.case, self.given, self.compiled = calls.case, calls.inputs, compiled
        if compiled:
            torch.compiler.reset()  # what was compiled for other shapes or threads

    def network(self) -> Callable[[Any], Tensor]:
        with torch.no_grad():
            # fake tensors, so that a network cannot look at what it is given
            make = make_fx(self.case.network, tracing_mode="fake", _allow_non_fake_inputs=True)
            return self._ready(make(self.given))

    def model(self, budget: str) -> Call:
        function = self._ready(traced(self.case.model(budget), self.given))
        return lambda: function(self.given)

    def _ready(self, graph: Callable) -> Callable:
        return no_grad(torch.compile(graph, dynamic=False) if self.compiled else graph)


class _Exported:
    """Called by onnxruntime, from files."""

    def __init__(self, calls: Calls) -> None:
        self.calls, self.given = calls, calls.inputs.cpu().numpy()

    def network(self) -> Callable[[Any], Tensor]:
        network, inputs = self.calls.case.network, self.calls.inputs
        session, name = self._session(PLAIN, "network", lambda file: export_network(network, file, inputs))
        return lambda rows: torch.from_numpy(session.run(None, {name: rows})[0])

    def model(self, budget: str) -> Call:
        model, inputs = self.calls.case.model(budget), self.calls.inputs
        _refuse_heavy(model, self.calls.batch)
        session, name = self._session(ours(budget), budget, lambda file: export_onnx(model, file, inputs))
        feed = {name: self.given}
        return lambda: session.run(None, feed)

    def _session(self, method: str, stem: str, export: Callable[[Path], object]) -> tuple[Any, str]:
        """And the name of its input."""
        file = self.calls.folder / f"{stem}.onnx"
        if not file.exists():
            self.calls.folder.mkdir(parents=True, exist_ok=True)
            export(file)
        self.calls.bytes[method, ONNX] = file.stat().st_size
        session = onnx_session(file, self.calls.threads)
        return session, session.get_inputs()[0].name


def _refuse_heavy(model: UncertaintyModel, batch: int) -> None:
    """An exported sketch makes the gradients of all rows of a call at once, where `predict` makes a few."""
    chosen = sum(value.numel() for value in model.mixtures[0].tangents.network.parameters.values())
    needed = batch * chosen * 4
    if isinstance(model.origin.tangents, Sketch) and needed > HEAVY:
        raise MemoryError(
            f"{batch} rows at once have {needed / 2**30:.1f} GiB of gradients in the exported graph; "
            "a few rows a call"
        )


def spread(outputs: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and variance over passes or members."""
    stacked = torch.stack(outputs)
    return stacked.mean(dim=0), stacked.var(dim=0, correction=0)


def no_grad(function: Callable) -> Callable:
    """The same without a record for gradients."""
    return torch.no_grad()(lambda inputs: function(inputs))


def onnx_session(file: Path, threads: int) -> Any:
    """An onnxruntime session on so many CPU threads, which do not spin while they wait."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def export_network(network: nn.Module, file: Path, inputs: Tensor) -> None:
    """The network alone as ONNX, for any number of rows."""
    rows = torch.export.Dim("rows", min=1, max=2**16)
    example = inputs[:1].repeat(2, *[1] * (inputs.ndim - 1))
    program = torch.onnx.export(
        network, (example,), dynamo=True, dynamic_shapes=({0: rows},), verbose=False, external_data=False
    )
    assert program is not None
    program.save(str(file))


def _many(inputs: Tensor) -> Tensor:
    return inputs.repeat(SAMPLES, *[1] * (inputs.ndim - 1))


def _apart(outputs: Tensor) -> tuple[Tensor, Tensor]:
    return spread(list(outputs.unflatten(0, (SAMPLES, -1))))
