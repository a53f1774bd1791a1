"""Decoding where a model has several stages, each with its part of a step in a CUDA graph."""

from collections.abc import Sequence as Seq

import torch

from swiftchat.engine.comm.pipeline import Pipeline
from swiftchat.engine.decode.async_decode import can_replay
from swiftchat.engine.decode.graph_runner import GraphRunner
from swiftchat.engine.schedule.scheduler import Sequence, Step
from swiftchat.errors import OutOfMemory


class PipelineDecode:
    """Replays this stage's part of decode steps, as `AsyncDecode` replays whole ones.

    A step begins when the tokens of the one before it are known. Between the graphs passes just
    what passes between stages that launch kernel by kernel, and schedules are the same: so a stage
    without a graph for some step can compute its part that way, whatever the others do.
    """

    def __init__(self, step: GraphRunner, stages: Pipeline) -> None:
        self._step, self._stages = step, stages
        self._flight: list[Sequence] = []
        # Who has the lanes, with the list of its blocks, and what of it was computed before.
        self._held: list[tuple[Sequence, list[int], int]] = []

    @property
    def is_in_flight(self) -> bool:
        """Whether a step is under way: between `launch` and `collect`."""
        return bool(self._flight)

    def launch(self, step: Step, seeds: Seq[int]) -> bool:
        """Compute this stage's part of a scheduled step here, if it can be replayed."""
        if not can_replay(step, self._step.lanes.max_lanes):
            return False
        sequences = [row.sequence for row in step.rows]
        n = len(sequences)
        try:
            graph = self._step.prepare(n)
        except (OutOfMemory, torch.OutOfMemoryError):
            self._held = []  # a graph half captured has left anything in the lanes
            return False  # the same without a graph takes less
        if self._go_on(sequences):
            self._step.move_on(sequences)
        else:
            self._step.lanes.load(sequences, seeds)
        self._held = [(s, s.block_table, s.num_computed) for s in sequences]
        stages, stream = self._stages, self._step.stream
        if not stages.is_first:
            stream[:n].copy_(stages.receive(n, stream.shape[1]))
            stream[n:].zero_()  # lanes of the graph that nobody uses: else each step adds to them
        graph.replay()
        if not stages.is_last:
            stages.send(stream[:n])
        self._flight = sequences
        return True

    def collect(self) -> list[tuple[Sequence, int]]:
        """The step's tokens, which the last stage has drawn; -1: its logits were not finite."""
        sequences, self._flight = self._flight, []
        drawn = self._stages.broadcast_from_last(self._step.drawn[: len(sequences)].long())
        return list(zip(sequences, drawn.tolist(), strict=True))

    def drop(self) -> None:
        """Forget the step under way."""
        self._flight = []

    def _go_on(self, sequences: list[Sequence]) -> bool:
        """Whether these have the lanes, and all that came since is one token for each.

        A sequence that gave its blocks back meanwhile has them in another list.
        """
        return len(sequences) == len(self._held) and all(
            sequence is held and sequence.block_table is table and sequence.num_computed == done + 1
            for sequence, (held, table, done) in zip(sequences, self._held, strict=True)
        )
