"""Mutation tests: whether a test fails after a small change to a module; see experiments/docs.

python experiments/benchmarks/mutation.py math/leave_out data/split    # these modules; without names, all
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

ROOT = Path(__file__).parents[2]
# Tests of each module: those about it, then, for changes that pass these, others that should also fail. The
# names are of files below tests/, without "test_" and ".py"; numbers begin those below tests/reliability.
TESTS: dict[str, tuple[str, str]] = {
    "data/atomic_file": ("15", "24"),
    "data/chunking": ("data/chunking", "data/rows fitting/plan"),
    "data/escapes": ("26", ""),
    "data/fingerprint": ("data/fingerprint 13", "20"),
    "data/frames": ("data/frames", "31"),
    "data/quantities": ("data/quantities", ""),
    "data/rows": ("data/rows data/disk_buffer", "data/frames 31"),
    "data/split": ("data/holdout", ""),
    "data/tables": ("likelihoods/batch", "model"),
    "data/tensor_file": ("04 19", "03 26"),
    "data/torch_modes": ("31", ""),
    "data/trees": ("data/rows data/frames", "31"),
    "data/user_warnings": ("data/user_warnings", "31"),
    "math/calibration": ("math/calibration math/quantiles_and_groups", "light_reference 23"),
    "math/calibration_fit": ("math/calibration math/quantiles_and_groups", "10_likeliest math/predictive"),
    "math/cross_entropy": ("math/cross_entropy math/temperature", "likelihoods/classification"),
    "math/evidence": ("math/evidence math/pooled_evidence math/stationary", "fitting/solve"),
    "math/leave_out": ("math/leave_out", ""),
    "math/low_rank": ("math/low_rank math/kernel_pca math/selection", "experts/expert fitting/solve"),
    "math/posterior": ("math/posterior", ""),
    "math/predictive": ("math/predictive", "likelihoods/prediction"),
    "math/search": ("math/search", ""),
    "state/conformal": ("state/conformal", "22"),
    "state/expert_tensors": ("state/many_kernels", "03"),
    "state/model_file": ("04 05", "03 20 model"),
    "state/model_state": ("state/forward state/many_kernels model", "09 light_reference state/conformal"),
    "state/summary": ("cli", "26"),
}
READ = (scipy.optimize, scipy.stats, torch)  # imported once, by this process
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


def changes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Places that can be changed: the number of the node, and the kind of change."""
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    raised = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Raise) for part in ast.walk(node)}
    kinds = [getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns")]
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
    """Source text of the module with one change, and a description of the change."""
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
    """Whether all tests pass with the package in this folder; a timeout counts as a failure.

    They run in a fork of this process, which has imported torch: that takes longer than most tests.
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


def files_of(test: str) -> list[str]:
    """Test files of a name in `TESTS`."""
    name = Path(f"reliability/{test}_*" if test[0].isdigit() else test)
    return sorted(map(str, ROOT.glob(f"tests/{name.with_name(f'test_{name.name}.py')}")))


def try_module(name: str, *, most: int, seed: int, seconds: int) -> None:
    """Print the changes that no test detected, and how many there were."""
    module = Path("trustgp") / f"{name}.py"
    tree = ast.parse((ROOT / "src" / module).read_text())
    places = list(changes(tree))
    chosen = random.Random(seed).sample(places, min(most, len(places)))
    own, others = ([file for test in group.split() for file in files_of(test)] for group in TESTS[name])
    left = 0
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "weights"))
        if not survives(source, own + others, 10 * seconds):
            raise SystemExit(f"{name}: the tests fail without any change.")
        for number, _ in sorted(chosen):
            text, words = changed(tree, number)
            (source / module).write_text(text)
            if survives(source, own, seconds) and not (others and not survives(source, others, seconds)):
                left += 1
                print("survived", words, flush=True)
    print(f"{name}: {len(chosen)} of {len(places)} changes tried, {left} survived.", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", choices=[*TESTS, []], metavar="module", help="as data/rows")
    parser.add_argument("--most", type=int, default=20, help="changes of each, chosen at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=300, help="for one run of the tests")
    given = parser.parse_args()
    torch.set_num_threads(1)  # a fork has no others
    sys.dont_write_bytecode = True
    for name in given.modules or TESTS:
        try_module(name, most=given.most, seed=given.seed, seconds=given.seconds)


if __name__ == "__main__":
    main()
