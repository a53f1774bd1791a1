"""The thread pool: every chunk once and in order, the same results for all numbers of threads."""

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from swiftchat.engine.cpu.native import (
    ActAndMulOp,
    Activation,
    AddScaledOp,
    NormKind,
    NormOp,
    OpHeader,
    RowSet,
    SoftcapOp,
)
from swiftchat.engine.cpu.program import Pool
from tests.support.native.libraries import SOURCES, load
from tests.support.native.ops import each_variant, norm, run_inputs, run_ops

STRESS = Path(__file__).with_name("pool_stress.c")
POOL_SOURCES = [str(SOURCES / name) for name in ("pool.c", "thread_count.c")]


def compile_c(out: Path, *arguments: str) -> Path:
    command = [sys.executable, "-m", "ziglang", "cc", "-std=c11", "-O2", *arguments, "-o", str(out)]
    subprocess.run(command, check=True)
    return out


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("ziglang")
    out = tmp_path_factory.mktemp("pool") / "stress"
    return compile_c(out, "-fno-sanitize=all", str(STRESS), *POOL_SOURCES, "-lpthread")


@pytest.mark.parametrize("num_threads", [1, 2, 3, 8])
def test_each_chunk_is_computed_once_and_in_order(stress: Path, num_threads: int) -> None:
    # On a busy machine each of some 120 phases waits for a thread that has lost its core.
    command = [str(stress), str(num_threads), "4", str(num_threads)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "0 errors\n")


@each_variant
def test_results_do_not_depend_on_the_number_of_threads(variant: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(37, 1000, generator=generator), torch.randn(1000, generator=generator)
    tokens = OpHeader(row_set=RowSet.TOKENS)
    ops = []
    for _ in range(10):
        ops += [
            NormOp(header=tokens, x=0, out=1, norm=norm(NormKind.RMS, weight)),
            ActAndMulOp(header=tokens, x=1, out=1, activation=Activation.GELU),
            AddScaledOp(header=tokens, x=1, out=0, alpha=1.0, beta=0.3),
            SoftcapOp(header=tokens, x=0, cap=2.0),
        ]
    widths = [(RowSet.TOKENS, 1000)] * 2
    expected = run_ops(variant, ops, widths, {0: x}, run_inputs(37), num_threads=1)
    for num_threads in range(2, 9):
        found = run_ops(variant, ops, widths, {0: x}, run_inputs(37), num_threads)
        assert all(map(torch.equal, found, expected))


def test_pool_ends_its_threads() -> None:
    def count() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    if not Path("/proc/self/task").exists():
        pytest.skip("threads are counted in /proc")
    before = count()
    pools = [Pool(load("plain"), 5) for _ in range(3)]
    assert count() == before + 3 * 4
    for pool in pools:
        pool.close()
    assert count() == before


class SimulatedThreads:
    """The choice of the number of threads, with simulated runs."""

    def __init__(self, library: ctypes.CDLL, most: int) -> None:
        self._library, self._most = library, most
        self._state = (ctypes.c_int32 * 100)()
        library.thread_count_create(self._state, most)
        self.now_ns = 0

    @property
    def active(self) -> int:
        assert self._state[0] == self._most
        return self._state[1]

    def run(self, seconds: float, step: Callable[[int], tuple[float, float]]) -> float:
        """Simulate runs of `step(threads)`, ms and ms of stalls; return the mean of `active`."""
        start, end, weighted = self.now_ns, self.now_ns + round(seconds * 1e9), 0
        while self.now_ns < end:
            run_ns, stall_ns = (round(ms * 1e6) for ms in step(self.active))
            self.now_ns += run_ns
            weighted += self.active * run_ns
            arguments = map(ctypes.c_uint64, (self.now_ns, run_ns, 1000, stall_ns))
            self._library.thread_count_update(self._state, *arguments)
        return weighted / (self.now_ns - start)


@pytest.fixture(scope="module")
def thread_count(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    pytest.importorskip("ziglang")
    out = tmp_path_factory.mktemp("pool") / "thread_count.so"
    return ctypes.CDLL(str(compile_c(out, "-shared", "-fPIC", POOL_SOURCES[1])))


def test_fewer_threads_while_a_core_is_busy(thread_count: ctypes.CDLL) -> None:
    threads = SimulatedThreads(thread_count, 2)
    assert threads.run(1, lambda n: (5 / n, 0)) == 2
    # One of two cores is busy: half of the time the second thread does not run.
    threads.run(0.5, lambda n: (6 if n == 2 else 5, 3 if n == 2 else 0))
    assert threads.run(5, lambda n: (6 if n == 2 else 5, 3 if n == 2 else 0)) < 1.1
    threads.run(3, lambda n: (5 / n, 0))
    assert threads.run(1, lambda n: (5 / n, 0)) == 2


def test_all_threads_in_spite_of_stalls(thread_count: ctypes.CDLL) -> None:
    threads = SimulatedThreads(thread_count, 8)
    assert threads.run(20, lambda n: (8 / n, 0.1)) > 7.9


def test_several_busy_cores(thread_count: ctypes.CDLL) -> None:
    threads = SimulatedThreads(thread_count, 8)

    def three_busy_cores(n: int) -> tuple[float, float]:
        return (8 / n, 0) if n <= 5 else (2.5, 1.2)

    threads.run(3, three_busy_cores)
    assert 4.8 <= threads.run(5, three_busy_cores) <= 5.2
