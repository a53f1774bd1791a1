"""Fault 24: a file in the cache of compiled kernels is damaged.

Required: the kernel is compiled again without a message; the damaged machine code is never loaded.

Provoked by: flipped bits at every part of a file, truncated and longer files, with a compiler that
counts its calls; with a GPU, a chat whose whole cache is damaged.

Needs: a GPU for the chat.
"""

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from swiftchat.cuda import nvrtc
from swiftchat.cuda.cubin_cache import CubinCache
from tests.support.fake_engine import make_folder
from tests.support.serve_processes import swiftchat

CUBIN = b"\x7fELF" + random.Random(0).randbytes(3000)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that were compiled; the result is always `CUBIN`."""
    names: list[str] = []

    def compile_cubin(name: str, arch: str, defines: Mapping[str, str]) -> bytes:
        names.append(name)
        return CUBIN

    monkeypatch.setattr(nvrtc, "compile_cubin", compile_cubin)
    return names


def flipped(at: int) -> Callable[[bytes], bytes]:
    def damage(entry: bytes) -> bytes:
        position = at % len(entry)
        return entry[:position] + bytes([entry[position] ^ 1]) + entry[position + 1 :]

    return damage


DAMAGES = {
    "first bit of the hash": flipped(0),
    "last bit of the hash": flipped(31),
    "first bit of the code": flipped(32),
    "middle of the code": flipped(1500),
    "last bit of the code": flipped(-1),
    "without its end": lambda entry: entry[:-1],
    "only the hash": lambda entry: entry[:32],
    "longer": lambda entry: entry + b"\0",
    "empty": lambda entry: b"",
    "zeros": lambda entry: bytes(len(entry)),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_compiled_again(
    tmp_path: Path, compiled: list[str], name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    cache, defines = CubinCache(tmp_path), {"DTYPE": "float"}
    assert cache.get("norm", "sm_90a", defines) == CUBIN
    assert cache.get("norm", "sm_90a", defines) == CUBIN and compiled == ["norm"]
    (file,) = tmp_path.iterdir()
    entry = file.read_bytes()
    file.write_bytes(DAMAGES[name](entry))
    assert cache.get("norm", "sm_90a", defines) == CUBIN and compiled == ["norm", "norm"]
    assert file.read_bytes() == entry
    assert capfd.readouterr() == ("", "")


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
    # Whether the answer of random weights ends before its limit depends on the GPU.
    lines = again.stderr.splitlines()
    assert [line for line in lines if not line.startswith(b"warning: answer ended at its")] == []
    assert {file: file.read_bytes() for file in files} == entries
