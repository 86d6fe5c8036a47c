"""A model as a simplified graph of aten operations with a dynamic batch.

It is traced with a prime number of rows that divides no other size, so a multiple of it in the graph can only
come from the number of rows. This works for all code, also where torch's symbolic sizes do not (the rules of
vmap, sizes in sets and as keys).
"""

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
from ..verify import export_source
from .decompositions import aten_graph

aten = torch.ops.aten
PRIMES = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061, 1063, 1069, 1087, 1091, 1093, 1097)
COPIES = (aten.clone.default, aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default)
VIEWS = (aten.view.default, aten._unsafe_view.default)
CREATORS = tuple(op.default for op in (aten.full, aten.scalar_tensor, aten.arange, aten.eye, aten.linspace))
ENDLESS = 2**63 - 1  # the end of a slice without one
MAX_FOLDED_BYTES = 2**16  # of a folded constant; a larger one may not exceed its largest operand


def traced(model: Any, example_inputs: Inputs, *, plain: bool = True) -> GraphModule:
    """The model as a graph of aten operations; it takes the `data.trees.leaves` of the inputs.

    It contains the network, its gradients, gate, experts, witness and calibration, and computes
    `Graph.forward`, for any number of rows; for a detector see `DetectorGraph.forward`. The model's own code
    is traced, on example inputs of at least one row. With `plain` it has aten operations only; otherwise
    `trustgp::choose` selects experts.
    """
    source = export_source(model)
    inputs = source.inputs(example_inputs)
    graph = source.graph(inputs, plain=plain)

    def run(*tensors: Tensor) -> dict[str, Tensor]:
        with Unfused(PLAIN):  # recurrent layers are unrolled: all sizes but the rows are fixed
            return graph(rebuilt(inputs, iter(tensors)))

    tensors = [leaf[0] for leaf in leaves(inputs)]
    for attributes in (vars(part) for part in graph.modules()):
        tensors += [*tensors_in(attributes), *state_tensors(list(attributes.values()))]
    sizes = {size for tensor in tensors for size in (*tensor.shape, tensor.numel())}
    batch_prime = next(p for p in PRIMES if all(size == 0 or size % p for size in sizes))
    flat = [leaf[:1].expand(batch_prime, *leaf.shape[1:]).clone() for leaf in leaves(inputs)]
    try:
        module = aten_graph(run, flat)
    except Exception as error:  # of many classes, where code depends on the value of a traced tensor
        if not (layer := layer_with(model.network, inputs)):
            raise
        why = f"its code depends on the values of its inputs ({(str(error) or repr(error)).splitlines()[0]})"
        raise ExportError(f"{layer} cannot be traced: {why}; replace it, or use model.predict.") from error
    module.meta["graph"] = graph  # keeps the experts of `choose` alive
    module.meta["rows"] = batch_prime
    _any_batch(module, batch_prime)
    return simplify(module)


