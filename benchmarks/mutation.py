"""Does a test notice when a line is wrong? Small changes to modules, one at a time; see docs/mutation.md.

python benchmarks/mutation.py src/trustgp/math/leave_out.py --tests tests/math/test_leave_out.py --most 20
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import scipy.optimize
import scipy.stats
import torch

ROOT = Path(__file__).parents[1]
READ = (scipy.optimize, scipy.stats, torch)  # once, by this process
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


def changes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every place that can be changed: its number among the nodes, and what is done there."""
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    raised = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Raise) for part in ast.walk(node)}
    names = ("annotation", "returns")
    kinds = [getattr(node, name, None) for node in ast.walk(tree) for name in names]
    typed = {id(part) for kind in kinds if kind is not None for part in ast.walk(kind)}
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in texts | raised | typed:
            continue
        if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            yield number, "comparison"
        elif isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in SWAPS:
            yield number, "operator"
        elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            yield number, "number"
        elif isinstance(node, ast.Return) and node.value is not None:
            yield number, "return"
        elif isinstance(node, (ast.If, ast.IfExp)):
            yield number, "condition"


def changed(tree: ast.Module, number: int) -> tuple[str, str]:
    """The module with one change, as text, and the change in words."""
    tree = copy.deepcopy(tree)
    node = list(ast.walk(tree))[number]
    before = ast.unparse(node.test if isinstance(node, (ast.If, ast.IfExp)) else node)
    if isinstance(node, ast.Compare):
        node.ops[0] = SWAPS[type(node.ops[0])]()
    elif isinstance(node, (ast.BinOp, ast.BoolOp)):
        node.op = SWAPS[type(node.op)]()
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    elif isinstance(node, ast.Return):
        node.value = ast.Constant(None)
    elif isinstance(node, (ast.If, ast.IfExp)):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    after = ast.unparse(node.test if isinstance(node, (ast.If, ast.IfExp)) else node)
    return ast.unparse(ast.fix_missing_locations(tree)), f"line {node.lineno}: {before} -> {after}"  # pyright: ignore


def survives(source: Path, tests: list[str], seconds: int) -> bool:
    """Whether all tests pass with the package in this folder; one that does not end has noticed.

    In a fork of this process, which has read torch already: that takes longer than most tests.
    """
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    signal.alarm(seconds)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    sys.path.insert(0, str(source))
    os.chdir(ROOT)
    os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", type=Path)
    parser.add_argument("--tests", nargs="+", required=True)
    parser.add_argument("--most", type=int, default=20, help="changes, chosen at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=300, help="for one run of the tests")
    given = parser.parse_args()
    torch.set_num_threads(1)  # a fork has no others
    sys.dont_write_bytecode = True
    tree = ast.parse(given.module.read_text())
    places = list(changes(tree))
    chosen = random.Random(given.seed).sample(places, min(given.most, len(places)))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "weights"))
        if not survives(source, given.tests, given.seconds):
            raise SystemExit("the tests fail without any change.")
        place = source / given.module.resolve().relative_to(ROOT / "src")
        left = []
        for number, _ in sorted(chosen):
            text, words = changed(tree, number)
            place.write_text(text)
            if survives(source, given.tests, given.seconds):
                left.append(words)
                print("survived", words, flush=True)
    print(f"{given.module}: {len(chosen)} of {len(places)} changes tried, {len(left)} survived.")


if __name__ == "__main__":
    main()
