"""The running sequences of beam searches: they are forked and removed as beams go on or end."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Beam, Searching
from swiftchat.engine.api.vocabulary import ConstraintSpec
from swiftchat.engine.generation.parts import EngineParts
from swiftchat.engine.sampling.beam_search import BeamSearch, Candidate
from swiftchat.engine.sampling.logprobs import top_logprobs
from swiftchat.engine.sampling.sampler import (
    ALL_BANNED,
    NOT_FINITE,
    process_logits,
    sampling_error,
)
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.engine.schedule.twins import fork
from swiftchat.errors import OutOfMemory, SwiftchatError, UsageError

NextTokens = list[tuple[int, float]]  # ids and their logprobs

_REPORTED_TOKENS = 16  # a search reports its length so often


@dataclass
class _Group:
    """A beam search and the sequence of each of its running beams.

    `candidates` are the best next tokens of the beams that are computed to their end. `num_blocks`
    are needed for all beams, if they were preempted.
    """

    search: BeamSearch
    beams: list[TokenSequence]
    candidates: dict[TokenSequence, NextTokens] = field(default_factory=dict)
    num_blocks: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether the candidates of all running beams are known."""
        return all(
            sequence.num_computed == len(sequence.tokens) and sequence in self.candidates
            for sequence in self.beams
        )


@dataclass(frozen=True)
class BeamStep:
    """What a step did to the beams of the generation `id`.

    `sequence` is one of the running beams. The block `copies` (from, to) must be made at once. The
    search is over if there is an `error`, or if there are `answers`, best first. If it goes on, it
    has a `report` now and then.
    """

    id: int
    sequence: TokenSequence
    copies: list[tuple[int, int]] = field(default_factory=list)
    answers: list[Beam] = field(default_factory=list)
    error: SwiftchatError | None = None
    report: Searching | None = None


