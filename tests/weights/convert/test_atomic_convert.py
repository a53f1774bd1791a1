"""convert is atomic: under interrupts, full disks and concurrent processes."""

import errno
import multiprocessing
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swiftchat.errors import FileSystemError
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.files.lock import exclusive_lock
from swiftchat.weights.formats import safetensors
from swiftchat.weights.model.directory import Model
from tests.support.gguf import tiny as tiny_gguf
from tests.support.tiny_llama import entry_names, tiny_llama


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source" / "tiny.gguf"
    path.parent.mkdir()
    tiny_gguf.write(path, tiny_llama())
    return path


class Stop(Exception):
    """Raised from a callback."""


@pytest.mark.fault(21)
@pytest.mark.parametrize("error", [KeyboardInterrupt, Stop])
@pytest.mark.parametrize("after", [1, 7, 20, 23])
def test_interrupt_leaves_nothing(
    tmp_path: Path, source: Path, error: type[BaseException], after: int
) -> None:
    target = tmp_path / "target"
    calls = 0

    def progress(label: str, done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        assert len(entry_names(target)) == 2  # the lock and the partial directory
        if calls == after:
            raise error

    with pytest.raises(error):
        convert(source, target / "out", progress=progress)
    assert entry_names(target) == []
    convert(source, target / "out")
    assert entry_names(target) == ["out"]


def fail_after(monkeypatch: pytest.MonkeyPatch, number: int, error: OSError) -> None:
    write = safetensors.SafetensorsWriter.write
    calls = iter(range(1000))

    def failing(self: safetensors.SafetensorsWriter, name: str, array: np.ndarray) -> None:
        if next(calls) == number:
            raise error
        write(self, name, array)

    monkeypatch.setattr(safetensors.SafetensorsWriter, "write", failing)


@pytest.mark.fault(12)
def test_full_disk_reports_needed_and_free_bytes_and_leaves_nothing(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    fail_after(monkeypatch, 5, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(FileSystemError, match=r"MB needed, .* MB free") as caught:
        convert(source, target / "out")
    assert caught.value.exit_code == 8
    assert entry_names(target) == []


def test_other_write_errors_are_reported(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_after(monkeypatch, 0, OSError(errno.EIO, "Input/output error"))
    with pytest.raises(FileSystemError, match="Input/output error"):
        convert(source, tmp_path / "target" / "out")
    assert entry_names(tmp_path / "target") == []


def test_a_shard_that_safetensors_does_not_read_is_not_published(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has the bytes that were meant, so reading it back finds no difference."""
    header = safetensors.header_bytes
    monkeypatch.setattr(safetensors, "header_bytes", lambda *args: header(*args) + bytes(64))
    with pytest.raises(FileSystemError, match=r"^model-\S*: the safetensors library does not"):
        convert(source, tmp_path / "target" / "out", shard_size_bytes=50_000)
    assert entry_names(tmp_path / "target") == []


@pytest.mark.fault(12)
def test_too_little_space_is_reported_before_writing(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 1))
    fail_after(monkeypatch, 0, OSError(errno.EIO, "must not be written"))
    with pytest.raises(FileSystemError, match="not enough disk space"):
        convert(source, tmp_path / "target" / "out")
    assert entry_names(tmp_path / "target") == []


def test_existing_destination_is_kept(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("precious")
    with pytest.raises(FileSystemError, match="exists already"):
        convert(source, out)
    assert entry_names(out) == ["mine"]


@pytest.mark.fault(21)
def test_partial_directories_of_killed_processes_are_removed(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "target"
    stale = target / ".out.x8f3k.partial"
    stale.mkdir(parents=True)
    (stale / "model.safetensors").write_bytes(bytes(99))
    (target / ".out2.aaaa.partial").mkdir()
    convert(source, target / "out")
    assert entry_names(target) == [".out2.aaaa.partial", "out"]


def _convert_in_child(
    source: Path, destination: Path, dtype: str, start: Any, results: Any
) -> None:
    calls: list[str] = []
    try:
        start.wait(60)
        convert(source, destination, dtype=dtype, progress=lambda label, *_: calls.append(label))
    except FileSystemError as error:
        results.put((error.message, calls))
    else:
        results.put(("done", calls))


def race(source: Path, destination: Path, dtypes: list[str]) -> list[tuple[str, list[str]]]:
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(len(dtypes)), context.Queue()
    children = [
        context.Process(target=_convert_in_child, args=(source, destination, dtype, start, results))
        for dtype in dtypes
    ]
    for child in children:
        child.start()
    found = [results.get(timeout=60) for _ in children]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    return found


@pytest.mark.fault(25)
def test_of_two_processes_one_converts_and_one_waits(tmp_path: Path, source: Path) -> None:
    for round_number in range(5):
        target = tmp_path / f"target{round_number}"
        found = race(source, target / "out", ["bfloat16", "bfloat16"])
        workers = [calls for _, calls in found if "converting" in calls]
        assert len(workers) == 1
        late = {"done", f"{target / 'out'} exists already"}
        assert "done" in {message for message, _ in found} <= late
        assert entry_names(target) == ["out"]
        Model.open(target / "out").checkpoint()


@pytest.mark.fault(25)
def test_a_process_that_waits_says_so(tmp_path: Path, source: Path) -> None:
    target, labels = tmp_path / "target" / "out", list[str]()
    target.parent.mkdir()
    waits = threading.Event()

    def progress(label: str, done: int, total: int) -> None:
        labels.append(label)
        if label == "waiting for another process":
            waits.set()

    with ThreadPoolExecutor(1) as pool:
        with exclusive_lock(target):
            waiting = pool.submit(convert, source, target, progress=progress)
            assert waits.wait(60) and not target.exists()
            convert(source, target.with_name("other"))
            target.with_name("other").rename(target)
        waiting.result(60)
    assert "converting" not in labels and entry_names(target.parent) == ["out"]


def test_two_processes_with_different_dtypes_do_not_share(tmp_path: Path, source: Path) -> None:
    found = race(source, tmp_path / "target" / "out", ["bfloat16", "float32"])
    messages = sorted(message for message, _ in found)
    assert messages.count("done") == 1
    assert "meanwhile created from another source" in "".join(messages) or "exists" in "".join(
        messages
    )
    assert entry_names(tmp_path / "target") == ["out"]
