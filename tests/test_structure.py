"""Dependencies between packages and folders, imports of torch, and sizes of files."""

import ast
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "chat": {"errors", "tokenizer", "weights", "engine.api"},
    "engine": {"errors", "cuda", "weights", "tokenizer"},
    "cuda": {"errors"},
    "tokenizer": {"errors"},
    "weights": {"errors"},
    "errors": set(),
}
TORCH_FREE = ("chat", "tokenizer", "weights", "errors", "engine/api")
TORCH_FREE_TO_IMPORT = (
    "engine.api.client",
    "engine.api.remote",
    "engine.api.protocol",
    "engine.api.params",
    "engine.server.standalone",
    "tokenizer",
    "weights.store",
    "weights.convert.convert",
    "weights.download",
    "weights.model.directory",
    "chat.cli",
)
# The imports that close a circle of files, and may only become fewer: (file, what it imports).
CLOSES_CIRCLE: set[tuple[str, str]] = set()
MAX_LINES = 420
_STRENGTH = ("", "types only", "lazy", "top")


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def module_name(file: Path) -> str:
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


@cache
def modules() -> frozenset[str]:
    return frozenset(module_name(file) for package in MAY_IMPORT for file in sources(package))


class _Imports(ast.NodeVisitor):
    """Collects the names that a file imports, with when: at its top, lazily or for types only."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self._when = "top"

    def visit_Import(self, node: ast.Import) -> None:
        self.found += [(alias.name, self._when) for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.level == 0, f"relative import of {node.module}"
        self.found += [(f"{node.module}.{alias.name}", self._when) for alias in node.names]

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._visit_all(node.body, "lazy")

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_If(self, node: ast.If) -> None:
        is_for_types = ast.unparse(node.test) == "TYPE_CHECKING"
        self._visit_all(node.body, "types only" if is_for_types else self._when)
        self._visit_all(node.orelse, self._when)

    def _visit_all(self, nodes: list[ast.stmt], when: str) -> None:
        before, self._when = self._when, when
        for node in nodes:
            self.visit(node)
        self._when = before


@cache
def imports(file: Path) -> list[tuple[str, str]]:
    """Return the names that a file imports, with when: "top", "lazy" or "types only"."""
    visitor = _Imports()
    visitor.visit(ast.parse(file.read_text()))
    return visitor.found


def imported_modules(file: Path) -> dict[str, str]:
    """Return the modules of this project that a file imports, without `swiftchat.`, with when.

    "top" is stronger than "lazy", and that than "types only".
    """
    found: dict[str, str] = {}
    for name, when in imports(file):
        if name.startswith("swiftchat."):
            inner = name.removeprefix("swiftchat.")
            while inner not in modules() and "." in inner:
                inner = inner.rpartition(".")[0]
            found[inner] = max(found.get(inner, ""), when, key=_STRENGTH.index)
    return found


def folder_of(module: str) -> str:
    """Return the folder of a module, for example `engine.model`."""
    is_folder = (ROOT / module.replace(".", "/")).is_dir()
    return module if is_folder else module.rpartition(".")[0]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_import_only_allowed_packages(package: str) -> None:
    allowed = MAY_IMPORT[package] | {package}
    for file in sources(package):
        for name in imported_modules(file):
            assert any(name == a or name.startswith(f"{a}.") for a in allowed), (
                f"{file.relative_to(ROOT)} imports swiftchat.{name}"
            )


def cycle_of(graph: dict[str, set[str]]) -> list[str]:
    """Return a cycle, its first node also at the end; empty: there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_imports_between_folders_form_no_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for package in MAY_IMPORT:
        for file in sources(package):
            folder = folder_of(module_name(file))
            targets = {folder_of(name) for name in imported_modules(file)}
            graph.setdefault(folder, set()).update(targets - {folder})
    cycle = cycle_of(graph)
    assert not cycle, f"imports between folders form a cycle: {' -> '.join(cycle)}"


def test_imports_between_files_form_no_cycle_but_known_ones() -> None:
    """Lazy imports and those for types count too: who reads one file must read the others."""
    found = {
        module_name(file): imported_modules(file)
        for package in MAY_IMPORT
        for file in sources(package)
    }
    graph = {
        name: {target for target in targets if (name, target) not in CLOSES_CIRCLE}
        for name, targets in found.items()
    }
    cycle = cycle_of(graph)
    shown = [f"{a} -> {b} ({found[a][b]})" for a, b in pairwise(cycle)]
    assert not cycle, "imports between files form a cycle:\n" + "\n".join(shown)
    for name, target in CLOSES_CIRCLE:
        with_known = graph | {name: graph.get(name, set()) | {target}}
        is_needed = target in found.get(name, ()) and cycle_of(with_known)
        assert is_needed, f"{name} -> {target} closes no circle: remove it from CLOSES_CIRCLE"


@pytest.mark.parametrize("folder", TORCH_FREE)
def test_folder_does_not_import_torch(folder: str) -> None:
    for file in sources(folder):
        assert not any(name.partition(".")[0] == "torch" for name, _ in imports(file)), file


def test_importing_these_modules_does_not_import_torch() -> None:
    """One process imports all of them, and ends with the name of the first that imports torch."""
    script = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(f'swiftchat.{name}')\n"
        "    'torch' in sys.modules and sys.exit(name)\n"
    )
    command = [sys.executable, "-c", script, *TORCH_FREE_TO_IMPORT]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_cuda_folder_does_not_shadow_nvidias_package() -> None:
    assert not (ROOT / "cuda" / "__init__.py").exists()
    spec = find_spec("cuda.core") if find_spec("cuda") else None
    if spec is not None and spec.origin is not None:
        assert ROOT not in Path(spec.origin).parents
    nvidia_modules = {"core", "bindings", "pathfinder", "cccl", "compute"}
    assert not nvidia_modules & {path.stem for path in (ROOT / "cuda").glob("*")}


def test_pyproject_lists_every_folder() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {folder_of(name) for name in modules()}
    assert listed == sorted(f"swiftchat.{folder}" for folder in folders)


def test_only_packages_have_lists_of_exported_names() -> None:
    for package in MAY_IMPORT:
        for file in sources(package):
            assert file.name == "__init__.py" or "\n__all__ = " not in file.read_text(), file


def test_length_of_files() -> None:
    for package in MAY_IMPORT:
        for file in sources(package):
            assert len(file.read_text().splitlines()) <= MAX_LINES, file


def test_no_line_is_exempt_from_formatting() -> None:
    for package in MAY_IMPORT:
        for file in sources(package):
            assert "# fmt: skip" not in file.read_text(), file
