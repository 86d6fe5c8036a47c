"""The rooms of the house: who may import whom, and what a module must hold."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import trustgp

ROOT = Path(trustgp.__file__).parent

# From the ground up, DESIGN section 3. A module imports from its own line or from lines above it only;
# within a line, from modules further left.
ROOMS = [
    [
        "math.evidence",
        "math.crossentropy",
        "math.temperature",
        "math.ranks",
        "math.groups",
        "math.posterior",
        "math.calibration",
        "math.selection",
        "math.kernel_pca",
        "math.stationary",
        "math.landmarks",
        "math.compression",
        "math",
    ],
    ["spooling", "data", "progress", "halving", "safefile", "fingerprint"],
    [
        "tangents.blocks",
        "tangents.recurrent",
        "tangents.unfused",
        "tangents.copying",
        "tangents.network",
        "tangents.checking",
        "tangents.picking",
        "tangents.dense",
        "tangents.recorder",
        "tangents.base",
        "tangents.prune",
        "tangents.factors",
        "tangents.half",
        "tangents.collecting",
        "tangents.layers",
        "tangents.passes",
        "tangents.gradients",
        "tangents.rows",
        "tangents.hashing",
        "tangents.sketch",
        "tangents",
    ],
    [
        "executors.base",
        "executors.packing",
        "executors.streams",
        "executors.threads",
        "executors.processes",
        "executors.ray",
        "executors",
    ],
    [
        "gating",
        "patchwork",
        "posteriors",
        "equations",
        "experts",
        "mixture",
        "one_pass",
        "solving",
        "priors",
        "witness",
        "witnessing",
        "shrinking",
        "budget",
        "plan",
    ],
    [
        "prediction",
        "class_prediction",
        "likelihoods.base",
        "likelihoods.regression",
        "likelihoods.classification",
        "likelihoods.finding",
        "likelihoods",
    ],
    ["novelty", "model", "conformal", "answers", "limits", "frames", "rolling", "monitor"],
    ["state", "witness_state", "checkpoint", "artifact"],
    [
        "preparing",
        "settling",
        "holding",
        "origins",
        "calibrating",
        "ending",
        "compressing",
        "fit",
        "updating",
    ],
    [
        "metrics",
        "scorecard",
        "evaluation",
        "class_evaluation",
        "evaluating",
        "export",
        "detection",
        "plots",
        "inspecting",
        "trials",
        "tuning",
        "logs",
        "",
    ],
    ["datasets", "baselines", "studies"],
    ["demo", "cli", "__main__"],
]
ORDER = {name: (floor, place) for floor, row in enumerate(ROOMS) for place, name in enumerate(row)}
WING = ("datasets", "baselines", "studies")  # nothing else imports these, but for the command line
FRONT = ("cli", "demo", "__main__")
PACKAGES_OF_ONE_ROOM = (*WING, "detection", "export", "logs", "plots", "metrics", *FRONT)

# Imports inside a function, where the method of a class offers what stands above it.
LAZY = {
    ("model", "updating"),
    ("model", "artifact"),
    ("model", "conformal"),
    ("fit", "tuning"),
    ("fit", "detection"),
    ("artifact", "detection"),
    ("checkpoint", "model"),
    ("artifact", ""),
    ("checkpoint", ""),
    ("export", ""),
}


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        found[".".join(parts)] = path
    return found


MODULES = modules()


def room(name: str) -> str:
    """The entry of the table that a module belongs to."""
    top = name.split(".")[0]
    return top if top in PACKAGES_OF_ONE_ROOM else name


def imports(name: str, path: Path) -> list[tuple[str, bool]]:
    """(module of trustgp that is imported, whether inside a function or for types only)."""
    tree = ast.parse(path.read_text())
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    package = [part for part in package if part]
    found = []

    def visit(node: ast.AST, lazy: bool) -> None:
        for child in ast.iter_child_nodes(node):
            inner = lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            inner = inner or (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING")
            if isinstance(child, ast.Import):
                for alias in child.names:
                    if alias.name.split(".")[0] == "trustgp":
                        found.append((alias.name.partition(".")[2], lazy))
            elif isinstance(child, ast.ImportFrom):
                found.extend((target, lazy) for target in targets(child, package))
            visit(child, inner)

    visit(tree, False)
    return found


def targets(node: ast.ImportFrom, package: list[str]) -> list[str]:
    if node.level == 0:
        if (node.module or "").split(".")[0] != "trustgp":
            return []
        base = node.module.split(".")[1:]
    else:
        base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
    whole = ".".join(base)
    named = [".".join([*base, alias.name]) for alias in node.names]
    return [inner if inner in MODULES else whole for inner in named]


@pytest.mark.parametrize("name", MODULES)
def test_every_module_has_a_room(name):
    assert room(name) in ORDER, f"say in ROOMS where {name} stands"


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_downward_only(name):
    mine = room(name)
    for target, lazy in imports(name, MODULES[name]):
        other = room(target)
        if other == mine or (lazy and (mine, other) in LAZY):
            continue
        if lazy and mine in FRONT:
            continue
        assert ORDER[other] < ORDER[mine], f"{name} imports {target}, which stands above it"


@pytest.mark.parametrize("name", [name for name in MODULES if room(name) not in (*WING, *FRONT)])
def test_nothing_imports_the_wing_but_the_wing_and_the_command_line(name):
    assert [target for target, _ in imports(name, MODULES[name]) if room(target) in WING] == []


def test_math_imports_nothing_but_numbers_and_itself():
    for name, path in MODULES.items():
        if name.split(".")[0] != "math":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name for alias in node.names} <= {"math", "numpy", "torch"}
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                assert node.module.split(".")[0] in {
                    "__future__",
                    "dataclasses",
                    "torch",
                    "collections",
                    "typing",
                }


def test_the_table_of_lazy_imports_holds_no_more_than_there_are():
    there = set()
    for name, path in MODULES.items():
        there |= {(room(name), room(target)) for target, lazy in imports(name, path) if lazy}
    assert there >= LAZY


def has_docstring(thing) -> bool:
    return bool(inspect.getdoc(thing))


@pytest.mark.parametrize("name", trustgp.__all__)
def test_every_public_name_has_a_docstring(name):
    thing = getattr(trustgp, name)
    assert has_docstring(thing)
    assert "Built-in" not in inspect.getdoc(thing)


@pytest.mark.parametrize("name", ["UncertaintyModel", "Prediction", "DetectionModel", "Detections"])
def test_every_public_method_of_what_users_hold_has_a_docstring(name):
    kind = getattr(trustgp, name)
    missing = [
        member
        for member, value in vars(kind).items()
        if not member.startswith("_")
        and (callable(value) or isinstance(value, (property, staticmethod, classmethod)))
        and not has_docstring(value.__func__ if isinstance(value, (staticmethod, classmethod)) else value)
    ]
    assert [m for m in missing if m != "device"] == []


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_answers(name):
    assert ast.get_docstring(ast.parse(MODULES[name].read_text()))


def public_functions(path: Path):
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith("_"):
            continue
        if "overload" not in map(ast.unparse, node.decorator_list):  # the last of them is the function
            yield node


@pytest.mark.parametrize("name", MODULES)
def test_every_public_function_and_class_of_a_module_has_a_docstring(name):
    missing = [n.name for n in public_functions(MODULES[name]) if not ast.get_docstring(n)]
    allowed = {"fit": ["check_groups"]}  # its error messages say it all
    assert missing in ([], allowed.get(name, []))


@pytest.mark.parametrize("name", [name for name, path in MODULES.items() if path.name == "__init__.py"])
def test_init_holds_imports_and_public_names_only(name):
    for node in ast.parse(MODULES[name].read_text()).body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # the docstring
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        # KINDS lists the imported names once more, by what a file calls them
        assert isinstance(node, ast.Assign), ast.dump(node)
        assert {target.id for target in node.targets} <= {"__all__", "__version__", "KINDS"}


def test_all_names_exist_and_none_stands_twice():
    assert len(set(trustgp.__all__)) == len(trustgp.__all__)
    assert all(hasattr(trustgp, name) for name in trustgp.__all__)


def test_importing_changes_no_global_setting_and_brings_no_optional_package():
    script = (
        "import sys, torch\n"
        "before = torch.get_num_threads(), torch.get_default_dtype(), torch.initial_seed()\n"
        "import trustgp\n"
        "assert (torch.get_num_threads(), torch.get_default_dtype(), torch.initial_seed()) == before\n"
        "heavy = {'ray', 'matplotlib', 'pinocchio', 'transformers', 'rosbags', 'mcap'}\n"
        "assert not heavy & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("name", MODULES)
def test_no_module_is_longer_than_four_hundred_lines(name):
    assert len(MODULES[name].read_text().splitlines()) <= 400
