"""The cache of compiled kernels, with a compiler that counts its calls; needs no GPU."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from swiftchat.cuda import nvrtc
from swiftchat.cuda.cubin_cache import CubinCache


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the compiler; return the names of the kernels that it compiles."""
    names: list[str] = []

    def compile_cubin(name: str, arch: str, defines: Mapping[str, str]) -> bytes:
        names.append(name)
        return f"{name} {arch} {dict(defines)}".encode() * 50

    monkeypatch.setattr(nvrtc, "compile_cubin", compile_cubin)
    monkeypatch.setattr(nvrtc, "version", lambda: "13.0")
    return names


def test_a_kernel_is_compiled_once(tmp_path: Path, compiled: list[str]) -> None:
    first = CubinCache(tmp_path).get("norm", "sm_90", {"A": "1"})
    assert CubinCache(tmp_path).get("norm", "sm_90", {"A": "1"}) == first
    assert len(compiled) == 1
    for arch, defines in (("sm_80", {"A": "1"}), ("sm_90", {"A": "2"})):
        assert CubinCache(tmp_path).get("norm", arch, defines) != first
    assert len(compiled) == 3


@pytest.mark.parametrize("damage", ["changed", "cut", "empty", "foreign"])
def test_a_damaged_entry_is_compiled_again(
    damage: str, tmp_path: Path, compiled: list[str]
) -> None:
    cubin = CubinCache(tmp_path).get("norm", "sm_90", {})
    (file,) = tmp_path.iterdir()
    entry = file.read_bytes()
    middle = len(entry) // 2
    file.write_bytes(
        {
            "changed": entry[:middle] + bytes([entry[middle] ^ 1]) + entry[middle + 1 :],
            "cut": entry[:-1],
            "empty": b"",
            "foreign": cubin,
        }[damage]
    )
    assert CubinCache(tmp_path).get("norm", "sm_90", {}) == cubin
    assert len(compiled) == 2 and file.read_bytes() == entry


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, compiled: list[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = CubinCache(tmp_path / "file" / "cubins")
    assert cache.get("norm", "sm_90", {}) == cache.get("norm", "sm_90", {})
    assert len(compiled) == 2
