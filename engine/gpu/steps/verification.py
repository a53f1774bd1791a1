"""Verification steps of speculation as CUDA graphs: several tokens of a sequence in one step."""

import torch

from swiftchat.engine.gpu.steps.decode_graphs import DecodeGraphs
from swiftchat.engine.sampling.distributed import verified
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.engine.steps.runner import SampledStep, StepInputs
from swiftchat.errors import OutOfMemory

# Rows of the captured steps. With 2 or 4 rows a step takes no less time than with 8.
VERIFIED_ROWS = (8, 16)


class Verification:
    """Computes and samples the last token and the proposed tokens of sequences.

    Each of them is a row of a decode step. The rows of a sequence share its blocks, and each layer
    stores the keys and values of all rows before any row attends to them. The rejected tokens'
    slots are written again later.
    """

    def __init__(self, graphs: DecodeGraphs) -> None:
        self.graphs = graphs

    @property
    def max_rows(self) -> int:
        return self.graphs.sizes[-1]

    def compute(self, inputs: StepInputs) -> SampledStep | None:
        """Return the next tokens of each row; None for a step that cannot be replayed."""
        step, rows = inputs.step, inputs.step.rows
        num_rows = sum(1 + len(row.proposed) for row in rows)
        is_decoding = all(row.num_tokens == 1 and row.reaches_end for row in rows)
        has_proposed = any(row.proposed for row in rows)
        is_prepared = not (inputs.needs_logits or step.copies or step.stored)
        if not (is_prepared and is_decoding and has_proposed) or num_rows > self.max_rows:
            return None
        if any(_has_unverified(row.sequence) for row in rows):
            return None
        batch = self.graphs.batch
        try:
            self.graphs.graph(num_rows)
        except (OutOfMemory, torch.OutOfMemoryError):
            return None  # the step needs less memory without a graph
        batch.load_rows(rows, inputs.seeds)
        number = batch.num_steps
        self.graphs.replay(num_rows)
        torch.cuda.current_stream().synchronize()
        sampled = iter(batch.ring[number % len(batch.ring), :num_rows].tolist())
        tokens = [
            verified([next(sampled) for _ in range(1 + len(row.proposed))], row.proposed)
            for row in rows
        ]
        return SampledStep(rows, tokens)


def _has_unverified(sequence: TokenSequence) -> bool:
    """Return whether a sequence uses what the captured steps do not have."""
    is_constrained = sequence.constraint is not None
    return is_constrained or sequence.has_adapters or bool(sequence.params.unverified_controls)