def _any_batch(module: GraphModule, rows: int) -> None:
    """Replace, in place, the size `rows` by that of the first input, and multiples of it by its multiples."""
    graph = module.graph
    placeholders = list(graph.find_nodes(op="placeholder"))
    with graph.inserting_after(placeholders[-1]):
        after = size = graph.call_function(aten.sym_size.int, (placeholders[0], 0))
    multiples: dict[int, Node] = {1: size}

    def replaced(value: Any) -> Any:
        nonlocal after
        if type(value) is not int or value == 0 or value == ENDLESS or value % rows:
            return value
        if (times := value // rows) not in multiples:
            with graph.inserting_after(after):
                after = multiples[times] = graph.call_function(operator.mul, (size, times))
        return multiples[times]

    for node in list(graph.nodes):
        if node.op == "call_function" and node not in multiples.values():
            node.args, node.kwargs = map_aggregate((node.args, node.kwargs), replaced)
    graph.eliminate_dead_code()
    graph.lint()
    module.recompile()


def simplify(module: GraphModule) -> GraphModule:
    """Remove probes, copies, repeated operations and unused tensors, in place. Of several passes through the
    network, for its output and for each kernel's gradients, one remains."""
    for node in module.graph.find_nodes(op="get_attr"):
        node.meta.setdefault("val", getattr(module, node.target))  # which torch 2.6 leaves out
    for step in (_deduplicate, _drop_identities, _deduplicate, _fold_constants, _deduplicate):
        step(module)
        module.graph.eliminate_dead_code()
    named = {node.target for node in module.graph.find_nodes(op="get_attr")}
    attributes = {**module._buffers, **module._parameters, **vars(module)}
    for name in [n for n, value in attributes.items() if isinstance(value, Tensor) and n not in named]:
        delattr(module, name)
    module.graph.lint()
    module.recompile()
    return module


def _drop_identities(module: GraphModule) -> None:
    """Remove operations that return their argument."""
    for node in (node for node in module.graph.nodes if node.op == "call_function"):
        if node.target in VIEWS:
            node.target = aten.reshape.default  # strides may differ from the traced ones
        if (argument := _identity(node)) is not None:
            node.replace_all_uses_with(argument)


def _identity(node: Any) -> Node | None:
    """Argument that the operation returns unchanged, if there is one."""
    first = node.args[0] if node.args else None
    if not isinstance(first, Node):
        return None
    if node.target in COPIES:
        return first
    if node.target is aten.add.Tensor and len(node.args) == 2 and not node.kwargs:
        for term, other in ((first, node.args[1]), (node.args[1], first)):
            if isinstance(other, Node) and _is_zero(other) and isinstance(term, Node) and _alike(term, node):
                return term
    same = (aten._to_copy.default, aten.expand.default, aten.slice.Tensor, aten.reshape.default)
    whole = node.target is not aten.slice.Tensor or len(node.args) < 5
    return first if node.target in same and whole and _alike(first, node) else None


def _is_zero(node: Any) -> bool:
    if node.target is aten.expand.default and isinstance(node.args[0], Node):
        return _is_zero(node.args[0])
    return node.target is aten.full.default and node.args[1] == 0


def _alike(node: Any, other: Any) -> bool:
    """Whether both are tensors of the same type, device and shape."""
    values = [n.meta.get("val") for n in (node, other)]
    kinds = [(v.dtype, v.device, tuple(map(str, v.shape))) for v in values if isinstance(v, Tensor)]
    return len(kinds) == 2 and kinds[0] == kinds[1]


def _fold_constants(module: GraphModule) -> None:
    """Replace operations that do not depend on the inputs by their results."""
    constants: dict = {n: getattr(module, n.target) for n in module.graph.find_nodes(op="get_attr")}
    for node in [node for node in module.graph.nodes if node.op == "call_function"]:
        if (value := _constant(node, constants)) is not None:
            constants[node] = value
        if isinstance(value, Tensor):
            name = f"_folded_{len(constants)}"
            module.register_buffer(name, value.detach().clone().contiguous())
            with module.graph.inserting_before(node):
                constant = module.graph.get_attr(name)
            constants[constant] = constant.meta["val"] = getattr(module, name)
            node.replace_all_uses_with(constant)


def _constant(node: Any, constants: dict[Node, Any]) -> Any:
    """Result of an operation on constants; None if an argument is not constant or the result is too large."""
    inputs = node.all_input_nodes
    if any(n not in constants for n in inputs) or not (inputs or node.target in CREATORS):
        return None
    args, kwargs = map_arg((node.args, node.kwargs), constants.__getitem__)
    value = node.target(*args, **kwargs)
    sizes = [constants[n].nbytes for n in inputs if isinstance(constants[n], Tensor)]
    return None if isinstance(value, Tensor) and value.nbytes > max([MAX_FOLDED_BYTES, *sizes]) else value


def _deduplicate(module: GraphModule) -> None:
    """Keep one name for each constant, and one operation for the same arguments."""
    first: dict[Any, Node] = {}
    for node in module.graph.nodes:
        if node.op not in ("get_attr", "call_function"):
            continue
        target = id(getattr(module, node.target)) if node.op == "get_attr" else node.target
        # as texts: 1, 1.0 and True differ; names of nodes are unique
        same = first.setdefault((target, repr(node.args), repr(sorted(node.kwargs.items()))), node)
        if same is not node:
            node.replace_all_uses_with(same)
