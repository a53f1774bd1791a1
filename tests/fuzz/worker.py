"""Cases in a process of their own, whose time, memory and end are watched.

A worker is forked from the process that made the seeds and imported the references. It writes the
case it is at to shared memory, so that the parent knows which case was running when it ends.
"""

import mmap
import os
import resource
import select
import shutil
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.fuzz.target import Difference, NoReferenceError, Target

_COUNTS = ("accepted", "compared", "refused")
_STATE = struct.Struct("<qqd3q")  # case, phase, its processor time at the beginning, counts
_LOADING, _COMPARING, _IDLE = range(3)
_MIB = 1 << 20
_PACKAGES = ("chat", "engine", "errors", "tokenizer", "weights")


@dataclass(frozen=True)
class Limits:
    """Limits of a case: processor time, and memory above that of the worker at its start.

    A case that does not use the processor, because it waits for something, ends after `wait_s`.
    """

    cpu_s: float = 5.0
    memory_bytes: int = 512 * _MIB
    wait_s: float = 120.0


@dataclass(frozen=True)
class Failure:
    """A case that failed; `reason` is one line, `detail` may be a traceback."""

    index: int
    reason: str
    detail: str = ""


@dataclass
class Result:
    """Numbers of cases by outcome, and the failures.

    Of the `accepted` cases, `compared` had a reference that accepted them too.
    """

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    cpu_s: float = 0.0

    def add(self, other: "Result") -> None:
        self.counts += other.counts
        self.failures += other.failures
        self.cpu_s += other.cpu_s


def run_cases(
    target: Target, indices: Sequence[int], data: Callable[[int], bytes], limits: Limits
) -> Result:
    """Run the cases `data(index)`; go on with a new worker behind one that ends a worker."""
    result, start = Result(), 0
    while start < len(indices):
        done, failure = _run_worker(target, indices[start:], data, limits, result)
        start += done
        if failure is not None:
            result.failures.append(failure)
    result.counts["cases"] += len(indices)
    result.counts["failures"] += len(result.failures)
    return result


def _run_worker(
    target: Target,
    indices: Sequence[int],
    data: Callable[[int], bytes],
    limits: Limits,
    result: Result,
) -> tuple[int, Failure | None]:
    """Return the number of cases that are done, and the failure that ended the worker."""
    state = mmap.mmap(-1, mmap.PAGESIZE)
    state[: _STATE.size] = _STATE.pack(0, _IDLE, 0.0, 0, 0, 0)
    read_end, write_end = os.pipe()
    folder = tempfile.mkdtemp(prefix="fuzz-")
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        _Worker(target, limits, state, write_end, Path(folder)).work(indices, data)
    os.close(write_end)
    try:
        reason = _watch(pid, state, limits, read_end, result)
    finally:
        os.close(read_end)
        shutil.rmtree(folder, ignore_errors=True)
    number, phase, _, *counts = _STATE.unpack(state[: _STATE.size])
    result.counts += Counter(dict(zip(_COUNTS, counts, strict=True)))
    if reason is None:
        return len(indices), None
    if phase == _COMPARING:  # the reference has failed, not the program
        return number + 1, None
    return number + 1, Failure(indices[number], reason)


def _watch(pid: int, state: mmap.mmap, limits: Limits, pipe: int, result: Result) -> str | None:
    """Wait for the end of a worker; return why it ended early, None if it did all its work."""
    killed, texts = None, []
    # The processor time at the last change of it, and when that was.
    seen, changed = 0.0, time.monotonic()
    while True:
        if select.select([pipe], [], [], 0.25)[0]:
            text = os.read(pipe, 1 << 16)
            if not text:
                break
            texts.append(text)
        begin = _STATE.unpack(state[: _STATE.size])[2]
        used = _cpu_s(pid)
        if used != seen:
            seen, changed = used, time.monotonic()
        # The worker reports it itself if the case ends; this is for those that do not.
        if begin and used - begin > limits.cpu_s + 1:
            killed = f"more than {limits.cpu_s:g} s of processor time"
        elif time.monotonic() - changed > limits.wait_s:
            killed = f"waits for more than {limits.wait_s:g} s"
        if killed:
            os.kill(pid, 9)
            break
    _, status, usage = os.wait4(pid, 0)
    result.cpu_s += usage.ru_utime + usage.ru_stime
    for line in b"".join(texts).decode().split("\0")[:-1]:
        index, reason, detail = line.split("\1")
        result.failures.append(Failure(int(index), reason, detail))
    if killed:
        return killed
    if os.WIFSIGNALED(status):
        return f"ended by signal {os.WTERMSIG(status)}"
    return None if os.WEXITSTATUS(status) == 0 else f"exit status {os.WEXITSTATUS(status)}"


