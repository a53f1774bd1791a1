"""Verification steps of speculation as CUDA graphs: several tokens of a sequence in one step."""

from collections.abc import Sequence

import torch

from swiftchat.engine.gpu.steps.graph_runner import GraphRunner
from swiftchat.engine.model.hidden_states import HiddenStates
from swiftchat.engine.sampling.distributed import verified
from swiftchat.engine.schedule.sequence import Step, TokenSequence
from swiftchat.errors import OutOfMemory

# Rows of the captured steps. With 2 or 4 rows a step takes no less time than with 8.
VERIFIED_ROWS = (8, 16)


class Verification:
    """Computes and samples the last token and the proposed tokens of sequences.

    Each of them is a row of a decode step. The rows of a sequence share its blocks, and each layer
    stores the keys and values of all rows before any row attends to them. The rejected tokens'
    slots are written again later.
    """

    def __init__(self, runner: GraphRunner) -> None:
        self.runner = runner
        self.hidden: HiddenStates | None = None  # of all rows of the last step

    @property
    def max_rows(self) -> int:
        return self.runner.sizes[-1]

    def sample(self, step: Step, seeds: Sequence[int]) -> list[list[int]] | None:
        """Return the next tokens of each row, as `DistributedSampler.sample_batch`.

        None for a step that cannot be replayed.
        """
        rows = step.rows
        num_rows = sum(1 + len(row.proposed) for row in rows)
        is_decoding = all(row.num_tokens == 1 and row.reaches_end for row in rows)
        has_proposed = any(row.proposed for row in rows)
        is_prepared = not (step.copies or step.stored)
        if not (is_prepared and is_decoding and has_proposed) or num_rows > self.max_rows:
            return None
        if any(_has_unverified(row.sequence) for row in rows):
            return None
        batch = self.runner.batch
        try:
            self.runner.graph(num_rows)
        except (OutOfMemory, torch.OutOfMemoryError):
            return None  # the step needs less memory without a graph
        batch.load_rows(rows, seeds)
        number = batch.num_steps
        self.runner.replay(num_rows)
        self.hidden = self.runner.copy_hidden(num_rows)
        torch.cuda.current_stream().synchronize()
        sampled = iter(batch.ring[number % len(batch.ring), :num_rows].tolist())
        return [
            verified([next(sampled) for _ in range(1 + len(row.proposed))], row.proposed)
            for row in rows
        ]


def _has_unverified(sequence: TokenSequence) -> bool:
    """Return whether a sequence uses what the captured steps do not have."""
    is_constrained = sequence.constraint is not None
    if sequence.params.pooling is not None:  # an embedding samples no token
        return True
    return is_constrained or sequence.has_adapters or bool(sequence.params.unverified_controls)
