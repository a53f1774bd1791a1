"""Low-rank changes of the rows of a matmul against fp64."""

import torch

from swiftchat.engine.cpu.low_rank import NativeDeltas
from swiftchat.engine.cpu.native import LowRankOp, OpHeader, RowSet
from swiftchat.engine.linear.adapted import Delta, LowRankPart
from tests.support.cases import each_case
from tests.support.native.ops import each_variant, run_inputs, run_ops


@each_variant
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_have_the_changes_of_their_set(variant: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    width, columns, num_rows = 301, 77, 5
    x, y, bias = random(num_rows, columns), random(num_rows, width), random(width)
    parts = [
        LowRankPart(0, random(9, columns).to(dtype), random(130, 9).to(dtype)),
        LowRankPart(130, random(2, columns).to(dtype), random(171, 2).to(dtype)),
    ]
    whole = LowRankPart(200, None, random(33, columns).to(dtype))
    deltas = [
        Delta(parts, gain=random(width)),
        Delta([whole], offset=random(width)),
        Delta(),
    ]
    native = NativeDeltas(4)
    for i, delta in enumerate(deltas):
        native.set(i, delta)
    numbers = [0, -1, 1, 0, 2]
    op = LowRankOp(
        header=OpHeader(row_set=RowSet.TOKENS),
        x=0,
        out=1,
        num_sets=4,
        deltas=native.array,
        bias=bias.data_ptr(),
    )
    inputs = run_inputs(num_rows, sets=numbers)
    buffers = [(RowSet.TOKENS, columns), (RowSet.TOKENS, width)]
    found = run_ops(variant, [op], buffers, {0: x, 1: y}, inputs)[1]
    expected = (y - bias).double()
    for i, number in enumerate(numbers):
        if number >= 0:
            delta = deltas[number]
            if delta.gain is not None:
                expected[i] *= delta.gain
            if delta.offset is not None:
                expected[i] += delta.offset
            for part in delta.parts:
                narrow = x[i].double()
                if part.a is not None:
                    narrow = part.a.double() @ narrow
                expected[i, part.first : part.first + len(part.b)] += part.b.double() @ narrow
    torch.testing.assert_close(found.double(), expected + bias, rtol=1e-5, atol=1e-4)
    assert torch.equal(found[1], y[1])
