"""Peer buffers between processes, one for each GPU: needs two GPUs with peer access."""

import multiprocessing
from multiprocessing.connection import Connection

import pytest
import torch

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.comm import all_reduce
from swiftchat.cuda.peer_memory import PeerMemory

pytestmark = pytest.mark.gpu
NUMBERS, REPLAYS = 4096, 200


def part(rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(1, NUMBERS, generator=generator)


def be_rank(rank: int, world: int, others: list[Connection], result: Connection) -> None:
    """Replay a graph of two all-reduces and send the resulting stream."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    gpu = Gpu(device, CubinCache(None))

    def exchange(mine: bytes) -> list[bytes]:
        for connection in others:
            connection.send_bytes(mine)
        theirs = [connection.recv_bytes() for connection in others]
        return [*theirs[:rank], mine, *theirs[rank:]]

    memory = PeerMemory(gpu, 4 * 2 * world * NUMBERS, rank, exchange)
    boxes = [memory.allocate(NUMBERS) for _ in range(2)]
    x, mine = torch.zeros(1, NUMBERS, device=device), part(rank).to(device)
    for box in boxes:
        all_reduce(gpu, x, box, mine)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for box in boxes:
            all_reduce(gpu, x, box, mine)
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    result.send(x.cpu().numpy().tobytes())
    for connection in others:  # no rank frees memory that another rank still uses
        connection.send_bytes(b"done")
    for connection in others:
        connection.recv_bytes()
    memory.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("world", [pytest.param(n, marks=pytest.mark.gpus(n)) for n in (2, 4)])
def test_ranks_in_separate_processes_get_identical_sums(world: int) -> None:
    context = multiprocessing.get_context("spawn")
    ends: list[list[Connection]] = [[] for _ in range(world)]
    for a in range(world):
        for b in range(a + 1, world):
            left, right = context.Pipe()
            ends[a].append(left)
            ends[b].append(right)
    results, processes = [], []
    for rank in range(world):
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=be_rank, args=(rank, world, ends[rank], sending))
        process.start()
        results.append(receiving)
        processes.append(process)
    found = [receiving.recv() for receiving in results]
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    total = torch.zeros(1, NUMBERS)
    for rank in range(world):
        total += part(rank)
    expected = torch.zeros(1, NUMBERS)
    for _ in range(2 * (REPLAYS + 1)):
        expected += total
    assert all(bits == expected.numpy().tobytes() for bits in found)
