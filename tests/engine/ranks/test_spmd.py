"""Several rank processes generate the ids of one rank, and report the failure of a rank."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from safetensors.numpy import save_file

from swiftchat.chat.render.stats import memory_line
from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.protocol import EngineInfo, Tokens
from swiftchat.engine.api.tuning import Tuning
from swiftchat.engine.device import device
from swiftchat.engine.ranks.auto_tp import require_gpus, resolve_tp
from swiftchat.engine.ranks.supervisor import SlowestProgress
from swiftchat.errors import (
    BadModelFile,
    ContextOverflow,
    DeviceError,
    OutOfMemory,
    SwiftchatError,
    UsageError,
)
from tests.support import fake_engine, tiny
from tests.support.worker_processes import (
    ENDLESS,
    GREEDY,
    WIDE,
    all_ranks,
    assert_equals_single_rank,
    collect,
    command_line,
    has_ended,
    inject_fault,
    rank_processes,
    wait_until,
)

TWO = EngineConfig(device="cpu", dtype="float32", num_threads=1, tp=2, block_size=tiny.BLOCK_SIZE)
LONG_PROMPT = tiny.random_ids(240)
# A busy machine may take many times the limit of the heartbeats.
REPORTED_S = 60.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="several ranks need Linux")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny.make("llama-biases", path, **WIDE)
    return path


@pytest.fixture(scope="module")
def pair(folder: Path):
    with EngineClient(TWO, folder) as running:
        running.wait_ready()
        yield running


def test_two_ranks_equal_one(pair: EngineClient, folder: Path) -> None:
    assert pair.info is not None and pair.info.tp == 2
    assert_equals_single_rank(pair, folder, 20)


def test_two_ranks_with_a_packed_cache_equal_one(folder: Path) -> None:
    prompt = tiny.random_ids(40, seed=8)
    alone = tiny.engine(folder, kv_dtype="int5", kernels=False)
    with EngineClient(replace(TWO, kv_dtype="int5"), folder) as running:
        assert running.wait_ready().kv_dtype == "int5"
        ids, _ = collect(running.generate(prompt, GREEDY))
    assert ids == tiny.run(alone, {1: prompt}, GREEDY)[0][1]


def test_second_turn_uses_the_prefix_cache(pair: EngineClient, folder: Path) -> None:
    prompt = tiny.random_ids(40, seed=3)
    first, _ = collect(pair.generate(prompt, GREEDY))
    longer = [*prompt, *first, 5, 6]
    ids, end = collect(pair.generate(longer, GREEDY))
    assert end.cached_tokens == len(longer) - 3
    assert tiny.run(tiny.engine(folder), {1: longer}, GREEDY)[0][1] == ids


def test_ranks_stay_synchronized_after_cancel(pair: EngineClient) -> None:
    expected = collect(pair.generate([9, 9], GREEDY))[0]
    generation = pair.generate([9, 9], ENDLESS)
    for event in generation:
        if isinstance(event, Tokens):
            generation.cancel()
    assert collect(pair.generate([9, 9], GREEDY))[0] == expected
    assert pair.stats()["used_blocks"] == 0


def test_a_prompt_without_room_for_its_soft_prompt_leaves_the_ranks_as_they_are(
    pair: EngineClient, folder: Path, tmp_path: Path
) -> None:
    shape = (4, json.loads((folder / "config.json").read_text())["hidden_size"])
    save_file(
        {"prompt_embeddings": np.zeros(shape, np.float32)}, tmp_path / "adapter_model.safetensors"
    )
    settings = {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": shape[0]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    tuning = Tuning(soft_prompt=str(tmp_path))
    assert pair.info is not None
    prompt = [5] * (pair.info.ctx_size_tokens - shape[0])
    with pytest.raises(ContextOverflow, match="the soft prompt 4"):
        collect(pair.generate(prompt, GREEDY, tuning=tuning))
    assert collect(pair.generate([9, 9], GREEDY, tuning=tuning))[1].prompt_tokens == 2


def wait_until_prefilling(client: EngineClient) -> None:
    client.wait_ready()
    client.generate(LONG_PROMPT, ENDLESS)


def wait_until_decoding(client: EngineClient) -> None:
    client.wait_ready()
    events = iter(client.generate([5], ENDLESS))
    while not isinstance(next(events), Tokens):
        pass


def assert_reported(client: EngineClient, kind: type[SwiftchatError], message: str) -> None:
    """Check that waiting or generating raises the error."""
    with pytest.raises(kind, match=message):
        client.wait_ready()
        while True:
            collect(client.generate([5], ENDLESS))


def assert_ranks_lost(client: EngineClient, pids: Iterable[int], message: str) -> None:
    """Check that the client raises the error within REPORTED_S and all processes end."""
    began = time.monotonic()
    assert_reported(client, DeviceError, message)
    wait_until(lambda: all(map(has_ended, pids)))
    assert time.monotonic() - began < REPORTED_S


@pytest.mark.fault(4)
def test_four_ranks_equal_one_and_a_killed_rank(tmp_path: Path) -> None:
    """The error names the killed rank, not the ranks that lose their connection to it."""
    tiny.make("gpt-neox", tmp_path, **WIDE)
    with EngineClient(replace(TWO, tp=4, chunk_tokens=16), tmp_path) as client:
        pids = all_ranks(client, 4)
        assert_equals_single_rank(client, tmp_path, 20)
        wait_until_decoding(client)
        os.kill(pids[3], signal.SIGKILL)
        assert_ranks_lost(client, pids.values(), r"rank 3 ended: signal 9 \(SIGKILL\)")


@pytest.mark.fault(4)
def test_error_names_a_rank_killed_in_prefill(folder: Path) -> None:
    with EngineClient(TWO, folder) as client:
        pids = all_ranks(client, 2)
        wait_until_prefilling(client)
        os.kill(pids[1], signal.SIGKILL)
        assert_ranks_lost(client, pids.values(), r"rank 1 ended: signal 9 \(SIGKILL\)")


_WRONG_DIGEST = """
import zlib
plain = zlib.crc32
zlib.crc32 = lambda data, value=0: plain(data, value) ^ 1
"""
_OUT_OF_MEMORY_WHEN_LOADING = """
import swiftchat.engine.model.memory as memory
def full(*_, **__): raise RuntimeError("DefaultCPUAllocator: can't allocate memory\\nat 0x0")
memory.plan_shard_cache = full
"""
_HANGS_WHEN_LOADING = """
import ctypes
import swiftchat.engine.model.memory as memory
memory.plan_shard_cache = lambda *_, **__: ctypes.PyDLL(None).sleep(600)  # blocks all threads
"""
_DAMAGED_FILE = """
import swiftchat.errors, swiftchat.weights.model.directory
def damaged(*_): raise swiftchat.errors.BadModelFile("model.safetensors is too short")
swiftchat.weights.model.directory.Model.checkpoint = damaged
"""
_OUT_OF_MEMORY_WHEN_DECODING = """
import swiftchat.engine.sampling.distributed as distributed
def full(*_): raise MemoryError("all is taken")
distributed.distributed_argmax = full
"""


@pytest.mark.fault(13, 17)
@pytest.mark.parametrize(
    ("rank", "fault", "kind", "message"),
    [
        (1, _WRONG_DIGEST, DeviceError, "rank 1: sampled other tokens than rank 0"),
        (
            1,
            _OUT_OF_MEMORY_WHEN_LOADING,
            OutOfMemory,
            "rank 1: DefaultCPUAllocator: can't allocate memory",
        ),
        (1, _HANGS_WHEN_LOADING, DeviceError, "rank 1 has sent nothing for 4 s"),
        (1, _DAMAGED_FILE, BadModelFile, "rank 1: model.safetensors is too short"),
        (0, _OUT_OF_MEMORY_WHEN_DECODING, OutOfMemory, "rank 0: all is taken"),
    ],
    ids=[
        "diverged",
        "out of memory when loading",
        "hang",
        "damaged file",
        "out of memory when decoding",
    ],
)
def test_error_on_one_rank_names_the_rank(
    rank: int,
    fault: str,
    kind: type[SwiftchatError],
    message: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inject_fault(monkeypatch, tmp_path / "fault", rank, fault)
    with EngineClient(TWO, folder) as client:
        pids = all_ranks(client, 2)
        assert_reported(client, kind, message)
        wait_until(lambda: all(map(has_ended, pids.values())))


def test_indivisible_model_raises_before_a_rank_starts(folder: Path) -> None:
    with EngineClient(replace(TWO, tp=3), folder) as client:
        with pytest.raises(UsageError, match="num_attention_heads 8 is not divisible by --tp 3"):
            client.wait_ready()
        assert not rank_processes(client.pid)


def test_auto_tp_is_1_on_the_cpu(folder: Path) -> None:
    assert resolve_tp(replace(TWO, tp="auto"), folder) == 1


def mock_gpus(monkeypatch: pytest.MonkeyPatch, free_bytes: list[int]) -> None:
    monkeypatch.setattr(device, "find_device", lambda name: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free_bytes))
    monkeypatch.setattr(device, "available_bytes", lambda gpu: free_bytes[gpu.index])


@pytest.mark.parametrize(
    ("free_gb", "tp"), [([24] * 8, 1), ([17, 24], 2), ([12] * 8, 2), ([10] * 8, 4), ([4.2] * 8, 8)]
)
def test_auto_tp_is_the_smallest_number_of_gpus_with_enough_memory(
    free_gb: list[float], tp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Llama 3.1 8B: 16.1 GB of weights, 0.5 GB KV cache, 1.2 GB workspace; 15 % stay free."""
    mock_gpus(monkeypatch, [int(gb * 1e9) for gb in free_gb])
    assert resolve_tp(EngineConfig(dummy="llama-3.1-8b", tp="auto"), Path()) == tp


