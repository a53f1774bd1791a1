"""`swiftchat convert` as a process: output and exit codes."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from swiftchat.weights.store import default_store
from tests.support import llama_layouts
from tests.support.gguf import tiny as tiny_gguf
from tests.support.program import patched
from tests.support.tiny_llama import entry_names, tiny_llama


def run(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "swiftchat.chat", "convert", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_dry_run_lists_the_files_that_are_written(tmp_path: Path) -> None:
    llama_layouts.write_bin(tmp_path / "in", tiny_llama())
    options = ("--dtype", "bfloat16", "--shard-size", "49KiB", "--skip", "lm_head*")
    planned = run(tmp_path / "in", tmp_path / "out", "--dry-run", *options)
    assert planned.returncode == 0 and planned.stderr == ""
    assert "model-00001-of-00003.safetensors" in planned.stdout
    assert "in total: 20 tensors of bfloat16; memory needed: at most 128.0 MB" in planned.stdout
    assert entry_names(tmp_path) == ["in"]
    done = run(tmp_path / "in", tmp_path / "out", *options)
    assert done.returncode == 0
    assert done.stdout == f"{tmp_path / 'out'}\n"
    assert "converting …\nchecking …\n" in done.stderr
    assert "wrote and verified " in done.stderr and " kB in 0." in done.stderr
    assert {line.split()[2] for line in planned.stdout.splitlines()[:-1]} | {
        "swiftchat.json"
    } == set(entry_names(tmp_path / "out"))


def test_the_source_may_be_a_model_name(tmp_path: Path) -> None:
    llama_layouts.write_bin(default_store().root / "Some-Model", tiny_llama())
    done = run("some-model", tmp_path / "out", "--dtype", "bfloat16")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'out'}\n")
    missing = run("another", tmp_path / "none")
    assert missing.returncode == 3 and "model 'another' is not installed" in missing.stderr
    assert entry_names(tmp_path / "out") and not (tmp_path / "none").exists()


def test_other_exit_codes(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "a.gguf", tiny_llama())
    (tmp_path / "there").mkdir()
    for arguments, code in (
        ((tmp_path / "none", tmp_path / "out"), 3),
        ((tmp_path / "a.gguf", tmp_path / "there"), 8),
        ((tmp_path / "a.gguf", tmp_path / "out", "--shard-size", "5 apples"), 2),
        ((tmp_path / "a.gguf", tmp_path / "out", "--only", "nothing.*"), 2),
    ):
        result = run(*arguments)
        assert (result.returncode, entry_names(tmp_path)) == (code, ["a.gguf", "there"])


def test_quantize(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path / "in")
    done = run(tmp_path / "in", tmp_path / "out", "--quantize", "int4", "--keep", "*.o_proj.*")
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "model.layers.1.self_attn.o_proj" in config["quantization_config"]["ignore"]
    refused = run(
        tmp_path / "in", tmp_path / "no", "--quantize", "int4", "--group-size", "128", "-q"
    )
    assert refused.returncode == 7
    assert "model.layers.0.self_attn.q_proj.weight" in refused.stderr
    assert run(tmp_path / "in", tmp_path / "no", "--keep", "*").returncode == 2
    assert run(tmp_path / "in", tmp_path / "no", "--quantize", "int3").returncode == 2
    assert entry_names(tmp_path) == ["in", "out"]


# The converter sends itself a signal before it writes the tensor number 9.
_INTERRUPTED = """
import os
from swiftchat.weights.formats.safetensors import SafetensorsWriter
write, calls = SafetensorsWriter.write, iter(range(1000))
def writing(*args):
    if next(calls) == 9:
        os.kill(os.getpid(), SIGNAL)
    write(*args)
SafetensorsWriter.write = writing
"""


@pytest.mark.fault(21)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path, number: int, code: int) -> None:
    tiny_gguf.write(tmp_path / "tiny.gguf", tiny_llama())
    target = tmp_path / "target"
    program = f"SIGNAL = {int(number)}{_INTERRUPTED}"
    command = patched(program, "convert", tmp_path / "tiny.gguf", target / "out")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr and b"error" not in done.stderr
    assert entry_names(target) == []
