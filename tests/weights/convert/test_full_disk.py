"""convert onto a disk that becomes full: a tmpfs of two megabytes in a namespace of its own."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import llama_layouts
from tests.support.tiny_llama import tiny_llama

_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
_MOUNT = 'mount -t tmpfs -o size=2m none "$1" && shift && exec "$@"'
# Another program fills the disk before the tensor number 5; then it makes room again.
_CONVERT = """
import json, pathlib, sys
from swiftchat.errors import FileSystemError
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.formats import safetensors

disk, source = map(pathlib.Path, sys.argv[1:])
filler = disk / "filler"
write, calls = safetensors.SafetensorsWriter.write, iter(range(1000))

def filling(self, name, array):
    if next(calls) == 5:
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass
    write(self, name, array)

def run(dtype):
    try:
        convert(source, disk / "out", dtype=dtype)
        message, code = "", 0
    except FileSystemError as error:
        message, code = error.message, error.exit_code
    left = sorted(str(path.relative_to(disk)) for path in disk.rglob("*") if path != filler)
    return code, message, left

too_small = run("float32")
safetensors.SafetensorsWriter.write = filling
filled = run("bfloat16")
filler.unlink()
print(json.dumps([too_small, filled, run("bfloat16")]))
"""


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = [*_NAMESPACE, "sh", "-c", _MOUNT, "sh", str(folder), "true"]
    if shutil.which("unshare") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("cannot mount a tmpfs in a namespace on this machine")
    return folder


@pytest.mark.fault(12)
def test_convert_to_a_full_disk(tmp_path: Path, disk: Path) -> None:
    model = tiny_llama(hidden_size=128, intermediate_size=512, num_hidden_layers=3)
    source = tmp_path / "in"
    llama_layouts.write_bin(source, model)  # 3.1 MB in float32, 1.6 MB in bfloat16
    program = [sys.executable, "-c", _CONVERT, str(disk), str(source)]
    command = [*_NAMESPACE, "sh", "-c", _MOUNT, "sh", str(disk), *program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    too_small, filled, whole = json.loads(done.stdout)
    code, message, left = too_small
    assert (code, left) == (8, []) and "not enough disk space" in message
    assert "MB needed, 2.10 MB free" in message
    code, message, left = filled
    assert (code, left) == (8, []) and "MB needed" in message and "MB free" in message
    names = ("config.json", "model.safetensors", "swiftchat.json")
    assert whole == [0, "", ["out", *(f"out/{name}" for name in names)]]