class Beams:
    """Runs beam searches: every beam is a sequence of the scheduler.

    The beams of a search share full blocks, and each step needs all of them. A search takes rows
    and blocks of other requests and of searches that began later. Such a search waits, with all of
    its beams, until there is room for them. So the search that began first always goes on.
    """

    def __init__(self, parts: EngineParts) -> None:
        self._scheduler = parts.scheduler
        self._ctx_size_tokens = parts.info.ctx_size_tokens
        self._gpu = parts.back_end.gpu
        self._num_devices = parts.decoder.ranks.size * parts.decoder.stages.size
        self._groups: dict[int, _Group] = {}

    def check(self, params: SamplingParams, spec: ConstraintSpec | None) -> None:
        """Raise `UsageError` for a beam search that the engine cannot do."""
        if params.beams is None:
            return
        if spec is not None:
            raise UsageError(
                f"beams {params.beams} cannot be combined with a grammar", "leave out one of them"
            )
        if self._num_devices > 1:
            raise UsageError(
                f"beams {params.beams} cannot be combined with several devices",
                "leave out --beams, or --tp and --pp",
            )
        if params.beams > self._scheduler.max_num_seqs:
            raise UsageError(
                f"beams {params.beams} is above {self._scheduler.max_num_seqs}, the most sequences "
                "that the engine computes at a time",
                "use a smaller --beams",
            )

    def add(self, sequence: TokenSequence) -> None:
        """Begin the beam search of a new sequence, if it requests one."""
        params = sequence.params
        if params.beams is None:
            return
        left = self._ctx_size_tokens - sequence.num_prompt
        search = BeamSearch(
            params.beams,
            frozenset(params.stop_ids),
            left if params.max_tokens is None else min(left, params.max_tokens),
            params.length_penalty,
            params.early_stopping,
            params.diversity_rate,
        )
        self._groups[sequence.id] = _Group(search, [sequence])

    def reserve(self) -> list[tuple[int, SwiftchatError]]:
        """Reserve the blocks of all beams for the next step.

        Returns the generations that have no room even alone, with their error.
        """
        failed: list[tuple[int, SwiftchatError]] = []
        for id_, group in self._groups.items():
            if self._is_running(group) and not self._reserve(group):
                if self._others_run(group):
                    self._suspend(group)
                else:
                    failed.append((id_, self._no_room(group)))
        for group in reversed(self._groups.values()):
            if self._is_running(group):  # its other beams come before all waiting requests
                self._scheduler.put_first(self._waiting(group))
        return failed

    def split(self, batch: Batch) -> tuple[Batch, list[tuple[TokenSequence, int]]]:
        """Return the batch without sampled rows of beams, and those with the index of their logits.

        The logits of beams stay in the batch.
        """
        pairs = list(zip(batch.sampled_rows, batch.sampled_logits, strict=True))
        others = [(row, index) for row, index in pairs if row.sequence.id not in self._groups]
        beams = [(row.sequence, i) for row, i in pairs if row.sequence.id in self._groups]
        if not beams:
            return batch, []
        rest = replace(
            batch,
            sampled_rows=[row for row, _ in others],
            sampled_logits=[index for _, index in others],
        )
        return rest, beams

    def advance(
        self, rows: Sequence[tuple[TokenSequence, int]], logits: Tensor | None
    ) -> Iterator[BeamStep]:
        """Choose the beams that go on, for every search with the candidates of all its beams.

        `logits` fp32 [n, vocab_size] has those of the computed `rows` at their indices.
        """
        computed: dict[int, list[tuple[TokenSequence, int]]] = {}
        for sequence, index in rows:
            computed.setdefault(sequence.id, []).append((sequence, index))
        for id_, pairs in computed.items():
            assert logits is not None
            group, sequences = self._groups[id_], [sequence for sequence, _ in pairs]
            indices = [index for _, index in pairs]
            is_all = indices == list(range(len(logits)))
            rows_logits = logits if is_all else logits[indices]
            num_tokens = group.search.num_candidates
            found = _next_tokens(rows_logits, sequences, num_tokens, self._gpu)
            group.candidates.update(zip(sequences, found, strict=True))
            if any(logprob != logprob for tokens in found for _, logprob in tokens):
                yield BeamStep(id_, group.beams[0], error=sampling_error(NOT_FINITE))
            elif group.is_complete:
                yield self._advance(id_, group)

    def ended(self, sequence: TokenSequence) -> None:
        """Remove the other beams of a generation whose `sequence` has been removed."""
        group = self._groups.pop(sequence.id, None)
        for beam in group.beams if group is not None else ():
            if beam is not sequence:
                self._scheduler.remove(beam)

    def _advance(self, id_: int, group: _Group) -> BeamStep:
        chosen = group.search.advance(
            [
                Candidate(beam, token, group.search.logprobs[beam] + logprob)
                for beam, sequence in enumerate(group.beams)
                for token, logprob in group.candidates[sequence]
                if logprob > -torch.inf
            ]
        )
        group.candidates = {}
        if not chosen:
            params, finished = group.beams[0].params, group.search.finished
            best = finished[: params.returned_beams]
            answers = [Beam.of(one.tokens, one.score, params.stop_ids) for one in best]
            error = None if answers else sampling_error(ALL_BANNED)
            return BeamStep(id_, group.beams[0], answers=answers, error=error)
        copies = self._continue(group, chosen)
        error = self._no_room(group) if copies is None else None
        length = len(group.search.tokens[0])
        report = Searching(length) if length % _REPORTED_TOKENS == 0 else None
        return BeamStep(id_, group.beams[0], copies or [], error=error, report=report)

    def _continue(self, group: _Group, chosen: Sequence[Candidate]) -> list[tuple[int, int]] | None:
        """Make the chosen candidates the running beams; return the copies of blocks.

        The first candidate of a beam goes on with its sequence, the others with forks of it. If
        there is no room for these, all of them wait; None if there will never be.
        """
        parents = [group.beams[candidate.beam] for candidate in chosen]
        for sequence in group.beams:
            if sequence not in parents:
                self._scheduler.remove(sequence)
        group.beams = list(dict.fromkeys(parents))
        num_forks = len(parents) - len(group.beams)
        has_room = self._make_room(group, num_forks, num_forks)
        if not has_room and not self._others_run(group):
            return None
        if not has_room:
            self._suspend(group)
        beams: list[TokenSequence] = []
        copies: list[tuple[int, int]] = []
        for parent in parents:
            beam = parent
            if parent in beams:
                beam = copy.copy(parent)
                beam.tokens = list(parent.tokens)
                self._scheduler.add(beam)
                if has_room:
                    copies += fork(parent, beam, self._scheduler)
                    beam.num_cached = parent.num_cached
            beams.append(beam)
        for beam, candidate in zip(beams, chosen, strict=True):
            beam.tokens.append(candidate.token)
        group.beams = beams
        for beam in beams:
            beam.is_held = len(beams) > 1
        if not has_room:
            self._suspend(group)
        return copies

    def _reserve(self, group: _Group) -> bool:
        """Reserve rows and blocks for a group's next step; return False if there is no room."""
        scheduler, waiting = self._scheduler, self._waiting(group)
        group.beams[0].num_further_blocks = 0  # some are running: the others get room below
        if not self._make_room(group, len(waiting), 0):
            return False
        for sequence in group.beams:
            has_room = scheduler.has_room if sequence in waiting else scheduler.reserve_next
            while not has_room(sequence):
                if not self._preempt_other(group):
                    return False
        return True

    def _make_room(self, group: _Group, num_seqs: int, num_blocks: int) -> bool:
        """Preempt other requests until there are free rows and blocks; return whether there are."""
        scheduler, allocator = self._scheduler, self._scheduler.allocator
        while (
            len(scheduler.running) + num_seqs > scheduler.max_num_seqs
            or allocator.num_free + allocator.num_cached < num_blocks
        ):
            if not self._preempt_other(group):
                return False
        return True

    def _preempt_other(self, group: _Group) -> bool:
        """Preempt the request admitted last, or the search that began last; False without any.

        Searches that began before the `group` are not preempted.
        """
        singles = [s for s in self._scheduler.running if s not in group.beams and not s.is_held]
        if singles:
            self._scheduler.preempt(singles[-1])
            return True
        for other in reversed(self._groups.values()):
            if other is group:
                break
            if self._is_running(other):
                self._suspend(other)
                return True
        return False

    def _suspend(self, group: _Group) -> None:
        """Preempt all beams of a group; they wait until there is room for all of them."""
        blocks = {block for sequence in group.beams for block in sequence.block_table}
        group.num_blocks = max(group.num_blocks, len(blocks) + len(group.beams))
        waiting = self._waiting(group)
        for sequence in group.beams:
            sequence.num_further_blocks = 0  # a fork may have the one of its parent
            if sequence not in waiting:
                self._scheduler.preempt(sequence)
        self._scheduler.put_first(group.beams)
        group.beams[0].num_further_blocks = group.num_blocks

    def _is_running(self, group: _Group) -> bool:
        """Whether a group has several beams and some of them are running."""
        return len(group.beams) > 1 and len(self._waiting(group)) < len(group.beams)

    def _others_run(self, group: _Group) -> bool:
        """Whether another group has beams that are running, and room for the group may come."""
        return any(self._is_running(one) for one in self._groups.values() if one is not group)

    def _waiting(self, group: _Group) -> list[TokenSequence]:
        """Return the beams of a group that are not running."""
        return [sequence for sequence in group.beams if sequence not in self._scheduler.running]

    def _no_room(self, group: _Group) -> OutOfMemory:
        allocator, num_beams = self._scheduler.allocator, group.search.num_beams
        num_tokens = allocator.num_blocks * allocator.block_size
        return OutOfMemory(
            f"the KV cache of {num_tokens} tokens has no room for {num_beams} beams of "
            f"{len(group.beams[0].tokens)} tokens",
            "use a smaller --beams or -n, or a larger --ctx-size, which enlarges the cache",
        )


def _next_tokens(
    logits: Tensor, sequences: Sequence[TokenSequence], num_tokens: int, gpu: Gpu | None
) -> list[NextTokens]:
    """Return the most probable next tokens of each sequence; their logprobs may be NaN or −inf.

    `logits` is fp32 [len(sequences), vocab_size]. The controls of the logits apply to logprobs, as
    in `transformers`.
    """
    if sequences[0].params.changes_logits:
        rows = zip(torch.log_softmax(logits, 1), sequences, strict=True)
        logprobs = torch.stack(
            [process_logits(row, s.tokens, s.num_prompt, s.params) for row, s in rows]
        )
        values, ids = logprobs.topk(min(num_tokens, logprobs.shape[1]), 1)
    else:
        values, ids = top_logprobs(logits, num_tokens, gpu)
    packed = torch.cat((values.double(), ids.double()), 1).tolist()  # fp64 holds ids exactly
    width = values.shape[1]
    return [list(zip(map(int, row[width:]), row[:width], strict=True)) for row in packed]
