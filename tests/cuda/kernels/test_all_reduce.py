"""all_reduce: the sum in the order of the ranks, bitwise equal on all ranks."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.comm import all_reduce
from swiftchat.cuda.ops.linear.linear import LinearInput, Workspace, linear_send
from tests.support.gpu_ranks import hold_only_sentinels, peer_buffers, run_on_streams
from tests.support.kernels.case import DTYPES, Inputs

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize(("n", "hidden"), [(1, 4096), (3, 576), (16, 1024), (1, 4)])
def test_parts_are_added_in_order(gpu: Gpu, dtype, world: int, n: int, hidden: int) -> None:
    """Many rounds over two inboxes in turn: no rank may run ahead or read an old part."""
    make, rounds = Inputs(n * hidden + world, dtype), 6
    buffers = [peer_buffers(world, n * hidden + 8) for _ in range(2)]
    parts = [[make.normal(n, hidden, scale=3) for _ in range(world)] for _ in range(rounds)]
    before = make.normal(n, hidden, dtype=torch.float32, scale=50)
    streams = [before.clone() for _ in range(world)]

    def work(rank: int) -> None:
        for i in range(rounds):
            all_reduce(gpu, streams[rank], buffers[i % 2][rank], parts[i][rank])

    run_on_streams(world, work)
    expected = before
    for of_round in parts:
        total = torch.zeros_like(expected)
        for part in of_round:
            total += part.float()
        expected = expected + total
    for stream in streams:
        assert torch.equal(stream, expected)
    assert all(hold_only_sentinels(buffer) for buffer in buffers)


@pytest.mark.parametrize("world", [2, 3, 5, 8])
def test_all_world_sizes(gpu: Gpu, world: int) -> None:
    """Run the ranks one after the other with all parts present, since eight may not fit one GPU."""
    make, numbers = Inputs(world), 1000
    parts = [make.normal(1, numbers) for _ in range(world)]
    before, total = make.normal(1, numbers), torch.zeros(1, numbers, device="cuda")
    for part in parts:
        total += part
    for rank, buffer in enumerate(peer_buffers(world, numbers)):
        buffer.own.copy_(torch.cat(parts))
        buffer.own[rank].view(torch.int32).fill_(-1)
        stream = before.clone()
        all_reduce(gpu, stream, buffer, parts[rank])
        assert torch.equal(stream, before + total)
        assert hold_only_sentinels([buffer])
        buffer.own.copy_(torch.cat(parts))
        buffer.own[rank].view(torch.int32).fill_(-1)
        stream = torch.full_like(before, float("nan"))
        all_reduce(gpu, stream, buffer, parts[rank], accumulate=False)
        assert torch.equal(stream, total)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k", "rows"), [(1, 4096, 4096), (5, 14336, 576), (16, 1536, 1000)])
def test_parts_sent_by_linear(gpu: Gpu, dtype, n: int, k: int, rows: int) -> None:
    """The sum of row-parallel halves, one of them with split columns, equals the whole matmul."""
    make, world = Inputs(n + k, dtype), 2
    buffers, spaces = peer_buffers(world, n * rows), [Workspace(gpu, rows) for _ in range(world)]
    x = [make.normal(n, k) for _ in range(world)]
    weight = [make.normal(rows, k, scale=k**-0.5) for _ in range(world)]
    bias = make.normal(rows)
    before = make.normal(n, rows, dtype=torch.float32)
    streams = [before.clone() for _ in range(world)]

    def work(rank: int) -> None:
        own_bias = bias if rank == 0 else None
        linear_send(
            gpu, LinearInput(x[rank], bias=own_bias), weight[rank], buffers[rank], spaces[rank]
        )
        all_reduce(gpu, streams[rank], buffers[rank])

    run_on_streams(world, work)
    exact = sum(a.double() @ w.double().T for a, w in zip(x, weight, strict=True))
    expected = before.double() + exact + bias.double()
    assert torch.equal(streams[0], streams[1])
    assert (streams[0] - expected).norm() <= 1e-5 * expected.norm()
    assert hold_only_sentinels(buffers)


def test_nan_and_infinity_are_received(gpu: Gpu) -> None:
    """The sentinel's bit pattern as a result must not hang the group."""
    buffers = peer_buffers(2, 8)
    parts = [
        torch.full((1, 8), -1, dtype=torch.int32, device="cuda").view(torch.float32),
        torch.full((1, 8), float("inf"), device="cuda"),
    ]
    streams = [torch.zeros(1, 8, device="cuda") for _ in range(2)]
    run_on_streams(2, lambda rank: all_reduce(gpu, streams[rank], buffers[rank], parts[rank]))
    assert all(stream.isnan().all() for stream in streams)
    assert hold_only_sentinels(buffers)


def test_wrong_sizes_raise(gpu: Gpu) -> None:
    (buffer, _), x = peer_buffers(2, 64), torch.zeros(2, 48, device="cuda")
    with pytest.raises(ValueError, match="holds 64"):
        all_reduce(gpu, x, buffer, x)
    with pytest.raises(ValueError, match="multiple of 4"):
        all_reduce(gpu, x[:, :3].contiguous(), buffer)
