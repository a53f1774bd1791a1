"""Sources of kernels that exist only in tests."""

from pathlib import Path

import pytest

from swiftchat.cuda import nvrtc


def declare(
    monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, table: str, head: str
) -> None:
    """Make a kernel known: the lines of its table, and its parameters.

    Declarations are cached by the kernel's name, which no other test may use.
    """
    file = folder / f"{name}.cu"
    lines = "\n".join(f"//   {line}" for line in table.strip().splitlines())
    file.write_text(
        f"// {name}: a test.\n//\n{lines}\n//\n// Algorithm: none.\n"
        f'extern "C" __global__ void\n{name}_kernel({head}) {{\n}}\n'
    )
    source = nvrtc.source
    monkeypatch.setattr(nvrtc, "source", lambda other: file if other == name else source(other))