def test_too_few_gpus_raise_with_found_and_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    mock_gpus(monkeypatch, [10**10] * 2)
    with pytest.raises(OutOfMemory, match=r"on 2 GPUs: .* needed"):
        resolve_tp(EngineConfig(dummy="llama-3.1-70b", tp="auto"), Path())
    with pytest.raises(DeviceError, match="--tp 4 needs 4 GPUs from cuda:0 on: 2 found"):
        require_gpus(EngineConfig(tp=4))


def test_stats_show_the_number_of_ranks() -> None:
    info = EngineInfo("H200", "bfloat16", 1, 8 * 10**9, 4096, 10**9, 2048, 1, 0.5, tp=2)
    assert memory_line(info).startswith("2 × H200, bfloat16 · weights 8.00 GB each · ")
    info = replace(info, pp=3, unread_input_scales=7)
    weights = "weights 16.00 GB in total, 7 scales of activations not used · "
    assert memory_line(info).startswith(f"6 × H200, bfloat16 · {weights}")
    info = replace(info, unread_input_scales=0)
    assert memory_line(info).startswith("6 × H200, bfloat16 · weights 16.00 GB in total · ")


def test_several_ranks_need_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    require_gpus(EngineConfig(tp=1))
    for config in (EngineConfig(tp=2), EngineConfig(pp=2)):
        with pytest.raises(UsageError, match="needs GPUs, and none was found"):
            require_gpus(config)