def _cpu_s(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


class _Worker:
    """The cases in the forked process, which `work` ends."""

    def __init__(
        self, target: Target, limits: Limits, state: mmap.mmap, pipe: int, folder: Path
    ) -> None:
        self._target, self._limits, self._state = target, limits, state
        self._pipe, self._folder = pipe, folder
        self._counts: Counter[str] = Counter()

    def work(self, indices: Sequence[int], data: Callable[[int], bytes]) -> None:
        status = 1
        try:
            devnull = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(devnull, descriptor)
            self._base_bytes = _peak_bytes()
            self._limit_memory()
            for number, index in enumerate(indices):
                self._run(number, index, data(index))
            status = 0
        finally:
            os._exit(status)

    def _limit_memory(self) -> None:
        # Address space is not memory, so this is far above the limit; the peak is measured.
        size = psutil.Process().memory_info().vms + 4 * self._limits.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def _run(self, number: int, index: int, data: bytes) -> None:
        begin, peak = time.process_time(), _peak_bytes()
        self._mark(number, _LOADING, begin)
        accepted, loaded = False, None
        folder = self._folder / str(index)
        folder.mkdir()
        try:
            loaded = self._target.load(data, folder)
            accepted = True
            self._counts["accepted"] += 1
        except self._target.refusals:
            self._counts["refused"] += 1
        except BaseException as error:  # noqa: BLE001 - the result of a case
            self._report(index, _reason(error), traceback.format_exc())
        used, grown = time.process_time() - begin, _peak_bytes() - max(peak, self._base_bytes)
        if used > self._limits.cpu_s:
            self._report(index, f"more than {self._limits.cpu_s:g} s of processor time")
        if grown > self._limits.memory_bytes:
            self._report(index, f"more than {self._limits.memory_bytes >> 20} MiB of memory")
        self._mark(number, _COMPARING, time.process_time())
        if accepted and self._target.compare is not None:
            self._compare(index, data, folder, loaded)
        self._mark(number, _IDLE, 0.0)
        shutil.rmtree(folder, ignore_errors=True)

    def _compare(self, index: int, data: bytes, folder: Path, loaded: object) -> None:
        assert self._target.compare is not None
        try:
            self._target.compare(data, folder, loaded)
            self._counts["compared"] += 1
        except NoReferenceError:
            pass
        except Difference as difference:
            self._report(index, f"difference: {str(difference)[:300]}")
        except BaseException as error:  # noqa: BLE001 - a mistake in the test itself
            self._report(index, f"comparison: {_reason(error)}", traceback.format_exc())

    def _mark(self, number: int, phase: int, begin: float) -> None:
        counts = (self._counts[name] for name in _COUNTS)
        self._state[: _STATE.size] = _STATE.pack(number, phase, begin, *counts)

    def _report(self, index: int, reason: str, detail: str = "") -> None:
        line = f"{index}\1{reason}\1{detail[-4000:]}\0"
        os.write(self._pipe, line.encode("utf-8", "replace"))


def _reason(error: BaseException) -> str:
    """Return the type of an exception and the innermost place of the program that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    root = Path(__file__).resolve().parents[2]
    places = [(Path(frame.filename).resolve(), frame.name) for frame in frames]
    own = [(path.relative_to(root), name) for path, name in places if path.is_relative_to(root)]
    path, name = ([one for one in own if one[0].parts[0] in _PACKAGES] or own or places)[-1]
    text = " ".join(str(error).split())[:160]
    return f"{type(error).__name__} in {path}:{name}: {text}"


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
