"""Decoding with the GPU one step ahead of the host."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from swiftchat.engine.decode.graph_runner import GraphRunner
from swiftchat.engine.schedule.scheduler import Scheduler, Sequence, Step
from swiftchat.errors import OutOfMemory


@dataclass(frozen=True)
class _InFlight:
    """A step that was launched and not yet read: whose lanes, which step, and its end."""

    sequences: list[Sequence]
    step: int
    done: torch.cuda.Event


def can_replay(step: Step, max_lanes: int) -> bool:
    """Whether each row of a step only needs its next token, and there is a lane for each.

    Not if one needs its likelihood, too: the device's sampler keeps none of the logits.
    """
    rows = step.rows
    return (
        not step.copies
        and 0 < len(rows) <= max_lanes
        and all(row.num_tokens == 1 and row.reaches_end for row in rows)
        and all(row.sequence.params.logprobs is None for row in rows)
    )


class AsyncDecode:
    """Replays decode steps; the next is launched before the last one's tokens are looked at.

    What follows from a token (an end, a stop string, a cancel) is therefore known one step late,
    and that step's token for the lane is thrown away. Everybody else loses nothing.
    """

    def __init__(self, step: GraphRunner, scheduler: Scheduler, ctx_size_tokens: int) -> None:
        self._step = step
        self._scheduler = scheduler
        self._ctx_size_tokens = ctx_size_tokens
        self._flight: _InFlight | None = None

    @property
    def is_in_flight(self) -> bool:
        """Whether a step is under way that somebody still waits for."""
        flight = self._flight
        return flight is not None and any(s in self._scheduler.running for s in flight.sequences)

    def launch(self, step: Step, seeds: Seq[int]) -> bool:
        """Launch a scheduled step here, if it can be replayed and there are blocks for it."""
        if not can_replay(step, self._step.lanes.max_lanes):
            return False
        sequences = [row.sequence for row in step.rows]
        if not self._reserve(sequences, ahead=1):
            return False
        self.drop()
        try:
            self._step.prepare(len(sequences))
        except (OutOfMemory, torch.OutOfMemoryError):
            return False  # the same without a graph takes less
        self._step.lanes.load(sequences, seeds)
        self._replay(sequences)
        return True

    def collect(self) -> list[tuple[Sequence, int]]:
        """Launch the next step if it can be foreseen, then return the last one's tokens.

        -1 stands for logits that were not finite. Sequences that ended meanwhile are left out.
        """
        flight = self._flight
        assert flight is not None
        self._flight = None
        if self._goes_on(flight.sequences):
            for lane, sequence in enumerate(flight.sequences):
                self._step.lanes.extend(lane, sequence)
            self._replay(flight.sequences)
        flight.done.synchronize()
        ring = self._step.lanes.ring
        tokens = ring[flight.step % len(ring), : len(flight.sequences)].tolist()
        return [
            (sequence, token)
            for sequence, token in zip(flight.sequences, tokens, strict=True)
            if sequence in self._scheduler.running
        ]

    def drop(self) -> None:
        """Forget the step under way once the device has ended it."""
        if self._flight is not None:
            self._flight.done.synchronize()
            self._flight = None

    def _replay(self, sequences: list[Sequence]) -> None:
        step = self._step.lanes.num_steps
        self._step.launch(len(sequences))
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        self._flight = _InFlight(sequences, step, done)

    def _goes_on(self, sequences: list[Sequence]) -> bool:
        """Whether all these lanes, and no others, will have a next step as far as one can know."""
        scheduler = self._scheduler
        could_admit = scheduler.waiting and len(scheduler.running) < scheduler.max_num_seqs
        if could_admit or set(sequences) != set(scheduler.running):
            return False
        for sequence in sequences:
            num_tokens = len(sequence.tokens) + 1  # with the token under way
            if num_tokens >= self._ctx_size_tokens:
                return False
            if num_tokens - sequence.num_prompt == sequence.params.max_tokens:
                return False
        return self._reserve(sequences, ahead=2)

    def _reserve(self, sequences: list[Sequence], ahead: int) -> bool:
        """Blocks for so many tokens after the one to be computed: where a step ends, the device
        already looks up the place of the next token."""
        return all(
            self._scheduler.reserve(s, min(s.num_computed + 1 + ahead, self._ctx_size_tokens))
            for s in sequences
        )