@pytest.mark.fault(36)
def test_ranks_end_after_a_hangup(tmp_path: Path) -> None:
    model = fake_engine.make_folder(tmp_path / "model", max_position_embeddings=50000)
    config = str(model / "config.json")
    options = ["-m", str(model), "--dummy", config, "--device", "cpu", "--tp", "2", "--temp", "0"]
    # The command line refuses several ranks on a CPU, which only tests use.
    program = (
        "from swiftchat.chat.options.config import ChatConfig;"
        "ChatConfig.check = lambda self: None;"
        "from swiftchat.chat.cli import main; main()"
    )
    command = [sys.executable, "-c", program, *options, "--stream-json", "-p", "hello"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as terminal:
        assert terminal.stdout is not None
        assert json.loads(terminal.stdout.readline())["model"]["tp"] == 2
        assert b"delta" in terminal.stdout.readline()
        (worker,) = (
            child
            for child in psutil.Process(terminal.pid).children()
            if "swiftchat.engine.worker" in command_line(child)
        )
        pids = [worker.pid, *rank_processes(worker.pid).values()]
        assert len(pids) == 2
        terminal.send_signal(signal.SIGHUP)
        assert terminal.wait(REPORTED_S) == 129
    wait_until(lambda: all(map(has_ended, pids)))


def test_start_and_stop_leave_no_processes_or_files() -> None:
    script = Path(__file__).parents[3] / "benchmarks" / "start_stop.py"
    command = [sys.executable, str(script), "--cycles", "3"]
    subprocess.run(command, env={**os.environ, "SWIFTCHAT_DEVICE": "cpu"}, check=True)


def test_progress_is_that_of_the_slowest_rank() -> None:
    reported: list[tuple[str, int, int]] = []
    slowest = SlowestProgress(lambda *progress: reported.append(progress), 2)
    for rank, done in ((0, 1), (0, 50), (1, 30), (1, 45), (1, 80)):
        slowest.report(rank, "loading weights", done, 100)
    behind = "loading weights, waiting for rank"
    assert reported == [
        ("loading weights", 0, 100),
        (f"{behind} 1", 0, 100),
        (f"{behind} 1", 30, 100),
        ("loading weights", 45, 100),
        (f"{behind} 0", 50, 100),
    ]
