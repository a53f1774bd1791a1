"""The arrows between packages, and what must never be imported."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "chat": {
        "errors",
        "tokenizer",
        "weights",
        "engine.client",
        "engine.protocol",
        "engine.params",
        "engine.packed_sizes",
        "engine.attached",
    },
    "engine": {"errors", "cuda", "weights"},
    "cuda": {"errors"},
    "tokenizer": {"errors"},
    "weights": {"errors"},
    "errors": set(),
}
TORCH_FREE = ("chat", "tokenizer", "weights", "errors")


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_arrows(package: str) -> None:
    allowed = MAY_IMPORT[package] | {package}
    for file in sources(package):
        for name in imports(file):
            if name.startswith("swiftchat."):
                inner = name.removeprefix("swiftchat.")
                assert any(inner == a or inner.startswith(f"{a}.") for a in allowed), (
                    f"{file.relative_to(ROOT)} imports {name}"
                )


@pytest.mark.parametrize("package", TORCH_FREE)
def test_no_torch_in_these_packages(package: str) -> None:
    for file in sources(package):
        assert not any(name.partition(".")[0] == "torch" for name in imports(file)), file


@pytest.mark.parametrize(
    "module",
    ["engine.client", "engine.attached", "engine.hosts", "engine.protocol", "engine.params",
     "tokenizer", "weights.store", "weights.convert", "weights.download", "weights.model",
     "chat.cli"],
)  # fmt: skip
def test_importing_it_does_not_bring_torch(module: str) -> None:
    script = f"import sys, swiftchat.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_our_cuda_folder_does_not_shadow_nvidias() -> None:
    assert not (ROOT / "cuda" / "__init__.py").exists()
    spec = find_spec("cuda.core") if find_spec("cuda") else None
    if spec is not None and spec.origin is not None:
        assert ROOT not in Path(spec.origin).parents
    taken = {"core", "bindings", "pathfinder", "cccl", "compute"}
    assert not taken & {path.stem for path in (ROOT / "cuda").glob("*")}


def test_files_stay_small() -> None:
    for package in MAY_IMPORT:
        for file in sources(package):
            assert len(file.read_text().splitlines()) <= 420, file
