"""download, list, show and rm as processes, with a fake hub on loopback."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from swiftchat.chat.model import memory
from swiftchat.chat.model.description import describe, property_label, property_text
from swiftchat.tokenizer import Tokenizer
from swiftchat.weights.architectures.tensors import expected_tensors
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import Shard
from tests.support.fake_hub import FakeHub, serving
from tests.support.zero_model import make_zero_model

SWIFTCHAT = [sys.executable, "-m", "swiftchat.chat"]
TOKEN = "hf_canarycanarycanary"
REPO, SHORT = "Qwen/Qwen3-8B", "qwen3:8b-16bit"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    folder = make_zero_model(tmp_path / "source")
    hub = FakeHub({path.name: path.read_bytes() for path in folder.iterdir()}, REPO)
    hub.card = {"license": "mit"}
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1")
    with serving(hub) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        yield hub


def run(*args: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*SWIFTCHAT, *args], input=b"", capture_output=True, env={**os.environ, **env}
    )


def test_commands_accept_short_names(hub: FakeHub) -> None:
    done = run("download", SHORT)
    total = sum(map(len, hub.files.values()))
    line, *progress = done.stderr.decode().splitlines()
    assert line == f"{SHORT} is {REPO}: {total / 1000:.1f} kB, license mit"
    assert progress == [f"downloading {REPO} …", f"verifying {REPO} …"] and done.returncode == 0
    path = Path(done.stdout.decode().strip())
    assert (path / "config.json").is_file()
    (row,) = json.loads(run("list", "--json").stdout)
    assert (row["name"], row["alias"], row["path"]) == (REPO, SHORT, str(path))
    assert run("list").stdout.decode().splitlines()[1].split()[-1] == SHORT
    assert json.loads(run("show", SHORT, "--json").stdout)["name"] == REPO
    hub.log.clear()
    options = ("-m", SHORT, "-p", "hi", "--offline", "--device", "cpu", "--json")
    options += ("-n", "2", "--min-tokens", "2")  # random weights may end the answer at once
    offline = run(*options, HF_HUB_OFFLINE="1")
    assert offline.returncode == 0 and hub.log == [], offline.stderr
    assert json.loads(offline.stdout)["usage"]["completion_tokens"] == 2
    assert b"already installed" in run("download", SHORT).stderr
    removed = run("rm", SHORT, "-y")
    assert removed.returncode == 0 and f"removed {REPO}".encode() in removed.stderr
    missing = run("show", SHORT)
    hint = f"hint: swiftchat download {SHORT}\n"
    assert missing.returncode == 3 and hint.encode() in missing.stderr


@pytest.mark.parametrize(("typed", "code"), [("n", 130), ("", 0)])
def test_download_asks_on_a_terminal(hub: FakeHub, typed: str, code: int) -> None:
    terminal = pexpect.spawn(sys.executable, [*SWIFTCHAT[1:], "download", REPO], timeout=60)
    terminal.expect_exact("license mit")
    terminal.expect_exact(f"download {REPO}? [Y/n]")
    terminal.sendline(typed)
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == code
    assert bool(hub.ranges("config.json")) == (code == 0)


@pytest.mark.usefixtures("hub")
def test_yes_skips_the_confirmation() -> None:
    terminal = pexpect.spawn(sys.executable, [*SWIFTCHAT[1:], "download", REPO, "-y"], timeout=60)
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0 and b"[Y/n]" not in (terminal.before or b"")


# show


def test_show_prints_memory_and_fit(tmp_path: Path) -> None:
    folder = make_zero_model(tmp_path / "model")
    fake_smi(tmp_path, "0, NVIDIA H200, 143771, 143000\\n1, NVIDIA\\033[2J T4, 15360, 0")
    paths = f"{tmp_path}:{os.environ['PATH']}"
    properties = json.loads(run("show", str(folder), "--json", PATH=paths).stdout)
    weights = (folder / "model.safetensors").stat().st_size
    by_dtype = properties["weights_bytes_by_dtype"]
    assert set(by_dtype) == {"BF16", "F32"} and by_dtype["F32"] == 258 * 48 * 4
    assert weights - 8192 < sum(by_dtype.values()) == properties["weights_bytes"] < weights
    # Keys and values of two layers, two heads, head_dim 8, in the config's fp32.
    assert properties["cache_per_token_bytes"] == 2 * 2 * 2 * 8 * 4
    needed = properties["weights_bytes"] + 256 * 256
    assert properties["memory_at_context"] == [{"context_tokens": 256, "bytes": needed}]
    cpu, gpu, full_gpu = properties["fits"]
    assert cpu["name"] == "CPU" and cpu["largest_context_tokens"] == 256
    assert gpu["name"] == "GPU 0 (NVIDIA H200)" and gpu["total_bytes"] == 143771 << 20
    assert full_gpu["largest_context_tokens"] == 0
    assert properties["license"] == "mit" and properties["tokenizer"]
    text = run("show", str(folder), PATH=paths).stdout.decode()
    assert "up to 256 tokens" in text and "too small" in text and "\x1b" not in text


def test_show_with_tensor_parallel(tmp_path: Path) -> None:
    folder = make_zero_model(tmp_path / "model")
    fake_smi(tmp_path, "0, A, 9, 9\\n1, B, 9, 0\\n2, C, 9, 8")
    paths = f"{tmp_path}:{os.environ['PATH']}"
    properties = json.loads(run("show", str(folder), "--json", PATH=paths).stdout)
    one, two = properties["each_of_several_gpus"]
    assert (one["tp"], two["tp"]) == (1, 2)
    assert one["weights_bytes"] == properties["weights_bytes"]
    assert one["memory_at_context"] == properties["memory_at_context"]
    assert two["cache_per_token_bytes"] * 2 == one["cache_per_token_bytes"]
    norms = 5 * 48 * 2  # on both ranks
    assert two["weights_bytes"] == (one["weights_bytes"] - norms) // 2 + norms
    # GPU 1 is full, and ranks take the GPUs in their order.
    assert (one["largest_context_tokens"], two["largest_context_tokens"]) == (256, 0)
    text = run("show", str(folder), PATH=paths).stdout.decode()
    assert "each GPU" in text and text.count("up to 256 tokens here") == 1
    refused = run("show", str(folder), "--tp", "4")
    assert refused.returncode == 2 and b"num_attention_heads 6 is not divisible" in refused.stderr
    assert b"--tp 1, 2" in refused.stderr
    (row,) = memory.parallel_memory(Model.open(folder), [], tp=2)
    assert row == {**two, "largest_context_tokens": None}
    assert property_text("each_of_several_gpus", [row]).endswith("needs 2 GPUs")


def test_show_with_pipeline_stages(tmp_path: Path) -> None:
    folder = make_zero_model(tmp_path / "model")  # two layers, untied head
    (whole,) = memory.parallel_memory(Model.open(folder), [], tp=1)
    rows = json.loads(run("show", str(folder), "--tp", "1", "--pp", "2", "--json").stdout)
    first, last = rows["each_of_several_gpus"]
    assert (first["layers"], last["layers"]) == ([0, 1], [1, 2])
    assert first["weights_bytes"] + last["weights_bytes"] == whole["weights_bytes"]
    assert first["weights_bytes"] > whole["weights_bytes"] // 3 < last["weights_bytes"]
    assert first["cache_per_token_bytes"] * 2 == whole["cache_per_token_bytes"]
    text = run("show", str(folder), "--tp", "1", "--pp", "2").stdout.decode()
    assert "--tp 1 --pp 2, layers 1 to 1: " in text and text.count("needs 2 GPUs") == 2
    refused = run("show", str(folder), "--pp", "3")
    assert refused.returncode == 2 and b"more than this model's 2 layers" in refused.stderr


def test_show_counts_quantized_weights_as_stored_on_the_gpu(tmp_path: Path) -> None:
    folder = make_zero_model(tmp_path / "model")
    fp8 = tmp_path / "fp8"
    assert run("convert", str(folder), str(fp8), "--quantize", "fp8").returncode == 0
    plain, model = Model.open(folder), Model.open(fp8)
    assert model.weights_bytes < plain.weights_bytes
    expected = sum(
        # Whole tiles of 8 rows and 64 columns, and a scale per row; other tensors are fp32.
        -(-shape[0] // 8) * -(-shape[1] // 64) * 512 + 4 * shape[0]
        if name.endswith("_proj.weight")
        else 4 * math.prod(shape)
        for name, shape in expected_tensors(model.config).items()
    )
    assert memory.weight_bytes_on_gpu(model, Shard(model.config)) == expected
    one, two = memory.parallel_memory(model, [])
    assert one["weights_bytes"] == expected
    assert (
        expected / 2 < two["weights_bytes"] < expected
    )  # the shards of `o`, 24 columns wide, are dequantized


def test_show_of_pre_sharded_files(tmp_path: Path) -> None:
    folder, sharded = make_zero_model(tmp_path / "model"), tmp_path / "sharded"
    assert run("convert", str(folder), str(sharded), "--tp", "2").returncode == 0
    assert (sharded / "model-tp1-of-2.safetensors").exists()
    convert(folder, tmp_path / "whole")
    of_sharded, of_whole = (
        {
            **describe(Model.open(path), Tokenizer.load(path)),
            "divided": memory.parallel_memory(Model.open(path), []),
        }
        for path in (sharded, tmp_path / "whole")
    )
    for key in ("weights_bytes", "weights_bytes_by_dtype", "memory_at_context", "divided"):
        assert of_sharded[key] == of_whole[key]
    planned = run("convert", str(folder), str(tmp_path / "x"), "--tp", "2", "--dry-run").stdout
    assert b"model-tp0-of-2.safetensors" in planned


def fake_smi(folder: Path, rows: str) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nprintf '{rows}\\n'\n")
    tool.chmod(0o755)


@pytest.mark.parametrize(
    "script", ["exit 9", "echo 'NVIDIA-SMI has failed'", "echo '0, A, [N/A], [N/A]'"]
)
def test_show_works_with_a_broken_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    fake_smi(tmp_path, "")
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert [device.name for device in memory.device_memory()] == ["CPU"]


def test_memory_grows_with_the_context(tmp_path: Path) -> None:
    folder = make_zero_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "max_position_embeddings": 131072, "dtype": "bfloat16"})
    )
    model = Model.open(folder)
    properties = describe(model, Tokenizer.load(folder))
    rows = properties["memory_at_context"]
    assert isinstance(rows, list)
    assert [row["context_tokens"] for row in rows] == [4096, 32768, 131072]
    weights, per_token = model.weights_bytes, 2 * 2 * 2 * 8 * 2
    assert [row["bytes"] for row in rows] == [
        weights + row["context_tokens"] * per_token for row in rows
    ]
    # After 15 % reserve and the weights, exactly 1000 tokens fit.
    enough = -(-(weights + 1000 * per_token) * 100 // 85)
    for free, tokens in [(enough, 1000), (enough - per_token, 999), (weights, 0), (10**9, 131072)]:
        (row,) = memory.context_limits(model, memory.DeviceMemory("x", 10**9, free), [])
        assert abs(row["largest_context_tokens"] - tokens) <= (1 if tokens == 999 else 0)
    shown = {property_label(key): property_text(key, value) for key, value in properties.items()}
    assert shown["memory at context"].count(" tokens") == 3
    assert shown["weights by dtype"].startswith("BF16 ")
