"""Decode with pipeline stages, each replaying its part of a step as a CUDA graph."""

import torch

from swiftchat.engine.comm.pipeline import Pipeline
from swiftchat.engine.gpu.steps.async_decode import can_replay
from swiftchat.engine.gpu.steps.decode_graphs import DecodeGraphs
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.engine.steps.runner import SampledStep, StepInputs
from swiftchat.errors import OutOfMemory


class PipelineDecode:
    """Replays this stage's part of decode steps.

    A step starts when the tokens of the previous one are known. Stages exchange the same messages
    with and without a graph, and their schedules are equal, so a stage that has no graph for a
    step can compute its part without one while the others replay theirs.
    """

    def __init__(self, graphs: DecodeGraphs, stages: Pipeline) -> None:
        self.graphs, self._stages = graphs, stages
        # For each row of the last step: sequence, block table and number of computed tokens.
        self._loaded: list[tuple[TokenSequence, list[int], int]] = []

    def compute(self, inputs: StepInputs) -> SampledStep | None:
        """Compute this stage's part of a step; return the tokens that the last stage sampled.

        None if it cannot be replayed. The host samples the steps of answers with grammars or
        adapters.
        """
        rows = inputs.step.rows
        sequences = [row.sequence for row in rows]
        is_plain = not any(s.constraint is not None or s.has_adapters for s in sequences)
        if inputs.needs_logits or not is_plain:
            return None
        if not can_replay(inputs.step, self.graphs.batch.max_rows):
            return None
        n = len(sequences)
        try:
            graph = self.graphs.graph(n)
        except (OutOfMemory, torch.OutOfMemoryError):
            self._loaded = []  # the failed capture may have overwritten the rows
            return None  # the step needs less memory without a graph
        if self._can_append(sequences):
            self.graphs.append_tokens(sequences)
        else:
            self.graphs.batch.load(sequences, inputs.seeds)
        self._loaded = [(s, s.block_table, s.num_computed) for s in sequences]
        stages, residual = self._stages, self.graphs.residual
        if not stages.is_first:
            residual[:n].copy_(stages.receive(n, residual.shape[1]))
            residual[n:].zero_()  # each step adds to the graph's unused rows, too
        graph.replay()
        if not stages.is_last:
            stages.send(residual[:n])
        sampled = stages.broadcast_from_last(self.graphs.sampled[:n].long())
        return SampledStep(rows, [[token] for token in sampled.tolist()])

    def _can_append(self, sequences: list[TokenSequence]) -> bool:
        """Return whether the rows hold these sequences, each with one more token.

        A sequence that was preempted meanwhile has a new block table.
        """
        return len(sequences) == len(self._loaded) and all(
            sequence is loaded
            and sequence.block_table is table
            and sequence.num_computed == num_computed + 1
            for sequence, (loaded, table, num_computed) in zip(sequences, self._loaded, strict=True)
        )
