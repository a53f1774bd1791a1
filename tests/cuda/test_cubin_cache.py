"""The cache of compiled kernels, with a compiler that counts its calls, and in a chat on a GPU."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from swiftchat.cuda import nvrtc
from swiftchat.cuda.cubin_cache import CubinCache
from tests.support.fake_engine import make_folder
from tests.support.serve_processes import swiftchat


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


def flipped(at: int) -> Callable[[bytes], bytes]:
    """Return a function that flips a bit of the byte `at`."""

    def damage(entry: bytes) -> bytes:
        position = at % len(entry)
        return entry[:position] + bytes([entry[position] ^ 1]) + entry[position + 1 :]

    return damage


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "first bit of the hash": flipped(0),
    "last bit of the hash": flipped(31),
    "first bit of the code": flipped(32),
    "middle of the code": flipped(500),
    "last bit of the code": flipped(-1),
    "without its end": lambda entry: entry[:-1],
    "only the hash": lambda entry: entry[:32],
    "without the hash": lambda entry: entry[32:],
    "longer": lambda entry: entry + b"\0",
    "empty": lambda entry: b"",
    "zeros": lambda entry: bytes(len(entry)),
}


@pytest.mark.fault(24)
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_entry_is_compiled_again(
    name: str, tmp_path: Path, compiled: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    cubin = CubinCache(tmp_path).get("norm", "sm_90", {})
    (file,) = tmp_path.iterdir()
    entry = file.read_bytes()
    file.write_bytes(DAMAGES[name](entry))
    assert CubinCache(tmp_path).get("norm", "sm_90", {}) == cubin
    assert len(compiled) == 2 and file.read_bytes() == entry
    assert capfd.readouterr() == ("", "")


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, compiled: list[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = CubinCache(tmp_path / "file" / "cubins")
    assert cache.get("norm", "sm_90", {}) == cache.get("norm", "sm_90", {})
    assert len(compiled) == 2


@pytest.mark.fault(24)
@pytest.mark.gpu
def test_a_chat_with_a_damaged_cache(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", hidden_size=128, num_attention_heads=2, head_dim=64)
    options = ("-m", str(folder), "--dummy", str(folder / "config.json"), "--device", "cuda")
    command = (*options, "--temp", "0", "-n", "8", "-p", "x")
    first = swiftchat(*command)
    assert first.returncode == 0, first.stderr
    files = list(Path(os.environ["XDG_CACHE_HOME"]).rglob("*.cubin"))
    assert files
    entries = {file: file.read_bytes() for file in files}
    for file, entry in entries.items():
        file.write_bytes(flipped(len(entry) // 2)(entry))
    again = swiftchat(*command)
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert again.stderr.splitlines() == []
    assert {file: file.read_bytes() for file in files} == entries
