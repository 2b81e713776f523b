"""The house stands as designed: imports follow the arrows, and no algorithm is known by name to code.

Both read syntax trees, so that imports inside functions count and comments do not.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# What each layer may import of ours; `fsm_spec` is the language core, without the folders mapped below it.
ARROWS = {
    "fsm_spec": {"specs"},
    "specs": set(),
    "kernels": set(),
    "simulator": {"fsm_spec"},
    "executor": {"fsm_spec", "kernels"},
}
# Packages of others that a layer lives without: the base install has no torch, a server no simulation.
DEVICE_LIBRARIES = {"torch", "triton", "flashinfer"}
BANNED = {
    "fsm_spec": DEVICE_LIBRARIES | {"simpy"},
    "specs": DEVICE_LIBRARIES | {"simpy"},
    "kernels": {"simpy"},
    "simulator": DEVICE_LIBRARIES,
    "executor": {"simpy"},
}
# Names out of published config.json files stand in one table and nowhere else.
NAME_TABLE = "executor/models/architectures.py"


def layer_of(module: str) -> str | None:
    """Return our layer that a dotted module name belongs to, None for a package of others."""
    first, _, rest = module.partition(".")
    if first != "fsm_spec":
        return None
    second = rest.partition(".")[0]
    return second if second in ARROWS else "fsm_spec"


def module_name(path: str) -> str:
    """Return the import name of a source file: `fsm_spec.kernels.a` of `kernels/a.py`."""
    parts = Path(path).with_suffix("").parts
    if parts[0] != "fsm_spec":
        parts = ("fsm_spec", *parts)
    return ".".join(parts)


def imported_modules(tree: ast.AST, module: str) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of all that a module imports, `from a import b` as `a.b`, none relative."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            start = ""
            if node.level:
                # `.` is the package of the module; a package's own file is the module `package.__init__`.
                start = ".".join(module.split(".")[: -node.level])
            source = ".".join(part for part in (start, node.module) if part)
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0]
            if called in {"import_module", "__import__"} and isinstance(name, ast.Constant):
                yield node.lineno, str(name.value)


def wrong_imports(path: str, source: str) -> list[str]:
    """Return one line for each import of a source file that goes against the arrows."""
    module = module_name(path)
    own = layer_of(module)
    assert own is not None
    wrong = []
    for line, name in imported_modules(ast.parse(source), module):
        target = layer_of(name)
        first = name.partition(".")[0]
        if first in ARROWS and first != "fsm_spec":
            wrong.append(f"{path}:{line}: {first} is imported by its folder's name, not as fsm_spec.{first}")
        elif target is not None and target != own and target not in ARROWS[own]:
            wrong.append(f"{path}:{line}: {own} imports {target}")
        elif first in BANNED[own]:
            wrong.append(f"{path}:{line}: {own} imports {first}")
    return wrong


def same_word(text: str) -> str:
    """Return a name without the marks of its spelling, so that `UnoLinear` is `uno_linear`."""
    return text.replace("_", "").casefold()


def operator_sources(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield what entries of the registry of operators give as their source: it may cite the algorithm it is from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Operator":
            yield from node.args[2:3]


def names_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of identifiers, module names and words of string constants.

    Docstrings are excepted, and what an operator names as its source.
    """
    # A string that stands alone as a statement does nothing: it documents a module, class or field.
    documentation = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    } | {id(source) for source in operator_sources(tree)}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            for word in re.findall(r"\w+", node.value):
                yield line, word
        for field in ("id", "attr", "name", "arg", "asname", "module", "rest", "kwd_attrs", "names"):
            value = getattr(node, field, None)
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str):
                    for part in text.split("."):
                        yield line, part


def known_algorithms(path: str, source: str, algorithms: set[str]) -> list[str]:
    """Return one line for each place where a source file names one of the algorithms."""
    spelled = {same_word(algorithm): algorithm for algorithm in algorithms}
    found = {(0, part) for part in Path(path).with_suffix("").parts if same_word(part) in spelled}
    found |= {(line, name) for line, name in names_in(ast.parse(source)) if same_word(name) in spelled}
    return [
        f"{path}:{line}: {name} names the algorithm {spelled[same_word(name)]}"
        for line, name in sorted(found)
    ]


def sources(project: Path) -> list[tuple[str, str]]:
    """Return (path from the root, text) of all source files of the layers."""
    return [
        (str(path.relative_to(project)), path.read_text(encoding="utf-8"))
        for layer in ARROWS
        for path in sorted((project / layer).rglob("*.py"))
    ]


def algorithms_of(project: Path) -> set[str]:
    """Return the names of the shipped algorithms without `ar`: all others are compared with it."""
    return {path.stem for path in (project / "specs").glob("*.yaml")} - {"ar"}


