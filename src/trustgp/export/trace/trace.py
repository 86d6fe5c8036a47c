"""From a model to a graph of aten operations with a dynamic batch, and without what it does not need.

Code that asks for the number of rows gets a prime that divides no other size in sight. What is a multiple
of it in the graph was made from the number of rows, and from nothing else. This holds for all code, also
where torch's symbolic sizes give up (the rules of vmap, sizes in sets and as keys).
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate, map_arg

from ...data.trees import Inputs, leaves, rebuilt, state_tensors
from ...tangents.decompose import PLAIN, Unfused
from ...tangents.modules import tensors_in
from ..errors import ExportError, layer_with
from ..source import export_source
from .decompositions import aten_graph

aten = torch.ops.aten
PRIMES = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061, 1063, 1069, 1087, 1091, 1093, 1097)
COPIES = (aten.clone.default, aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default)
VIEWS = (aten.view.default, aten._unsafe_view.default)
MADE = (
    *(aten.full.default, aten.scalar_tensor.default, aten.arange.default, aten.eye.default),
    aten.linspace.default,
)
ENDLESS = 2**63 - 1  # the end of a slice that has none
FOLDED = 2**16  # bytes that a folded constant may have; a larger one may not exceed what it is made of


def traced(model: Any, example_inputs: Inputs, *, plain: bool = True) -> GraphModule:
    """The model as a graph of aten operations; it takes the `data.trees.leaves` of the inputs.

    It holds the network, its gradients, gate, experts, witness and calibration, and gives what
    `Graph.forward` gives, for any number of rows; of a detector see `DetectorGraph.forward`. The model's own
    code is what is traced.

    Args:
        model: The fitted model; it is not changed.
        example_inputs: At least one row, as the network takes them.
        plain: Whether there are aten operations only; else experts are behind `trustgp::choose`.
    """
    source = export_source(model)
    inputs = source.inputs(example_inputs)
    graph = source.graph(inputs, plain=plain)

    def run(*tensors: Tensor) -> dict[str, Tensor]:
        with Unfused(PLAIN):  # recurrent layers are unrolled: all sizes but the rows are fixed
            return graph(rebuilt(inputs, iter(tensors)))

    # a number of rows that divides no size of the inputs, nor of what the graph holds in any form
    tensors = [leaf[0] for leaf in leaves(inputs)]
    for held in (vars(part) for part in graph.modules()):
        tensors += [*tensors_in(held), *state_tensors(list(held.values()))]
    sizes = {size for tensor in tensors for size in (*tensor.shape, tensor.numel())}
    batch_prime = next(p for p in PRIMES if all(size == 0 or size % p for size in sizes))
    flat = [leaf[:1].expand(batch_prime, *leaf.shape[1:]).clone() for leaf in leaves(inputs)]
    try:
        found = aten_graph(run, flat)
    except Exception as error:  # of torch, of many classes, where code asks for a number while it is traced
        layer = layer_with(source.network, inputs)
        if not layer:
            raise
        raise ExportError(
            f"{layer} cannot be traced: its code depends on the numbers it is given "
            f"({(str(error) or repr(error)).splitlines()[0]}); replace that layer, or use model.predict."
        ) from error
    found.meta["graph"] = graph  # keeps alive what is chosen from
    found.meta["rows"] = batch_prime
    _any_batch(found, batch_prime)
    return simplify(found)


def _any_batch(module: GraphModule, rows: int) -> None:
    """Replace this number of rows, and multiples of it, by what the first input has; in place."""
    graph = module.graph
    first = next(iter(graph.find_nodes(op="placeholder")))
    with graph.inserting_after(list(graph.find_nodes(op="placeholder"))[-1]):
        size = graph.call_function(aten.sym_size.int, (first, 0))
    made: dict[int, Node] = {1: size}
    after = size

    def replaced(value: Any) -> Any:
        nonlocal after
        if type(value) is not int or value == 0 or value == ENDLESS or value % rows:
            return value
        times = value // rows
        if times not in made:
            with graph.inserting_after(after):
                after = made[times] = graph.call_function(operator.mul, (size, times))
        return made[times]

    for node in list(graph.nodes):
        if node.op == "call_function" and node not in made.values():
            node.args, node.kwargs = map_aggregate((node.args, node.kwargs), replaced)
    graph.eliminate_dead_code()
    graph.lint()
    module.recompile()


def simplify(module: GraphModule) -> GraphModule:
    """The same function without probes, copies, what is done twice, and tensors that none names; in place.
    The network is traced several times over: for its output, and once more for the gradients of each kernel.
    Once the probes are gone all these passes are the same operations, and one is left."""
    for step in (_same_once, _without_idle, _same_once, _folded, _same_once):
        step(module)
        module.graph.eliminate_dead_code()
    named = {node.target for node in module.graph.find_nodes(op="get_attr")}
    held = {**module._buffers, **module._parameters, **vars(module)}
    for name in [n for n, value in held.items() if isinstance(value, Tensor) and n not in named]:
        delattr(module, name)
    module.graph.lint()
    module.recompile()
    return module


def _without_idle(module: GraphModule) -> None:
    """Without operations that give what they are given."""
    for node in (node for node in module.graph.nodes if node.op == "call_function"):
        if node.target in VIEWS:
            node.target = aten.reshape.default  # what is given may no longer lie as it did
        if (found := _idle(node)) is not None:
            node.replace_all_uses_with(found)


def _idle(node: Any) -> Node | None:
    """What the operation gives, where that is what it is given."""
    first = node.args[0] if node.args else None
    if not isinstance(first, Node):
        return None
    if node.target in COPIES:
        return first
    if node.target is aten.add.Tensor and len(node.args) == 2 and not node.kwargs:
        for one, other in ((first, node.args[1]), (node.args[1], first)):
            if isinstance(other, Node) and _is_zero(other) and isinstance(one, Node) and _alike(one, node):
                return one
    same = (aten._to_copy.default, aten.expand.default, aten.slice.Tensor, aten.reshape.default)
    whole = node.target is not aten.slice.Tensor or len(node.args) < 5
    return first if node.target in same and whole and _alike(first, node) else None


def _is_zero(node: Any) -> bool:
    if node.target is aten.expand.default and isinstance(node.args[0], Node):
        return _is_zero(node.args[0])
    return node.target is aten.full.default and node.args[1] == 0


def _alike(one: Any, other: Any) -> bool:
    """Whether both are tensors of the same type, device and shape, symbols taken as they are written."""
    values = [node.meta.get("val") for node in (one, other)]
    if not all(isinstance(value, Tensor) for value in values):
        return False
    first, second = ((value.dtype, value.device, tuple(map(str, value.shape))) for value in values)
    return first == second


def _folded(module: GraphModule) -> None:
    """With what does not depend on the inputs computed once."""
    known: dict[Node, Any] = {n: getattr(module, n.target) for n in module.graph.find_nodes(op="get_attr")}
    for node in [node for node in module.graph.nodes if node.op == "call_function"]:
        if node.target in (aten.mm.default, aten.bmm.default):
            _fold_repeated(module, node, known)
        value = _constant(node, known)
        if value is not None:
            known[node] = value
        if isinstance(value, Tensor):
            node.replace_all_uses_with(_before(module, node, value, known))


def _constant(node: Any, known: dict[Node, Any]) -> Any:
    """What an operation on constants gives; None: its arguments are none, or it is too large to be kept."""
    given = node.all_input_nodes
    if any(n not in known for n in given) or not (given or node.target in MADE):
        return None
    args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
    value = node.target(*args, **kwargs)
    sizes = [known[n].nbytes for n in given if isinstance(known[n], Tensor)]
    return None if isinstance(value, Tensor) and value.nbytes > max([FOLDED, *sizes]) else value


def _before(module: GraphModule, node: Any, value: Tensor, known: dict[Node, Any]) -> Node:
    """A new constant, named before this operation."""
    name = f"_folded_{len(known)}"
    module.register_buffer(name, value.detach().clone().contiguous())
    with module.graph.inserting_before(node):
        constant = module.graph.get_attr(name)
    known[constant] = constant.meta["val"] = getattr(module, name)
    return constant


def _fold_repeated(module: GraphModule, node: Any, known: dict[Node, Any]) -> None:
    """A product of one constant row, repeated for all rows, with a constant: the row's product, repeated."""
    repeated, right = node.args
    if repeated.target is not aten.expand.default or right not in known:
        return
    row, sizes = repeated.args
    if row not in known or not isinstance(sizes[-2], Node):  # repeated along the batch, and not otherwise
        return
    single, lead = known[row], known[right].ndim - 2
    single = single.reshape(*[1] * (lead + 2 - single.ndim), *single.shape)
    if single.shape[-2] != 1 or single.shape[-1] != known[right].shape[-2]:
        return
    constant = _before(module, node, single @ known[right], known)
    with module.graph.inserting_before(node):
        rows = module.graph.call_function(aten.expand.default, (constant, [-1] * lead + [sizes[-2], -1]))
    rows.meta = dict(node.meta)
    node.replace_all_uses_with(rows)


def _same_once(module: GraphModule) -> None:
    """With one name for each constant, and each operation on the same arguments done once."""
    first: dict[Any, Node] = {}
    for node in module.graph.nodes:
        if node.op not in ("get_attr", "call_function"):
            continue
        held = id(getattr(module, node.target)) if node.op == "get_attr" else node.target
        kept = first.setdefault((held, _key(node.args), _key(node.kwargs)), node)
        if kept is not node:
            node.replace_all_uses_with(kept)


def _key(value: Any) -> Any:
    """Arguments in a form that can be compared; 1, 1.0 and True are not the same."""
    if isinstance(value, (list, tuple)):
        return tuple(_key(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in sorted(value.items()))
    return (type(value).__name__, value if isinstance(value, Node) else repr(value))
