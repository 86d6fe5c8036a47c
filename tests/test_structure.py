"""The rooms of the house: who may import whom, and what a module must hold."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import trustgp
import trustgp_experiments

PACKAGES = [Path(package.__file__).parent for package in (trustgp, trustgp_experiments)]
# From the ground up: a room imports from rooms to its left only.
ROOMS = [
    "data", "math", "executors", "tangents", "experts", "likelihoods", "state", "metrics", "plots", "fitting",
    "model", "export", "monitor", "logs", "detection", "api", "sklearn", "__init__", "cli",
]  # fmt: skip
WINGS = ["datasets", "training", "peers", "core", "report", "studies", "demo", "commands"]
MOST = 19  # entries at the top of the library; `logs` and `sklearn` are doors to it
LONGEST_FILE, LONGEST_FUNCTION = 400, 60


def modules() -> dict[str, Path]:
    files = [(package.parent, file) for package in PACKAGES for file in sorted(package.rglob("*.py"))]
    return {
        ".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): file
        for source, file in files
    }


MODULES = modules()
TREES = {name: ast.parse(file.read_text()) for name, file in MODULES.items()}


def imports(name: str) -> list[tuple[str, bool]]:
    """(module of ours that is imported, whether inside a function); what is for types only does not count."""
    package = name.split(".") if MODULES[name].name == "__init__.py" else name.split(".")[:-1]
    found = []

    def visit(node: ast.AST, late: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.Import):
                found.extend((alias.name, late) for alias in child.names if alias.name in MODULES)
            if isinstance(child, ast.ImportFrom):
                base = package[: len(package) - child.level + 1] if child.level else []
                base = ".".join([*base, *([child.module] if child.module else [])])
                inner = [f"{base}.{alias.name}" for alias in child.names]
                found.extend((one if one in MODULES else base, late) for one in inner if base in MODULES)
            visit(child, late or isinstance(child, (ast.FunctionDef, ast.Lambda)))

    visit(TREES[name], False)
    return found


def room(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def test_the_library_has_few_rooms_and_each_is_known():
    assert {room(name) for name in MODULES if name.split(".")[0] == "trustgp"} == set(ROOMS)
    assert len(ROOMS) <= MOST
    assert {room(name) for name in MODULES if name.split(".")[0] != "trustgp"} == {*WINGS, "__init__"}


def test_imports_point_downward():
    order = {f"trustgp.{name}": place for place, name in enumerate(ROOMS)}
    order |= {
        f"trustgp_experiments.{name}": len(ROOMS) + place for place, name in enumerate(["__init__", *WINGS])
    }
    upward = [
        f"{name} imports {target}"
        for name in MODULES
        for target, late in imports(name)
        for mine, other in [tuple(order[f"{one.split('.')[0]}.{room(one)}"] for one in (name, target))]
        if other > mine
    ]
    assert upward == []


def test_no_module_imports_itself_by_way_of_others():
    ahead = {name: {target for target, _ in imports(name)} - {name} for name in MODULES}
    while free := [name for name, targets in ahead.items() if not targets & ahead.keys()]:
        ahead = {name: targets for name, targets in ahead.items() if name not in free}
    assert sorted(ahead) == []


def test_an_import_inside_a_function_is_of_an_optional_package_or_the_command_line():
    late = [f"{name} imports {target}" for name in MODULES for target, inside in imports(name) if inside]
    command_line = ("trustgp.cli ", "trustgp_experiments.commands ")
    assert [one for one in late if not one.startswith(command_line)] == []


def test_nothing_in_the_library_names_the_experiments():
    files = [file for file in PACKAGES[0].rglob("*") if file.suffix in (".py", ".pyi")]
    assert [file.name for file in files if "trustgp_experiments" in file.read_text()] == []


def test_math_imports_nothing_but_numbers_and_itself():
    allowed = {"__future__", "dataclasses", "torch", "collections", "typing", "math", "itertools"}
    allowed |= {"numpy", "scipy"}
    for name, tree in TREES.items():
        if name.startswith("trustgp.math"):
            nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
            outside = [node for node in nodes if not getattr(node, "level", 0)]
            tops = {a.name if isinstance(n, ast.Import) else n.module for n in outside for a in n.names}
            assert {top.split(".")[0] for top in tops} <= allowed, name


def test_no_public_class_name_stands_twice():
    names = [
        node.name
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_files_and_functions_are_short():
    long = [name for name, file in MODULES.items() if len(file.read_text().splitlines()) > LONGEST_FILE]
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                said = ast.get_docstring(node)
                lines = node.end_lineno - node.lineno + 1 - (said.count("\n") + 1 if said else 0)
                long += [f"{name}.{node.name}"] if lines > LONGEST_FUNCTION else []
    assert long == []


def test_every_module_and_every_public_thing_in_it_says_what_it_is():
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
            # KINDS lists the imported names once more, by what a file calls them; __getattr__ former names
            assert isinstance(node, ast.Assign), f"{name}: {ast.unparse(node)[:60]}"
            assert {target.id for target in node.targets} <= {"__all__", "KINDS", "__getattr__"}, name


PUBLIC = [
    "fit", "load", "paper", "UncertaintyModel", "Prediction", "ClassPrediction", "DetectionModel",
    "Detections", "ConformalIntervals", "ConformalSets", "compress", "BudgetError",
    "export_onnx", "compile", "Monitor", "Verdict", "evaluate", "Evaluation", "ClassEvaluation",
    "DetectionEvaluation", "metrics",
    "plots", "Regression", "Classification", "Detection", "LayerFactors", "JacobianRows", "Sketch",
    "Patchwork", "Division", "Witness", "Threads", "Rows", "Things", "ArtifactError", "ExportError",
    "FactorisationError",
]  # fmt: skip


def test_the_stub_names_what_can_be_asked_for():
    tree = ast.parse((PACKAGES[0] / "__init__.pyi").read_text())
    named = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert named == {*trustgp.__all__, *trustgp._ROOMS}
    assert set(trustgp.__all__) < set(dir(trustgp))


def test_every_public_name_stays_and_has_a_docstring():
    assert sorted(trustgp.__all__) == sorted(PUBLIC)
    for name in trustgp.__all__:
        said = inspect.getdoc(getattr(trustgp, name))
        assert said, name
        assert "Built-in" not in said, name


def test_documented_paths_stay():
    names = ("metrics", "plots", "executors", "export", "logs", "sklearn")
    script = f"import trustgp\nfor name in {names}: getattr(trustgp, name)"
    subprocess.run([sys.executable, "-c", script], check=True)
    script = "import trustgp.metrics, trustgp.plots, trustgp.executors, trustgp.export, trustgp.logs"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("name", ["UncertaintyModel", "Prediction", "DetectionModel", "Detections"])
def test_every_public_method_of_what_users_hold_has_a_docstring(name):
    silent = []
    for member, value in vars(getattr(trustgp, name)).items():
        inner = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if not member.startswith("_") and (callable(inner) or isinstance(inner, property)):
            silent += [] if inspect.getdoc(inner) else [member]
    assert [member for member in silent if member != "device"] == []


HEAVY = {"sklearn", "scipy", "matplotlib", "transformers", "trustgp_experiments", "ray", "pinocchio", "PIL"}
HEAVY |= {"rosbags", "mcap", "onnx", "onnxruntime"}


def test_importing_changes_no_global_setting_and_brings_no_optional_package():
    script = (
        "import sys, torch\n"
        "before = torch.get_num_threads(), torch.get_default_dtype(), torch.initial_seed()\n"
        "import trustgp\n"
        "[getattr(trustgp, name) for name in trustgp.__all__]\n"
        "assert (torch.get_num_threads(), torch.get_default_dtype(), torch.initial_seed()) == before\n"
        f"print(sorted({HEAVY} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
