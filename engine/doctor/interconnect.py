"""The interconnect of this machine's GPUs: link types and the time of an all-reduce.

`swiftchat.engine.doctor.interconnect FD RANK SIZE PARENT` is one of the measuring
processes, each on a GPU, so that a GPU or driver that hangs does not block the report.
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
from swiftchat.errors.interpreter import python_module

NUM_BYTES = 8192  # bf16: the all-reduce of a decode step with the hidden size of Llama 3 8B
MAX_GPUS = 8  # supported by the peer-to-peer all-reduce
_HIDDEN_SIZE = NUM_BYTES // 2
_REPEATS, _ROUNDS = 100, 15
_LIMIT_S, _NVIDIA_SMI_LIMIT_S = 60.0, 10.0


def link_types(count: int) -> list[list[str]]:
    """Return the matrix of link types between GPUs, such as `NV18` or `PIX`; [] if unknown.

    `nvidia-smi` lists all GPUs; if torch sees another number of them, the result is [].
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        done = subprocess.run(
            [tool, "topo", "-m"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_NVIDIA_SMI_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_topology(done.stdout.decode(errors="replace"), count)


def parse_topology(text: str, count: int) -> list[list[str]]:
    """Parse the GPU matrix of `nvidia-smi topo -m`; [] unless it has `count` GPUs.

    A row has `GPU0`, the link types to GPUs and to network cards, and other columns.
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    rows = [line.split() for line in plain.splitlines() if re.match(r"GPU\d+\s", line)]
    if len(rows) != count or any(len(row) <= count for row in rows):
        return []
    return [row[1 : count + 1] for row in rows]


def measure(size: int, limit_s: float = _LIMIT_S) -> dict[str, Any]:
    """Measure an all-reduce of `NUM_BYTES` on the first `size` GPUs, for at most `limit_s`.

    The result has the time on the slowest GPU in microseconds (`us`), or an `error`.
    """
    facts: dict[str, Any] = {"gpus": size, "bytes": NUM_BYTES, "us": None, "error": None}
    rendezvous_fd = os.memfd_create("swiftchat-links")
    ranks = [_start_rank(rendezvous_fd, rank, size) for rank in range(size)]
    deadline = time.monotonic() + limit_s
    try:
        times = []
        for rank, process in enumerate(ranks):
            out, err = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
            if process.returncode != 0:
                lines = err.decode(errors="replace").strip().splitlines()
                status = f"GPU {rank}: status {process.returncode}"
                facts["error"] = f"{status}, {lines[-1]}" if lines else status
                return facts
            times.append(float(json.loads(out)))
        facts["us"] = max(times)
    except subprocess.TimeoutExpired:
        facts["error"] = f"GPU {rank} was not ready after {limit_s:.0f} s"
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
        os.close(rendezvous_fd)
    return facts


def _start_rank(rendezvous_fd: int, rank: int, size: int) -> "subprocess.Popen[bytes]":
    numbers = map(str, (rendezvous_fd, rank, size, os.getpid()))
    return subprocess.Popen(
        python_module("swiftchat.engine.doctor.interconnect", *numbers),
        pass_fds=[rendezvous_fd],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _measure_rank(rendezvous_fd: int, rank: int, size: int) -> float:
    """Return this rank's median time of a captured all-reduce in µs; all ranks call it."""
    import torch
    import torch.distributed as dist

    from swiftchat.cuda.cubin_cache import CubinCache
    from swiftchat.cuda.gpu import Gpu
    from swiftchat.cuda.ops.comm import all_reduce
    from swiftchat.cuda.peer_memory import PeerMemory
    from swiftchat.engine.comm.communicator import GlooCommunicator

    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    stores: Any = dist  # torch's stubs lack FileStore
    store = stores.FileStore(f"/proc/self/fd/{rendezvous_fd}", size)
    communicator = GlooCommunicator(store, rank, size, _LIMIT_S)
    gpu = Gpu(device, CubinCache(None))
    memory = PeerMemory(gpu, 2 * 4 * size * _HIDDEN_SIZE, rank, communicator.all_gather_bytes)
    buffers = [memory.allocate(_HIDDEN_SIZE) for _ in range(2)]
    x = torch.zeros(1, _HIDDEN_SIZE, device=device)
    partial = torch.zeros(1, _HIDDEN_SIZE, device=device, dtype=torch.bfloat16)

    def reduce_repeatedly(repeats: int) -> None:
        for i in range(repeats):
            all_reduce(gpu, x, buffers[i % 2], partial)

    reduce_repeatedly(4)  # compile and load the kernel before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        reduce_repeatedly(_REPEATS)
    times: list[float] = []
    for _ in range(_ROUNDS):
        communicator.min_across_ranks(0)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        graph.replay()  # synchronizes the GPUs before the measured replay
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end) / _REPEATS)
    communicator.min_across_ranks(0)  # another rank may still write to this rank's memory
    return statistics.median(times)


def main() -> None:
    *numbers, parent = map(int, sys.argv[1:])
    exit_with_parent(parent)
    print(json.dumps(_measure_rank(*numbers)), flush=True)
    os._exit(0)  # freeing the shared memory could wait for other processes


if __name__ == "__main__":
    main()
