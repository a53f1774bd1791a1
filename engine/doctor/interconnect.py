"""How the GPUs of this machine are linked, and how long they take to add something up.

`python -m swiftchat.engine.doctor.interconnect FD RANK SIZE PARENT` is one of the
processes that measure it, each on a GPU; a GPU or driver that hangs, hangs only these.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any

from swiftchat.engine.api.child_process import exit_with_parent

NUM_BYTES = 8192  # of bf16: what a decode step of a model as wide as Llama 3 8B adds up
MOST_GPUS = 8  # that exchange sums through each other's memory
_NUMBERS = NUM_BYTES // 2
_REPEATS, _ROUNDS = 100, 15
_LIMIT_S, _TOOL_LIMIT_S = 60.0, 10.0


def link_names(count: int) -> list[list[str]]:
    """From each GPU to each how `nvidia-smi` calls their link: `NV18`, `PIX` …; [] if unknown.

    It counts all GPUs, torch those it may use; where these are not as many, nothing is known.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        done = subprocess.run(
            [tool, "topo", "-m"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TOOL_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_topology(done.stdout.decode(errors="replace"), count)


def parse_topology(text: str, count: int) -> list[list[str]]:
    """The part of `nvidia-smi topo -m` that is about GPUs; [] if it is not about `count` of them.

    A row is `GPU0`, then the links to GPUs, to network cards, and other columns.
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    rows = [line.split() for line in plain.splitlines() if re.match(r"GPU\d+\s", line)]
    if len(rows) != count or any(len(row) <= count for row in rows):
        return []
    return [row[1 : count + 1] for row in rows]


def measure(size: int, limit_s: float = _LIMIT_S) -> dict[str, Any]:
    """Microseconds that an all-reduce of `NUM_BYTES` takes the slowest of the first `size` GPUs.

    Among the facts is the error, if there is one. Takes `limit_s` at most.
    """
    facts: dict[str, Any] = {"gpus": size, "bytes": NUM_BYTES, "us": None, "error": None}
    meeting = os.memfd_create("swiftchat-links")
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "swiftchat.engine.doctor.interconnect",
                str(meeting),
                str(rank),
                str(size),
                str(os.getpid()),
            ],
            pass_fds=[meeting],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(size)
    ]
    deadline = time.monotonic() + limit_s
    try:
        times = []
        for rank, process in enumerate(ranks):
            out, err = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
            if process.returncode != 0:
                words = err.decode(errors="replace").strip().splitlines()
                status = f"GPU {rank}: status {process.returncode}"
                facts["error"] = f"{status}, {words[-1]}" if words else status
                return facts
            times.append(float(json.loads(out)))
        facts["us"] = max(times)
    except subprocess.TimeoutExpired:
        facts["error"] = f"GPU {rank} was not ready after {limit_s:.0f} s"
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
        os.close(meeting)
    return facts


def _measure_one(meeting: int, rank: int, size: int) -> float:
    """This rank's median of a captured all-reduce, in µs; all ranks call it."""
    import torch
    import torch.distributed as dist

    from swiftchat.cuda.cubin_cache import CubinCache
    from swiftchat.cuda.gpu import Gpu
    from swiftchat.cuda.ops.comm import all_reduce
    from swiftchat.cuda.peer_memory import PeerMemory
    from swiftchat.engine.comm.communicator import GlooCommunicator

    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    stores: Any = dist  # whose stubs do not have them
    store = stores.FileStore(f"/proc/self/fd/{meeting}", size)
    ranks, gpu = GlooCommunicator(store, rank, size, _LIMIT_S), Gpu(device, CubinCache(None))
    memory = PeerMemory(gpu, 2 * 4 * size * _NUMBERS, rank, ranks.all_gather_bytes)
    boxes = [memory.allocate(_NUMBERS) for _ in range(2)]
    x = torch.zeros(1, _NUMBERS, device=device)
    part = torch.zeros(1, _NUMBERS, device=device, dtype=torch.bfloat16)

    def work(repeats: int) -> None:
        for i in range(repeats):
            all_reduce(gpu, x, boxes[i % 2], part)

    work(4)  # compiled and loaded before it is captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work(_REPEATS)
    times: list[float] = []
    for _ in range(_ROUNDS):
        ranks.min_across_ranks(0)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        graph.replay()  # so that all are in step before the clock starts
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end) / _REPEATS)
    ranks.min_across_ranks(0)  # nobody may leave while others still write to its memory
    return statistics.median(times)


def main() -> None:
    exit_with_parent(int(sys.argv[4]))
    print(json.dumps(_measure_one(*map(int, sys.argv[1:4]))), flush=True)
    os._exit(0)  # freeing the shared memory may wait for the others


if __name__ == "__main__":
    main()