def test_imports_follow_the_arrows(project: Path) -> None:
    """A wrong arrow ties the simulator to torch, or the language to one engine."""
    files = sources(project)
    assert len(files) >= len(ARROWS)
    assert [] == [line for path, source in files for line in wrong_imports(path, source)]


def test_no_algorithm_is_known_by_name(project: Path) -> None:
    """Code that knows an algorithm by name can treat it specially, and the table is not the truth then."""
    algorithms = algorithms_of(project)
    assert algorithms, "specs/ holds no algorithm besides ar"
    found = [
        line
        for path, source in sources(project)
        if path != NAME_TABLE
        for line in known_algorithms(path, source, algorithms)
    ]
    assert [] == found


def test_language_core_runs_without_the_layers_above(project: Path) -> None:
    """A library that is imported by way of another one would make the base install need torch after all."""
    modules = [
        module_name(path).removesuffix(".__init__")
        for path, _ in sources(project)
        if path.startswith("fsm_spec/") and "__main__" not in path
    ]
    program = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print(sorted({DEVICE_LIBRARIES | {'simpy'}!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ("[]\n", "") == (done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("fsm_spec/a.py", "import torch.nn", ["fsm_spec/a.py:1: fsm_spec imports torch"]),
        ("fsm_spec/a.py", "def f():\n    import simpy", ["fsm_spec/a.py:2: fsm_spec imports simpy"]),
        ("fsm_spec/a.py", "from .executor import pool", ["fsm_spec/a.py:1: fsm_spec imports executor"]),
        ("fsm_spec/a.py", "from . import executor", ["fsm_spec/a.py:1: fsm_spec imports executor"]),
        (
            "fsm_spec/__init__.py",
            "from .kernels import x",
            ["fsm_spec/__init__.py:1: fsm_spec imports kernels"],
        ),
        ("kernels/a.py", "import fsm_spec", ["kernels/a.py:1: kernels imports fsm_spec"]),
        ("specs/__init__.py", "from ..errors import x", ["specs/__init__.py:1: specs imports fsm_spec"]),
        (
            "simulator/a.py",
            "from fsm_spec import executor as e, step",
            ["simulator/a.py:1: simulator imports executor"],
        ),
        (
            "executor/models/a.py",
            "from ...simulator.cost import price",
            ["executor/models/a.py:1: executor imports simulator"],
        ),
        (
            "executor/a.py",
            "m = importlib.import_module('fsm_spec.simulator')",
            ["executor/a.py:1: executor imports simulator"],
        ),
        (
            "executor/a.py",
            "import kernels.paged",
            ["executor/a.py:1: kernels is imported by its folder's name, not as fsm_spec.kernels"],
        ),
        ("executor/models/a.py", "from ..pool import Pool\nfrom ...kernels import x\nimport torch", []),
        ("simulator/a.py", "import simpy\nfrom fsm_spec.step import step\nfrom .cost import price", []),
    ],
)
def test_checker_sees_wrong_arrows(path: str, source: str, expected: list[str]) -> None:
    """A checker that cannot fail would pass any house."""
    assert expected == wrong_imports(path, source)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("if spec.name == 'toy_spec': pass", ["toy_spec"]),
        ("path = 'specs/toy_spec.yaml'", ["toy_spec"]),
        ("text = f'{x} toy_spec'", ["toy_spec"]),
        ("class ToySpec: pass", ["ToySpec"]),
        ("def toy_spec(): pass", ["toy_spec"]),
        ("x.toy_spec(toy_spec=1)", ["toy_spec", "toy_spec"]),
        ("from .toy_spec import run", ["toy_spec"]),
        ("import a.toy_spec as b", ["toy_spec"]),
        ("def f(toy_spec): pass", ["toy_spec"]),
        ("def f():\n    global toy_spec", ["toy_spec"]),
        ("Operator('key', 'about', 'toy_spec', ())", []),
        ("Operator('key', 'about toy_spec', 'source', ())", ["toy_spec"]),
        ("Other('key', 'about', 'toy_spec')", ["toy_spec"]),
        ("match x:\n    case {'a': toy_spec}: pass", ["toy_spec"]),
        ('"""toy_spec in a docstring."""\nx: int\n"""toy_spec of a field."""\n# toy_spec', []),
        ("toy_special = 'toy special, toy_specs'", []),
    ],
)
def test_checker_sees_names_of_algorithms(source: str, names: list[str]) -> None:
    """A checker that overlooks one way to write a name would let it in that way."""
    found = known_algorithms("executor/a.py", source, {"toy_spec"})
    assert len(set(names)) == len(found)
    for line in found:
        assert any(f": {name} names the algorithm toy_spec" in line for name in names)


def test_checker_sees_names_of_files() -> None:
    """A module of an algorithm's own would be code of an algorithm's own."""
    assert ["kernels/toy_spec.py:0: toy_spec names the algorithm toy_spec"] == known_algorithms(
        "kernels/toy_spec.py", "", {"toy_spec"}
    )
