"""all_gather of sharded logits equals the whole matmul."""

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.comm import all_gather
from swiftchat.cuda.ops.linear.linear import LinearInput, Norm, Workspace, linear, linear_send
from tests.support.gpu_ranks import hold_only_sentinels, peer_buffers, run_on_streams
from tests.support.kernels.case import DTYPES, Inputs, poisoned

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("world", "n", "hidden", "columns"), [(2, 1, 2048, 128256), (4, 5, 576, 1000), (3, 16, 48, 116)]
)
def test_gathered_columns_equal_the_whole_matmul(
    gpu: Gpu, dtype, world: int, n: int, hidden: int, columns: int
) -> None:
    make, width = Inputs(columns, dtype), -(-columns // (4 * world)) * 4
    buffers, spaces = peer_buffers(world, n * width), [Workspace(gpu, width) for _ in range(world)]
    x = make.normal(n, hidden, dtype=torch.float32)
    weight, norm = make.normal(world * width, hidden), Norm(make.normal(hidden), 1e-5)
    found = [poisoned(n, columns, dtype=torch.float32) for _ in range(world)]

    def work(rank: int) -> None:
        rows = weight[rank * width : min((rank + 1) * width, columns)]
        linear_send(gpu, LinearInput(x, norm=norm), rows, buffers[rank], spaces[rank])
        all_gather(gpu, found[rank], buffers[rank], width)

    run_on_streams(world, work)
    whole = poisoned(n, columns, dtype=torch.float32)
    linear(gpu, LinearInput(x, norm=norm), weight[:columns], whole, spaces[0])
    assert all(torch.equal(logits, whole) for logits in found)
    assert hold_only_sentinels(buffers)


def test_wrong_sizes_raise(gpu: Gpu) -> None:
    buffer, _ = peer_buffers(2, 64)
    with pytest.raises(ValueError, match="do not make 100 columns"):
        all_gather(gpu, torch.zeros(1, 100, device="cuda"), buffer, 32)
    with pytest.raises(ValueError, match="multiples of 4"):
        all_gather(gpu, torch.zeros(1, 62, device="cuda"), buffer, 31)
