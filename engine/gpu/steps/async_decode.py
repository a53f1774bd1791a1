"""Async decode: each step is launched before the tokens of the previous one are read."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from swiftchat.engine.gpu.steps.decode_graphs import DecodeGraphs, Part
from swiftchat.engine.schedule.scheduler import Scheduler
from swiftchat.engine.schedule.sequence import Row, Step, TokenSequence
from swiftchat.engine.steps.runner import SampledStep, StepInputs, StepLogits
from swiftchat.errors import OutOfMemory


@dataclass(frozen=True)
class _InFlight:
    """A step that was launched but not collected: its sequences and the end of its launched part.

    `number` is that of the step, None while only its forward pass is launched.
    """

    sequences: list[TokenSequence]
    number: int | None
    done: torch.cuda.Event


def is_decode_step(step: Step, max_rows: int) -> bool:
    """Return whether a scheduled step only decodes one token for each of at most `max_rows` rows.

    False if it also reports logprobs of the prompt.
    """
    rows = step.rows
    return (
        not (step.copies or step.stored)
        and 0 < len(rows) <= max_rows
        and all(row.num_tokens == 1 and row.reaches_end and not row.proposed for row in rows)
        and not any(row.scored_positions for row in rows)
    )


def can_replay(step: Step, max_rows: int) -> bool:
    """Return whether a step can be replayed from graphs that also sample.

    False if a row uses a control that the sampler on the device does not have.
    """
    return is_decode_step(step, max_rows) and not any(
        row.sequence.params.host_controls for row in step.rows
    )


def _parts(sequences: Sequence[TokenSequence]) -> tuple[Part, ...]:
    """Return the graphs of a step, in order."""
    has_grammar = any(sequence.constraint is not None for sequence in sequences)
    return ("forward", "sampling") if has_grammar else ("step",)


def _use_adapters(sequences: Sequence[TokenSequence]) -> bool:
    return any(sequence.has_adapters for sequence in sequences)


class AsyncDecode:
    """Replays decode steps, one step ahead of the host.

    If an answer has a grammar, only the forward pass of a step is ahead: it needs the previous
    token, which is on the device. Meanwhile the host learns this token and computes the mask.

    The host learns of an end token, a stop string or a cancel one step late and discards that
    row's extra token. Other rows are not affected.
    """

    def __init__(
        self,
        graphs: DecodeGraphs,
        scheduler: Scheduler,
        ctx_size_tokens: int,
        *,
        has_logits: bool = True,
    ) -> None:
        """Also return logits that the host samples from, with `has_logits`: on one rank."""
        self.graphs = graphs
        self._has_logits = has_logits
        self._scheduler = scheduler
        self._ctx_size_tokens = ctx_size_tokens
        self._in_flight: _InFlight | None = None

    @property
    def is_in_flight(self) -> bool:
        """Whether a launched step still has sequences whose next token it computes."""
        step = self._in_flight
        return step is not None and any(map(self._is_current, step.sequences))

    def compute(self, inputs: StepInputs) -> SampledStep | StepLogits | None:
        """Launch a step, and the next one if it can be predicted; wait for the tokens.

        Of a step that the host samples, return the logits.
        """
        self.drop()
        if not inputs.needs_logits and self._launch(inputs.step, inputs.seeds):
            return self.collect(continues=not inputs.proposes_next())
        return self._forward(inputs) if self._has_logits else None

    def _launch(self, step: Step, seeds: Sequence[int]) -> bool:
        """Launch a scheduled step; return False if it cannot be replayed or blocks are missing."""
        if not can_replay(step, self.graphs.batch.max_rows):
            return False
        sequences = [row.sequence for row in step.rows]
        if _use_adapters(sequences) and not self.graphs.can_adapt(sequences):
            return False
        if not self._prepare(sequences, num_ahead=1):
            return False
        self.graphs.batch.load(sequences, seeds)
        self._start(sequences)
        return True

    def _forward(self, inputs: StepInputs) -> StepLogits | None:
        """Return the logits of a decode step that the host samples; None if it is not captured."""
        sequences = [row.sequence for row in inputs.step.rows]
        if not is_decode_step(inputs.step, self.graphs.batch.max_rows):
            return None
        if any(sequence.tuning is not None for sequence in sequences):
            return None
        try:
            return StepLogits(self.graphs.forward(sequences))
        except (OutOfMemory, torch.OutOfMemoryError):
            return None  # the step needs less memory without a graph

    def collect(self, *, continues: bool = True) -> SampledStep:
        """Launch the next step if it can be predicted, then return the tokens of the previous one.

        Without `continues` no step is launched, because the next one will have proposed tokens.
        Sequences that ended meanwhile are omitted, and those that got tokens without this step
        (`ForcedTokens`).
        """
        step = self._in_flight
        assert step is not None
        if step.number is None:
            self.graphs.batch.load_masks(step.sequences)
            step = self._replay(step.sequences, "sampling")
        self._in_flight = None
        sequences = step.sequences
        if continues and self._can_continue(sequences) and self._prepare(sequences, num_ahead=2):
            self.graphs.batch.update_block_tables(sequences)
            self._start(sequences)
        step.done.synchronize()
        ring = self.graphs.batch.ring
        assert step.number is not None
        tokens = ring[step.number % len(ring), : len(sequences)].tolist()
        current = [row for row, sequence in enumerate(sequences) if self._is_current(sequence)]
        rows = [Row(sequences[row], 1) for row in current]
        return SampledStep(rows, [[tokens[row]] for row in current])

    def drop(self) -> None:
        """Wait for the step in flight and discard its tokens."""
        if self._in_flight is not None:
            self._in_flight.done.synchronize()
            self._in_flight = None

    def _prepare(self, sequences: list[TokenSequence], num_ahead: int) -> bool:
        """Reserve the blocks of a step and capture its graphs; return False without room for them.

        The step needs less memory without a graph. An adapter that was loaded during an answer may
        have discarded the graphs.
        """
        if not self._reserve(sequences, num_ahead):
            return False
        adapted = _use_adapters(sequences)
        try:
            for part in _parts(sequences):
                self.graphs.graph(len(sequences), part, adapted=adapted)
        except (OutOfMemory, torch.OutOfMemoryError):
            return False
        return True

    def _start(self, sequences: list[TokenSequence]) -> None:
        """Launch a step, or its forward pass if its masks are not known yet."""
        self._in_flight = self._replay(sequences, _parts(sequences)[0])

    def _replay(self, sequences: list[TokenSequence], part: Part) -> _InFlight:
        number = None if part == "forward" else self.graphs.batch.num_steps
        self.graphs.replay(len(sequences), part, adapted=_use_adapters(sequences))
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's stubs
        done.record()
        return _InFlight(sequences, number, done)

    def _is_current(self, sequence: TokenSequence) -> bool:
        """Return whether the step in flight computes the newest token of a running sequence."""
        is_newest = len(sequence.tokens) == sequence.num_computed + 1
        return is_newest and sequence in self._scheduler.running

    def _can_continue(self, sequences: list[TokenSequence]) -> bool:
        """Return whether the next step will have the same rows, as far as the host can predict."""
        scheduler = self._scheduler
        could_admit = scheduler.waiting and len(scheduler.running) < scheduler.max_num_seqs
        if could_admit or set(sequences) != set(scheduler.running):
            return False
        if not all(map(self._is_current, sequences)):
            return False
        for sequence in sequences:
            num_tokens = len(sequence.tokens) + 1  # with the token in flight
            if num_tokens >= self._ctx_size_tokens:
                return False
            if sequence.num_left == 1:
                return False
        return True

    def _reserve(self, sequences: list[TokenSequence], num_ahead: int) -> bool:
        """Reserve blocks for `num_ahead` tokens after the one that the step computes.

        A step already looks up the next token's slot at its end.
        """
        return all(
            self._scheduler.reserve(s, min(s.num_computed + 1 + num_ahead, self._ctx_size_tokens))
            for s in sequences
        )
