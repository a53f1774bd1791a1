"""Decode with pipeline stages, each replaying its part of a step as a CUDA graph."""

from collections.abc import Sequence

import torch

from swiftchat.engine.comm.pipeline import Pipeline
from swiftchat.engine.gpu.steps.async_decode import can_replay
from swiftchat.engine.gpu.steps.graph_runner import GraphRunner
from swiftchat.engine.model.hidden_states import HiddenStates
from swiftchat.engine.schedule.sequence import Step, TokenSequence
from swiftchat.errors import OutOfMemory


class PipelineDecode:
    """Replays this stage's part of decode steps, with the interface of `AsyncDecode`.

    A step starts when the tokens of the previous one are known. Stages exchange the same messages
    with and without a graph, and their schedules are equal, so a stage that has no graph for a
    step can compute its part without one while the others replay theirs.
    """

    def __init__(self, runner: GraphRunner, stages: Pipeline) -> None:
        self.runner, self._stages = runner, stages
        self._in_flight: list[TokenSequence] = []
        self.collected_hidden: HiddenStates | None = None  # stages keep none
        # For each row of the last step: sequence, block table and number of computed tokens.
        self._loaded: list[tuple[TokenSequence, list[int], int]] = []

    @property
    def is_in_flight(self) -> bool:
        """Whether a step was launched and not yet collected."""
        return bool(self._in_flight)

    def launch(self, step: Step, seeds: Sequence[int]) -> bool:
        """Compute this stage's part of a scheduled step; return False if it cannot be replayed.

        The host samples the steps of answers with grammars or adapters.
        """
        sequences = [row.sequence for row in step.rows]
        is_plain = not any(s.constraint is not None or s.has_adapters for s in sequences)
        if not is_plain or not can_replay(step, self.runner.batch.max_rows):
            return False
        n = len(sequences)
        try:
            graph = self.runner.graph(n)
        except (OutOfMemory, torch.OutOfMemoryError):
            self._loaded = []  # the failed capture may have overwritten the rows
            return False  # the step needs less memory without a graph
        if self._can_append(sequences):
            self.runner.append_tokens(sequences)
        else:
            self.runner.batch.load(sequences, seeds)
        self._loaded = [(s, s.block_table, s.num_computed) for s in sequences]
        stages, residual = self._stages, self.runner.residual
        if not stages.is_first:
            residual[:n].copy_(stages.receive(n, residual.shape[1]))
            residual[n:].zero_()  # each step adds to the graph's unused rows, too
        graph.replay()
        if not stages.is_last:
            stages.send(residual[:n])
        self._in_flight = sequences
        return True

    def collect(self, *, continues: bool = True) -> list[tuple[TokenSequence, int]]:
        """Return the tokens that the last stage sampled, or NOT_FINITE; no step continues."""
        sequences, self._in_flight = self._in_flight, []
        sampled = self._stages.broadcast_from_last(self.runner.sampled[: len(sequences)].long())
        return list(zip(sequences, sampled.tolist(), strict=True))

    def drop(self) -> None:
        """Discard the step in flight."""
        self._in_flight = []

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
