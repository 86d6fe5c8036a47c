"""The package layout: who may import whom, and what a module must have."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import trustgp
import trustgp_experiments

PACKAGES = [Path(package.__file__).parent for package in (trustgp, trustgp_experiments)]
# Each imports from those before it only.
PARTS = [
    "data", "math", "executors", "tangents", "experts", "likelihoods", "state", "metrics", "plots", "fitting",
    "model", "export", "monitor", "logs", "detection", "api", "sklearn", "__init__", "cli",
]  # fmt: skip
EXPERIMENTS = ["datasets", "training", "peers", "core", "report", "studies", "demo", "commands"]
MAX_PARTS, MAX_FILE_LINES, MAX_FUNCTION_LINES = 19, 400, 60


MODULES = {
    ".".join(file.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): file
    for package in PACKAGES
    for file in sorted(package.rglob("*.py"))
}
TREES = {name: ast.parse(file.read_text()) for name, file in MODULES.items()}


@cache
def imports(name: str) -> list[tuple[str, bool]]:
    """(imported module of ours, whether inside a function), without imports for type checkers."""
    package = name.split(".") if MODULES[name].name == "__init__.py" else name.split(".")[:-1]
    targets = []

    def visit(node: ast.AST, late: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.Import):
                targets.extend((alias.name, late) for alias in child.names if alias.name in MODULES)
            if isinstance(child, ast.ImportFrom):
                base = package[: len(package) - child.level + 1] if child.level else []
                base = ".".join([*base, *([child.module] if child.module else [])])
                inner = [f"{base}.{alias.name}" for alias in child.names]
                targets.extend((one if one in MODULES else base, late) for one in inner if base in MODULES)
            visit(child, late or isinstance(child, (ast.FunctionDef, ast.Lambda)))

    visit(TREES[name], False)
    return targets


def part(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def test_the_library_has_few_parts_and_each_is_listed():
    assert {part(name) for name in MODULES if name.split(".")[0] == "trustgp"} == set(PARTS)
    assert len(PARTS) <= MAX_PARTS
    assert {part(name) for name in MODULES if name.split(".")[0] != "trustgp"} == {*EXPERIMENTS, "__init__"}


def test_imports_point_downward():
    names = [f"trustgp.{name}" for name in PARTS]
    names += [f"trustgp_experiments.{name}" for name in ("__init__", *EXPERIMENTS)]

    def order(name: str) -> int:
        return names.index(f"{name.split('.')[0]}.{part(name)}")

    pairs = [(name, target) for name in MODULES for target, _ in imports(name)]
    assert [pair for pair in pairs if order(pair[1]) > order(pair[0])] == []


def test_no_module_imports_itself_by_way_of_others():
    ahead = {name: {target for target, _ in imports(name)} - {name} for name in MODULES}
    while free := [name for name, targets in ahead.items() if not targets & ahead.keys()]:
        ahead = {name: targets for name, targets in ahead.items() if name not in free}
    assert sorted(ahead) == []


def test_an_import_inside_a_function_is_of_an_optional_package_or_the_command_line():
    late = [f"{name} imports {target}" for name in MODULES for target, inside in imports(name) if inside]
    # Triton, which the kernel needs where it is defined, comes with torch for CUDA alone
    allowed = (
        "trustgp.cli ",
        "trustgp_experiments.commands ",
        "trustgp.tangents.chain imports trustgp.tangents.product_sums",
    )
    assert [one for one in late if not one.startswith(allowed)] == []


def test_nothing_in_the_library_names_the_experiments():
    files = [file for file in PACKAGES[0].rglob("*") if file.suffix in (".py", ".pyi")]
    assert [file.name for file in files if "trustgp_experiments" in file.read_text()] == []


def test_math_imports_nothing_but_numbers_and_itself():
    allowed = {
        "__future__",
        "dataclasses",
        "torch",
        "collections",
        "typing",
        "typing_extensions",
        "math",
        "itertools",
        "numpy",
        "scipy",
    }
    for name, tree in TREES.items():
        if name.startswith("trustgp.math"):
            nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
            outside = [node for node in nodes if not getattr(node, "level", 0)]
            tops = {a.name if isinstance(n, ast.Import) else n.module for n in outside for a in n.names}
            assert {top.split(".")[0] for top in tops} <= allowed, name


def test_no_two_public_classes_have_one_name():
    nodes = [node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    counts = Counter(node.name for node in nodes if not node.name.startswith("_"))
    assert [name for name, count in counts.items() if count > 1] == []


def test_files_and_functions_are_short():
    long = [name for name, file in MODULES.items() if len(file.read_text().splitlines()) > MAX_FILE_LINES]
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node)
                lines = node.end_lineno - node.lineno + 1 - (text.count("\n") + 1 if text else 0)
                long += [f"{name}.{node.name}"] if lines > MAX_FUNCTION_LINES else []
    assert long == []


# Former names of the library, each with a plainer one in its place.
WORDS = """
    found known said held told heard home mine near apart some among places MOST LEAST WIDE FULL
    roughly rest by_hand twin tell_outputs find_blends find_judge _tell_of_memory BY_HEART
    keep_within choose_within _nothing _extended _solved_again _recall give_back _told
    Selection Columns by_columns leading Hidden about _speaking Rare reached grown
    FamiliarScores alarm predict_alike Turned stands only _beside_one
    Things SeenSums Readout in_other_light alone work_ahead say_plan _ways doubt
