"""Async decode: each step is launched before the tokens of the previous one are read."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.engine.decode.graph_runner import GraphRunner
from swiftchat.engine.schedule.scheduler import Scheduler, Sequence, Step
from swiftchat.errors import OutOfMemory


@dataclass(frozen=True)
class _InFlight:
    """A step that was launched but not collected: its sequences, its number, and its end."""

    sequences: list[Sequence]
    number: int
    done: torch.cuda.Event


def is_decode_step(step: Step, max_rows: int) -> bool:
    """Return whether a scheduled step only decodes one token for each of at most `max_rows` rows.

    False if it also reports logprobs of the prompt.
    """
    rows = step.rows
    return (
        not step.copies
        and 0 < len(rows) <= max_rows
        and all(row.num_tokens == 1 and row.reaches_end for row in rows)
        and not any(row.scored_positions for row in rows)
    )


def can_replay(step: Step, max_rows: int) -> bool:
    """Return whether a step can be replayed from a graph that also samples.

    False if a row has a grammar or uses a control that the sampler on the device does not have.
    """
    return is_decode_step(step, max_rows) and not any(
        row.sequence.params.host_controls or row.sequence.constraint for row in step.rows
    )


class AsyncDecode:
    """Replays decode steps, one step ahead of the host.

    The host learns of an end token, a stop string or a cancel one step late and discards that
    row's extra token. Other rows are not affected.
    """

    def __init__(self, runner: GraphRunner, scheduler: Scheduler, ctx_size_tokens: int) -> None:
        self.runner = runner
        self._scheduler = scheduler
        self._ctx_size_tokens = ctx_size_tokens
        self._in_flight: _InFlight | None = None

    @property
    def is_in_flight(self) -> bool:
        """Whether a launched step still has running sequences."""
        step = self._in_flight
        return step is not None and any(s in self._scheduler.running for s in step.sequences)

    def launch(self, step: Step, seeds: Seq[int]) -> bool:
        """Launch a scheduled step; return False if it cannot be replayed or blocks are missing."""
        if not can_replay(step, self.runner.batch.max_rows):
            return False
        sequences = [row.sequence for row in step.rows]
        if not self._reserve(sequences, num_ahead=1):
            return False
        self.drop()
        try:
            self.runner.graph(len(sequences))
        except (OutOfMemory, torch.OutOfMemoryError):
            return False  # the step needs less memory without a graph
        self.runner.batch.load(sequences, seeds)
        self._replay(sequences)
        return True

    def forward(self, step: Step) -> Tensor | None:
        """Return the logits of a decode step that the host samples, fp32 [rows, vocab_size].

        None if it cannot be replayed. They are valid until the next step.
        """
        if not is_decode_step(step, self.runner.batch.max_rows):
            return None
        self.drop()
        try:
            return self.runner.forward([row.sequence for row in step.rows])
        except (OutOfMemory, torch.OutOfMemoryError):
            return None  # the step needs less memory without a graph

    def collect(self) -> list[tuple[Sequence, int]]:
        """Launch the next step if it can be predicted, then return the tokens of the previous one.

        A token of -1 marks logits that are not finite. Sequences that ended meanwhile are omitted.
        """
        step = self._in_flight
        assert step is not None
        self._in_flight = None
        if self._can_continue(step.sequences):
            for row, sequence in enumerate(step.sequences):
                self.runner.batch.update_block_table(row, sequence)
            self._replay(step.sequences)
        step.done.synchronize()
        ring = self.runner.batch.ring
        tokens = ring[step.number % len(ring), : len(step.sequences)].tolist()
        return [
            (sequence, token)
            for sequence, token in zip(step.sequences, tokens, strict=True)
            if sequence in self._scheduler.running
        ]

    def drop(self) -> None:
        """Wait for the step in flight and discard its tokens."""
        if self._in_flight is not None:
            self._in_flight.done.synchronize()
            self._in_flight = None

    def _replay(self, sequences: list[Sequence]) -> None:
        number = self.runner.batch.num_steps
        self.runner.replay(len(sequences))
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's stubs
        done.record()
        self._in_flight = _InFlight(sequences, number, done)

    def _can_continue(self, sequences: list[Sequence]) -> bool:
        """Return whether the next step will have the same rows, as far as the host can predict."""
        scheduler = self._scheduler
        could_admit = scheduler.waiting and len(scheduler.running) < scheduler.max_num_seqs
        if could_admit or set(sequences) != set(scheduler.running):
            return False
        for sequence in sequences:
            num_tokens = len(sequence.tokens) + 1  # with the token in flight
            if num_tokens >= self._ctx_size_tokens:
                return False
            if num_tokens - sequence.num_prompt == sequence.params.max_tokens:
                return False
        return self._reserve(sequences, num_ahead=2)

    def _reserve(self, sequences: list[Sequence], num_ahead: int) -> bool:
        """Reserve blocks for `num_ahead` tokens after the one that the step computes.

        A step already looks up the next token's slot at its end.
        """
        return all(
            self._scheduler.reserve(s, min(s.num_computed + 1 + num_ahead, self._ctx_size_tokens))
            for s in sequences
        )
