"""Programs: structures and memory."""

import torch

from swiftchat.engine.cpu.native import RowSet
from swiftchat.engine.cpu.program import Program
from tests.support.native import ops as native_ops
from tests.support.native.ops import each_variant


@each_variant
def test_buffers_are_aligned_and_do_not_overlap(variant: str) -> None:
    widths = [(RowSet.TOKENS, 5), (RowSet.LOGITS, 33), (RowSet.TOKENS, 16)]
    program = Program(native_ops.pool(variant), [], widths)
    for num_tokens, num_logits in ((3, 1), (7, 5), (2, 2)):
        program.begin(num_tokens, num_logits)
        views = [program.buffer(i) for i in range(3)]
        for i, view in enumerate(views):
            view.fill_(i)
        assert all(view.data_ptr() % 64 == 0 for view in views)
        rows = (num_tokens, num_logits, num_tokens)
        for i, view in enumerate(views):
            assert torch.equal(view, torch.full((rows[i], widths[i][1]), float(i)))
        program.run(native_ops.run_inputs(num_tokens, logits_rows=range(num_logits)))
