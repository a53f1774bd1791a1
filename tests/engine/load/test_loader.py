"""Streamed weights are bitwise equal to views of the mapped files, tested on the CPU."""

import gc
import os
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import tqdm
from torch import Tensor

from swiftchat.engine.load import streaming
from swiftchat.engine.load.loader import load_weights, stream_weights
from swiftchat.engine.load.streaming import Copy, run_ahead, stream_in
from swiftchat.engine.model.weights import DecoderWeights
from swiftchat.errors import BadModelFile, FileSystemError
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import Shard, shard_of
from tests.support import tiny

CPU = torch.device("cpu")
VARIANTS = ("llama", "llama-tied", "llama-biases", "llama-mha")


@pytest.fixture(scope="module", params=VARIANTS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    tiny.make(request.param, path)
    return path


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    tiny.make("llama", tmp_path / "llama")
    return tmp_path / "llama"


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that no test leaves a thread or an open file behind."""
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # else tqdm starts a thread
    gc.collect()  # garbage of other tests must not close files during the test
    gc.freeze()  # the second collection looks at new objects only
    threads, files = set(threading.enumerate()), num_open_files()
    yield
    gc.collect()
    assert set(threading.enumerate()) <= threads
    assert num_open_files() <= files


def num_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def tensors(weights: DecoderWeights) -> dict[str, Tensor | None]:
    found: dict[str, Tensor | None] = {
        "embed": tiny.plain_tensor(weights.embed),
        "final_norm": weights.final_norm,
        "lm_head": tiny.plain_tensor(weights.lm_head),
    }
    for i, layer in enumerate(weights.layers):
        for name, value in vars(layer).items():
            if name in ("qkv", "o", "gate_up", "down"):
                found[f"{i}.{name}"] = tiny.plain_tensor(value)
            elif name != "experts":
                found[f"{i}.{name}"] = value
        if layer.experts is not None:
            found |= {f"{i}.expert.{n}": t for n, t in enumerate(layer.experts.tensors)}
            found |= {f"{i}.{name}": None for name in ("gate_up", "down")}  # empty weights
    return found


def assert_streams_as_mapped(
    folder: Path, dtype: torch.dtype, shard: Shard | None = None, **settings: int
) -> None:
    model = Model.open(folder)
    checkpoint = model.checkpoint(shard)
    steps: list[tuple[int, int]] = []
    streamed = stream_weights(
        model.config,
        checkpoint,
        dtype,
        CPU,
        lambda *step: steps.append(step),
        shard=shard,
        **settings,
    )
    mapped = load_weights(model.config, checkpoint, dtype, CPU, lambda done, total: None, shard)
    ours, theirs = tensors(streamed), tensors(mapped)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        other = ours[name]
        if tensor is None or other is None:
            assert tensor is other, name
            continue
        exact = torch.float32 if name.endswith("sinks") else dtype
        assert (other.shape, other.dtype) == (tensor.shape, exact), name
        # Fused experts are transposed views.
        assert other.is_contiguous() or (".expert." in name and other.t().is_contiguous()), name
        ours_bits, bits = (t.contiguous().view(torch.uint8) for t in (other, tensor))
        assert torch.equal(ours_bits, bits), name
    assert (streamed.lm_head is streamed.embed) == model.config.head.tied
    sizes = {name: info.nbytes for name, info in checkpoint.tensors.items()}
    whole = Shard(model.config) if shard is None else shard
    expected = sum(sizes.values()) if checkpoint.shard else whole.weights_bytes(sizes)
    assert steps == sorted(steps) and steps[-1] == (expected, expected)


def with_odd_offsets(folder: Path) -> None:
    """Lengthen the header by one byte: every tensor then begins at an odd offset."""
    file = folder / "model.safetensors"
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = content[8 : 8 + length] + b" " * (1 if length % 2 == 0 else 2)
    file.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_streamed_tensors_equal_mapped_tensors(folder: Path, dtype: torch.dtype) -> None:
    assert_streams_as_mapped(folder, dtype)


@pytest.mark.parametrize("staging_bytes", [52, 1000, 4096])
@pytest.mark.parametrize("num_readers", [1, 5])
def test_streaming_with_staging_buffers_of_any_size(
    llama: Path, staging_bytes: int, num_readers: int
) -> None:
    assert_streams_as_mapped(
        llama, torch.bfloat16, staging_bytes=staging_bytes, num_readers=num_readers
    )


@pytest.mark.parametrize("source", ["bfloat16", "float16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_streaming_converts_dtypes_of_several_files(
    llama: Path, source: str, dtype: torch.dtype
) -> None:
    shards = llama.with_name("shards")
    convert(llama, shards, dtype=source, shard_size_bytes=60_000)
    assert len(list(shards.glob("*.safetensors"))) > 2
    assert_streams_as_mapped(shards, dtype, staging_bytes=4096, num_readers=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_at_odd_file_offsets(llama: Path, dtype: torch.dtype) -> None:
    with_odd_offsets(llama)
    assert all(info.offset % 2 for info in Model.open(llama).checkpoint().tensors.values())
    assert_streams_as_mapped(llama, dtype, staging_bytes=1000)


@pytest.mark.parametrize(
    ("name", "staging_bytes"),
    [
        ("llama-tied", 100),
        ("gpt2", 100),
        ("bloom", 4096),
        ("phi3", 4096),
        ("mixtral", 4096),
        ("gpt-oss", 100),
        ("gpt-oss", 4096),
    ],
)
def test_streamed_shards_equal_mapped_shards(name: str, staging_bytes: int, tmp_path: Path) -> None:
    """Also with a buffer smaller than a row."""
    tiny.make(name, tmp_path / "whole")
    convert(tmp_path / "whole", tmp_path / "sliced", tp=2)
    for folder in (tmp_path / "whole", tmp_path / "sliced"):
        for rank in range(2):
            shard = shard_of(Model.open(folder).config, 2, rank)
            for dtype in (torch.bfloat16, torch.float32):
                assert_streams_as_mapped(
                    folder, dtype, shard, staging_bytes=staging_bytes, num_readers=2
                )


def test_shards_take_no_more_memory_than_their_size(llama: Path) -> None:
    """Adjacent rows are views of the file; only other parts are copied."""
    model = Model.open(llama)
    checkpoint, shard = model.checkpoint(), shard_of(model.config, 2, 1)
    weights = load_weights(model.config, checkpoint, torch.float32, CPU, lambda *_: None, shard)
    mapped = checkpoint.map(llama / "model.safetensors")
    start = torch.frombuffer(mapped, dtype=torch.uint8).data_ptr()

    def in_file(tensor: Tensor) -> bool:
        return start <= tensor.data_ptr() < start + len(mapped)

    layer = weights.layers[0]
    assert in_file(tiny.plain_tensor(weights.embed))
    assert in_file(tiny.plain_tensor(weights.lm_head))
    for weight in (layer.qkv, layer.o, layer.gate_up, layer.down):
        tensor = tiny.plain_tensor(weight)
        assert not in_file(tensor) and tensor.untyped_storage().nbytes() == tensor.nbytes
    assert layer.o.shape == (48, 24) and layer.down.shape == (48, 40)
    assert weights.embed.shape == (48, 48)  # the first rank has one of the 97 ids more


def test_engine_with_streamed_weights_equals_mapped(llama: Path, monkeypatch) -> None:
    params = tiny.SamplingParams(temperature=0, max_tokens=8)
    expected, _ = tiny.run(tiny.engine(llama), {1: [5, 6, 7]}, params)
    monkeypatch.setattr("swiftchat.engine.generation.build.load_weights", stream_weights)
    assert tiny.run(tiny.engine(llama), {1: [5, 6, 7]}, params)[0] == expected


def test_file_truncated_while_streaming(llama: Path) -> None:
    shards = llama.with_name("shards")
    convert(llama, shards, shard_size_bytes=60_000)
    model = Model.open(shards)
    checkpoint = model.checkpoint()
    last = sorted(shards.glob("*.safetensors"))[1]
    os.truncate(last, last.stat().st_size - 1)
    with pytest.raises(BadModelFile, match=f"{last.name} ends at byte"):
        stream_weights(
            model.config,
            checkpoint,
            torch.float32,
            CPU,
            lambda *_: None,
            num_readers=3,
            staging_bytes=4096,
        )


def test_read_error_while_streaming(llama: Path, monkeypatch) -> None:
    model, reads, real = Model.open(llama), iter(range(10**6)), os.preadv

    def failing(*args: object) -> int:
        if next(reads) >= 7:
            raise OSError(5, "Input/output error")
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(streaming.os, "preadv", failing)
    with pytest.raises(BadModelFile, match=r"model\.safetensors: Input/output error"):
        stream_weights(
            model.config,
            model.checkpoint(),
            torch.float32,
            CPU,
            lambda *_: None,
            num_readers=2,
            staging_bytes=4096,
        )


def test_short_reads_are_continued(llama: Path, monkeypatch) -> None:
    real = os.preadv
    monkeypatch.setattr(
        streaming.os, "preadv", lambda fd, views, offset: real(fd, [views[0][:999]], offset)
    )
    assert_streams_as_mapped(llama, torch.float32)


def test_missing_file_while_streaming(llama: Path) -> None:
    model = Model.open(llama)
    checkpoint = model.checkpoint()
    (llama / "model.safetensors").unlink()
    with pytest.raises(FileSystemError, match="No such file"):
        stream_weights(model.config, checkpoint, torch.float32, CPU, lambda *_: None)


def test_exception_in_progress_callback_stops_streaming(llama: Path) -> None:
    model = Model.open(llama)

    def gone(done: int, total: int) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        stream_weights(
            model.config,
            model.checkpoint(),
            torch.float32,
            CPU,
            gone,
            num_readers=4,
            staging_bytes=256,
        )


def test_run_ahead_keeps_order_and_limits_pending_jobs() -> None:
    begun: list[int] = []

    def job(number: int) -> int:
        begun.append(number)
        time.sleep(0.001 * (number % 3))
        if number == 30:
            raise ValueError("thirty")
        return number

    found = []
    with pytest.raises(ValueError, match="thirty"):
        for number in run_ahead([partial(job, i) for i in range(100)], 3, torch.device("cpu")):
            found.append(number)
            assert len(begun) <= number + 4  # the pending jobs and this one
    assert found == list(range(30)) and len(begun) <= 34
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("reader")]


def test_empty_tensor_takes_no_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\x00\x00\x80\x3f")
    one, none = torch.zeros(1), torch.zeros(0)
    copies = [
        Copy(tmp_path / "file", 4, 0, torch.float32, none),
        Copy(tmp_path / "file", 0, 4, torch.float32, one),
    ]
    done: list[int] = []
    stream_in(copies, CPU, done.append)
    assert one.item() == 1.0 and done == [4]


def test_mapped_loading_reports_progress_in_bytes(folder: Path) -> None:
    model, steps = Model.open(folder), []
    load_weights(
        model.config, model.checkpoint(), torch.float32, CPU, lambda *step: steps.append(step)
    )
    assert steps == sorted(steps) and steps[-1] == (model.weights_bytes, model.weights_bytes)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_streaming_to_a_gpu(folder: Path, dtype: torch.dtype) -> None:
    model = Model.open(folder)
    mapped = load_weights(model.config, model.checkpoint(), dtype, CPU, lambda *_: None)
    device = torch.device("cuda", 0)
    for staging_bytes in (4096, 2**24):
        streamed = stream_weights(
            model.config,
            model.checkpoint(),
            dtype,
            device,
            lambda *_: None,
            num_readers=4,
            staging_bytes=staging_bytes,
        )
        for name, tensor in tensors(mapped).items():
            other = tensors(streamed)[name]
            if tensor is not None and other is not None:
                assert other.device == device and torch.equal(other.cpu(), tensor), name
