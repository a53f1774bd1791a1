"""Dependencies between packages and folders, imports of torch, and sizes of files."""

import ast
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
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
MAX_LINES = 460


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def module_name(file: Path) -> str:
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


@cache
def modules() -> frozenset[str]:
    return frozenset(module_name(file) for package in MAY_IMPORT for file in sources(package))


@cache
def imports(file: Path) -> set[str]:
    """Return the names that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def imported_modules(file: Path) -> set[str]:
    """Return the modules of this project that a file imports, without the prefix `swiftchat.`."""
    found = set()
    for name in imports(file):
        if name.startswith("swiftchat."):
            inner = name.removeprefix("swiftchat.")
            while inner not in modules() and "." in inner:
                inner = inner.rpartition(".")[0]
            found.add(inner)
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


def test_imports_between_folders_form_no_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for package in MAY_IMPORT:
        for file in sources(package):
            folder = folder_of(module_name(file))
            targets = {folder_of(name) for name in imported_modules(file)}
            graph.setdefault(folder, set()).update(targets - {folder})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"imports between folders form a cycle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("folder", TORCH_FREE)
def test_folder_does_not_import_torch(folder: str) -> None:
    for file in sources(folder):
        assert not any(name.partition(".")[0] == "torch" for name in imports(file)), file


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
