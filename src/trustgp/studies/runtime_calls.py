"""The calls whose time is taken: every method in every runtime, on one batch of inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from ..model import UncertaintyModel
from ..tangents.sketch import Sketch
from .runtime_quality import BATCHED, ENSEMBLE, LAPLACE, PLAIN, SAMPLES, SERIAL, ours
from .runtime_timing import reason_of
from .runtime_workshop import MEMBERS, UNBOUNDED, Workshop

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
        shop: The network and its error bars.
        batch: Rows of a call; of more than one, passes and members are called in torch eager only.
        threads: Of onnxruntime; torch's are set by who makes the calls.
        folder: For files that onnxruntime reads.
    """

    def __init__(self, shop: Workshop, *, batch: int, threads: int, folder: Path) -> None:
        self.shop, self.batch, self.threads, self.folder = shop, batch, threads, folder
        self.made: dict[Cell, Call] = {}
        self.reasons: dict[Cell, str] = {}
        self.bytes: dict[Cell, int] = {}
        self.inputs = shop.inputs(batch)

    def add(self, runtime: str) -> None:
        """Everything that there is in a runtime."""
        {EAGER: self._eager, GRAPH: self._graph, COMPILED: self._compiled, ONNX: self._onnx}[runtime]()

    def _eager(self) -> None:
        shop, inputs = self.shop, self.inputs
        members = _once(lambda: shop.members)

        @torch.no_grad()
        def ensemble() -> tuple[Tensor, Tensor]:
            return spread([network(inputs) for network in members()])

        def laplace(last: bool) -> Call:
            method = shop.laplace(last_layer=last)
            return lambda: method.predict(inputs)

        def trusted(budget: str) -> Call:
            model = shop.model(budget)
            return lambda: model.predict(inputs)

        plain, noisy = no_grad(shop.network), no_grad(shop.noisy)
        self.made[PLAIN, EAGER] = lambda: plain(inputs)
        self.made[SERIAL, EAGER] = lambda: spread([noisy(inputs) for _ in range(SAMPLES)])
        self.made[BATCHED, EAGER] = lambda: _apart(noisy(_many(inputs)))
        self._try((ENSEMBLE, EAGER), lambda: ensemble)
        for name, last in LAPLACE.items():
            self._try((name, EAGER), lambda last=last: laplace(last))
        for budget in shop.budgets:
            self._try((ours(budget), EAGER), lambda budget=budget: trusted(budget))

    def _graph(self) -> None:
        """Operations of torch one after another, without the network's own Python code."""
        self._torch(GRAPH, lambda function: function)

    def _compiled(self) -> None:
        torch.compiler.reset()  # what was compiled for other shapes or threads
        self._torch(COMPILED, lambda function: torch.compile(function, dynamic=False))

    def _torch(self, runtime: str, made: Callable[[Any], Any]) -> None:
        """Of the traced network, and of the traced models."""
        shop, inputs = self.shop, self.inputs

        def flat(network: nn.Module) -> Any:
            with torch.no_grad():
                # fake tensors, so that a network cannot look at what it is given
                return make_fx(network, tracing_mode="fake", _allow_non_fake_inputs=True)(inputs)

        def trusted(budget: str) -> Call:
            from ..export.tracing import traced

            function = no_grad(made(traced(shop.model(budget), inputs)))
            return lambda: function(inputs)

        try:
            plain = no_grad(made(flat(shop.network)))
            plain(inputs)
        except Exception as error:
            for name in (PLAIN, SERIAL, BATCHED, ENSEMBLE):
                self.reasons[name, runtime] = reason_of(error)
        else:
            self._repeats(runtime, plain, inputs)
        for budget in [MIDDLE] if runtime == COMPILED else _bounded(shop):
            self._try((ours(budget), runtime), lambda budget=budget: trusted(budget))

    def _onnx(self) -> None:
        shop, inputs = self.shop, self.inputs
        rows = inputs.cpu().numpy()
        many = inputs.cpu().repeat(SAMPLES, *[1] * (inputs.ndim - 1)).numpy()

        def session(name: str, export: Callable[[Path], object]) -> tuple[Any, str]:
            file = self.folder / f"{name}.onnx"
            if not file.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                export(file)
            return onnx_session(file, self.threads), str(file)

        def trusted(budget: str) -> Call:
            from ..export import export_onnx

            model = shop.model(budget)
            _refuse_heavy(model, self.batch)
            found, file = session(budget, lambda file: export_onnx(model, file, inputs))
            self.bytes[ours(budget), ONNX] = Path(file).stat().st_size
            feed = {found.get_inputs()[0].name: rows}
            return lambda: found.run(None, feed)

        try:
            found, file = session("network", lambda file: export_network(shop.network, file, inputs))
        except Exception as error:
            for name in (PLAIN, SERIAL, BATCHED, ENSEMBLE):
                self.reasons[name, ONNX] = reason_of(error)
        else:
            self.bytes[PLAIN, ONNX] = Path(file).stat().st_size
            name = found.get_inputs()[0].name

            def plain(given: Any) -> Tensor:
                return torch.from_numpy(found.run(None, {name: given})[0])

            self._repeats(ONNX, plain, rows)
            if self.batch == 1:
                self.made[BATCHED, ONNX] = lambda: _apart(plain(many))
        for budget in _bounded(shop):
            self._try((ours(budget), ONNX), lambda budget=budget: trusted(budget))

    def _repeats(self, runtime: str, plain: Callable, inputs: Any) -> None:
        """The network, and as many calls of it as passes and members would be."""
        self.made[PLAIN, runtime] = lambda: plain(inputs)
        if self.batch == 1:
            self.made[SERIAL, runtime] = lambda: spread([plain(inputs) for _ in range(SAMPLES)])
            self.made[ENSEMBLE, runtime] = lambda: spread([plain(inputs) for _ in range(MEMBERS)])

    def _try(self, cell: Cell, make: Callable[[], Call]) -> None:
        try:
            self.made[cell] = make()
        except Exception as error:  # of any kind: what cannot be had is told in the table
            self.reasons[cell] = reason_of(error)


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

    def quiet(inputs: Any) -> Any:
        with torch.no_grad():
            return function(inputs)

    return quiet


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


def _bounded(shop: Workshop) -> Mapping[str, Any]:
    return {name: options for name, options in shop.budgets.items() if name != UNBOUNDED}


def _many(inputs: Tensor) -> Tensor:
    return inputs.repeat(SAMPLES, *[1] * (inputs.ndim - 1))


def _apart(outputs: Tensor) -> tuple[Tensor, Tensor]:
    return spread(list(outputs.unflatten(0, (SAMPLES, -1))))


def _once(make: Callable[[], Any]) -> Callable[[], Any]:
    """What is made when it is first needed."""
    kept: list[Any] = []

    def get() -> Any:
        if not kept:
            kept.append(make())
        return kept[0]

    return get
