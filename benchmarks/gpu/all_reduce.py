"""All-reduce of a decode step's sizes between the GPUs of this machine, in CUDA graphs.

Compares swiftchat's kernel (with the residual add, and with a norm after it), NCCL and torch's
symmetric memory in one run, each in a graph of its own. Prints µs per all-reduce: the median of
the slowest rank. NVLink multicast stays off.

    python benchmarks/gpu/all_reduce.py --world 2
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.comm import all_reduce
from swiftchat.cuda.ops.layers.norm import norm
from swiftchat.cuda.peer_memory import PeerBuffer, PeerMemory

REPEATS, ROUNDS = 100, 15
HIDDEN_SIZE = 4096  # elements of a row


def timed(work: Callable[[int], None]) -> float:
    """Median µs of one call of `work` in a graph of many calls."""
    for i in range(4):
        work(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(REPEATS):
            work(i)
    times = []
    for _ in range(ROUNDS):
        dist.barrier()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        graph.replay()  # synchronizes the ranks before the timing starts
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end) / REPEATS)
    return statistics.median(times)


def measure(rank: int, world: int, folder: str, sizes: list[int]) -> None:
    os.environ.update(
        NCCL_NVLS_ENABLE="0",
        TORCH_SYMM_MEM_DISABLE_MULTICAST="1",
        MASTER_ADDR="127.0.0.1",
        NCCL_SOCKET_IFNAME="lo",
    )
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=world, device_id=device)
    gpu = Gpu(device, CubinCache(None))

    def all_gather_bytes(local: bytes) -> list[bytes]:
        gathered: list[bytes] = [b""] * world
        dist.all_gather_object(gathered, local)
        return gathered

    memory = PeerMemory(gpu, 16 * world * max(sizes), rank, all_gather_bytes)
    peer_buffers = [memory.allocate(max(sizes)) for _ in range(2)]
    dist.barrier()
    found = {
        f"{2 * num_elements} bytes of bf16": time_all_reduces(gpu, peer_buffers, num_elements)
        for num_elements in sizes
    }
    by_rank: list[Any] = [None] * world
    dist.all_gather_object(by_rank, found)
    if rank == 0:
        merged = {
            size: {name: max(times[size][name] for times in by_rank) for name in row}
            for size, row in found.items()
        }
        print(
            json.dumps(
                {"world": world, "gpu": torch.cuda.get_device_name(), "us": merged}, indent=1
            ),
            flush=True,
        )
    memory.close()
    dist.destroy_process_group()


def time_all_reduces(
    gpu: Gpu, peer_buffers: list[PeerBuffer], num_elements: int
) -> dict[str, float]:
    """Median µs of each all-reduce of this many bf16 elements."""
    x = torch.zeros(num_elements // HIDDEN_SIZE, HIDDEN_SIZE, device=gpu.device)
    part = torch.randn_like(x).bfloat16()
    weight, out, nccl_part = torch.ones_like(part[0]), torch.empty_like(part), part.clone()

    def with_norm(i: int) -> None:
        all_reduce(gpu, x, peer_buffers[i % 2], part)
        norm(gpu, x, weight, 1e-5, out)

    return {
        "ours": timed(lambda i: all_reduce(gpu, x, peer_buffers[i % 2], part)),
        "ours + norm": timed(with_norm),
        "nccl": timed(lambda i: dist.all_reduce(nccl_part)),
        **time_symmetric_memory(part),
    }


def time_symmetric_memory(part: torch.Tensor) -> dict[str, float]:
    """µs of torch's symmetric-memory all-reduces, one-shot and two-shot."""
    import torch.distributed._symmetric_memory as symm_mem

    group = dist.group.WORLD
    assert group is not None
    shared = symm_mem.empty(part.numel(), dtype=part.dtype, device=part.device)
    symm_mem.rendezvous(shared, group.group_name)
    shared.copy_(part.view(-1))
    name = group.group_name
    return {
        "one-shot": timed(lambda i: torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", name)),
        "two-shot": timed(lambda i: torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", name)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", type=int, default=torch.cuda.device_count())
    parser.add_argument("--elements", type=int, nargs="+", default=[4096, 8192, 65536])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(measure, (args.world, str(Path(folder)), args.elements), nprocs=args.world)


if __name__ == "__main__":
    main()