"""


def bound_names(tree: ast.AST) -> Iterator[str]:
    """Names that a module defines, assigns, imports or takes as an argument."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield node.asname or node.name


def test_old_names_do_not_come_back_as_identifiers():
    library = [tree for name, tree in TREES.items() if name.split(".")[0] == "trustgp"]
    counts = Counter(name for tree in library for name in bound_names(tree))
    assert {word: counts[word] for word in WORDS.split() if counts[word]} == {}


def test_every_module_and_its_public_names_have_docstrings():
    silent = [name for name, tree in TREES.items() if not ast.get_docstring(tree)]
    for name, tree in TREES.items():
        for node in tree.body:
            named = isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")
            if named and not ast.get_docstring(node):
                silent.append(f"{name}.{node.name}")
    assert silent == []


def test_an_init_holds_imports_and_public_names_only():
    for name, file in MODULES.items():
        if file.name != "__init__.py" or name == "trustgp":  # that one is lazy: see its own test
            continue
        for node in TREES[name].body:
            if isinstance(node, (ast.Import, ast.ImportFrom)) or node is TREES[name].body[0]:
                continue
            # KINDS has the imported classes by their names in files
            assert isinstance(node, ast.Assign), f"{name}: {ast.unparse(node)[:60]}"
            assert {target.id for target in node.targets} <= {"__all__", "KINDS"}, name


PUBLIC = [
    "fit", "load", "paper", "UncertaintyModel", "Prediction", "ClassPrediction", "DetectionModel",
    "DenseModel", "DensePrediction",
    "Detections", "ConformalIntervals", "ConformalSets", "JointPrediction", "compress", "BudgetError",
    "export_onnx", "compile", "Monitor", "Verdict", "evaluate", "Evaluation", "ClassEvaluation",
    "LabelPrediction", "LabelEvaluation", "MultiLabel",
    "DetectionEvaluation", "metrics",
    "plots", "Regression", "Classification", "Detection", "LayerFactors", "JacobianRows", "Sketch",
    "Patchwork", "Division", "Witness", "Threads", "Rows", "BoxTargets", "ArtifactError", "ExportError",
    "FactorisationError",
]  # fmt: skip


def test_every_public_name_stays_is_in_the_stub_and_has_a_docstring():
    tree = ast.parse((PACKAGES[0] / "__init__.pyi").read_text())
    named = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert named == {*trustgp.__all__, *trustgp._SUBPACKAGES}
    assert set(trustgp.__all__) < set(dir(trustgp))
    assert sorted(trustgp.__all__) == sorted(PUBLIC)
    texts = {name: inspect.getdoc(getattr(trustgp, name)) or "" for name in trustgp.__all__}
    assert [name for name, text in texts.items() if not text or "Built-in" in text] == []


def test_every_public_method_has_a_docstring():
    silent = []
    for name in (
        "UncertaintyModel",
        "DenseModel",
        "Prediction",
        "DensePrediction",
        "DetectionModel",
        "Detections",
    ):
        for member, value in vars(getattr(trustgp, name)).items():
            inner = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            if not member.startswith("_") and (callable(inner) or isinstance(inner, property)):
                silent += [] if inspect.getdoc(inner) else [member]
    assert set(silent) <= {"device"}


HEAVY = {
    "sklearn", "scipy", "matplotlib", "transformers", "trustgp_experiments", "ray", "pinocchio", "PIL",
    "rosbags", "mcap", "onnx", "onnxruntime",
}  # fmt: skip


def test_importing_changes_no_setting_brings_no_optional_package_and_documented_paths_stay():
    script = (
        "import sys, torch\n"
        "before = torch.get_num_threads(), torch.get_default_dtype(), torch.initial_seed()\n"
        "import trustgp\n"
        "[getattr(trustgp, name) for name in trustgp.__all__]\n"
        "assert (torch.get_num_threads(), torch.get_default_dtype(), torch.initial_seed()) == before\n"
        f"print(sorted({HEAVY} & sys.modules.keys()))\n"
        "trustgp.metrics, trustgp.plots, trustgp.executors, trustgp.export, trustgp.logs, trustgp.sklearn\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
