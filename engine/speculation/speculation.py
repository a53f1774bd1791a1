"""Speculation: proposes tokens for the running sequences and keeps account of the acceptance."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Speculated
from swiftchat.engine.schedule.sequence import Row, TokenSequence
from swiftchat.engine.speculation.acceptance import AcceptanceRate
from swiftchat.engine.speculation.lookup import PromptLookup
from swiftchat.engine.speculation.proposer import Proposer
from swiftchat.engine.speculation.step_costs import StepCosts
from swiftchat.errors import UsageError

# Rows of a step with proposed tokens: as many as the kernels for decode steps of the CPU take.
MAX_VERIFIED_ROWS = 9


@dataclass
class _Account:
    """The proposers of a sequence, and what its decode steps cost and brought.

    `tokens` of all steps without prompts cost `cost`, in steps of one token. `proposers` are those
    that proposed tokens, `is_drafted` whether look-up did not propose the last ones.
    """

    lookup: PromptLookup = field(default_factory=PromptLookup)
    rate: AcceptanceRate = field(default_factory=AcceptanceRate)
    proposers: set[str] = field(default_factory=set)
    is_drafted: bool = False
    steps: int = 0
    proposed: int = 0
    accepted: int = 0
    tokens: int = 0
    cost: float = 0.0


class Speculation:
    """Sets the proposed tokens of sequences before each step.

    A step with proposed tokens has at most `max_rows` rows. `measures`: whether decisions
    follow measured durations; ranks must all decide alike, so they do not measure. `on_device`:
    tokens are verified on a GPU, where sampling has no controls that count the tokens before.
    `step_s` is the estimated duration of a decode step in seconds, if none is measured. `draft`
    proposes tokens where look-up finds none.
    """

    def __init__(
        self,
        costs: StepCosts,
        max_rows: int,
        ctx_size_tokens: int,
        *,
        measures: bool,
        on_device: bool = False,
        draft: Proposer | None = None,
        step_s: float | None = None,
    ) -> None:
        self.costs = costs
        self._draft, self._step_s = draft, step_s
        self._on_device = on_device
        self._max_rows, self._ctx_size_tokens, self._measures = max_rows, ctx_size_tokens, measures
        self._accounts: dict[int, _Account] = {}
        self._is_decode_step = False  # the last computed one, whose rows have no prompt's tokens

    def propose(self, running: Collection[TokenSequence]) -> None:
        """Propose tokens for all running sequences that decode in the next step."""
        decoding = [s for s in running if s.num_computed == len(s.tokens) - 1]
        num_rows = len(decoding)
        for sequence in decoding:
            sequence.proposed = tuple(self._proposal(sequence, num_rows))
            num_rows += len(sequence.proposed)

    def would_propose(self, sequences: Collection[TokenSequence]) -> bool:
        """Return whether tokens are likely to be proposed when each sequence has one more token."""
        num_rows = len(sequences)
        return any(
            self._looked_up(sequence, num_rows) or self._num_drafted(sequence, num_rows)
            for sequence in sequences
        )

    def check(self, params: SamplingParams) -> None:
        """Raise `UsageError` for a proposer that the engine does not have."""
        if params.speculate == "draft" and self._draft is None:
            raise UsageError("speculate is draft, but there is no draft model", "add --draft MODEL")

    def computed(self, rows: Sequence[Row], duration_s: float | None = None) -> None:
        """Receive the rows of a computed step and its duration, before they get new tokens.

        The duration of a step that overlaps with another one is not known. The cost of a step with
        tokens of prompts says nothing about the gain.
        """
        self._is_decode_step = all(row.num_tokens == 1 and row.reaches_end for row in rows)
        for row in rows:
            account = self._accounts.get(row.sequence.id)
            if account is not None:
                account.steps += bool(row.proposed)
                account.proposed += len(row.proposed)
        if not self._is_decode_step:
            return
        num_rows = sum(1 + len(row.proposed) for row in rows)
        if self._measures and duration_s is not None:
            self.costs.measured(num_rows, duration_s)
        share = self.costs.cost(num_rows) / self.costs.cost(len(rows))
        for row in rows:
            account = self._accounts.get(row.sequence.id)
            if account is not None:
                account.cost += share
                if row.proposed and account.is_drafted:
                    account.cost += len(row.proposed) * self._draft_cost

    def sampled(self, row: Row, num_tokens: int) -> None:
        """Receive how many tokens a row of the computed step got."""
        account = self._accounts.get(row.sequence.id)
        if account is not None:
            account.accepted += num_tokens - 1
            account.tokens += num_tokens if self._is_decode_step else 0
            if row.proposed and account.is_drafted:
                num_generated = row.sequence.num_generated
                account.rate.verified(num_tokens - 1, len(row.proposed), num_generated)

    def ended(self, sequence: TokenSequence) -> Speculated | None:
        """Forget a sequence; return its account if tokens were ever proposed for it."""
        account = self._accounts.pop(sequence.id, None)
        if self._draft is not None:
            self._draft.forget(sequence)
        if account is None or not account.steps:
            return None
        return Speculated(
            proposer="+".join(sorted(account.proposers)),
            num_steps=account.steps,
            num_proposed=account.proposed,
            num_accepted=account.accepted,
            gain=account.tokens / account.cost if account.cost else 1.0,
        )

    def _proposal(self, sequence: TokenSequence, num_rows: int) -> list[int]:
        found, num_drafted = self._looked_up(sequence, num_rows), 0
        if not found and self._draft is not None:
            num_drafted = self._num_drafted(sequence, num_rows)
            found = self._draft.propose(sequence, num_drafted) if num_drafted else []
        if found:
            account = self._accounts.setdefault(sequence.id, _Account())
            account.is_drafted = num_drafted > 0
            name = self._draft.name if self._draft is not None and num_drafted else "ngram"
            account.proposers.add(name)
        return found

    def _looked_up(self, sequence: TokenSequence, num_rows: int) -> list[int]:
        """Return what followed the same tokens before, if a gain is expected."""
        most = self._max_proposed(sequence, num_rows)
        if sequence.params.speculate == "draft" or most is None:
            return []
        lookup = self._accounts.setdefault(sequence.id, _Account()).lookup
        return lookup.propose(self.costs, num_rows, most) if lookup.follow(sequence) else []

    def _num_drafted(self, sequence: TokenSequence, num_rows: int) -> int:
        """Return how many tokens the draft model, or the heads, should propose."""
        most = self._max_proposed(sequence, num_rows)
        if self._draft is None or not self._may_draft(sequence) or most is None:
            return 0
        if self._measures and self.costs.one_row_s is None:
            return 0  # the next step tells what a draft step may cost
        if self._draft.step_s is None:
            return max(0, min(2, most))
        rate = self._accounts.setdefault(sequence.id, _Account()).rate
        plain = self.costs.cost(num_rows)
        costs = [self.costs.cost(num_rows + k) / plain for k in range(max(0, most) + 1)]
        return rate.best_number(most, sequence.num_generated, costs, self._draft_cost)

    def _may_draft(self, sequence: TokenSequence) -> bool:
        """Return whether the draft model, or the heads, may ever propose tokens."""
        is_tuned = sequence.tuning is not None
        return not is_tuned and sequence.params.speculate != "ngram" and self._is_on(sequence)

    def _is_on(self, sequence: TokenSequence) -> bool:
        params = sequence.params
        is_sampled = not params.beams and params.pooling is None and not sequence.forced
        return params.speculate != "off" and is_sampled and sequence.constraint is None

    def _max_proposed(self, sequence: TokenSequence, num_rows: int) -> int | None:
        """Return how many tokens may be proposed; None if speculation is off for the sequence."""
        params = sequence.params
        if not self._is_on(sequence):
            return None
        if self._on_device and (params.unverified_controls or sequence.has_adapters):
            return None
        left = self._ctx_size_tokens - len(sequence.tokens)
        if sequence.num_left is not None:
            left = min(left, sequence.num_left)
        # The step itself brings one token.
        return min(params.speculate_tokens, self._max_rows - num_rows, left - 1)

    @property
    def _draft_cost(self) -> float:
        """The duration of a draft step in decode steps; 0 if it is not known."""
        step_s = self.costs.one_row_s or self._step_s
        if self._draft is None or self._draft.step_s is None or step_s is None:
            return 0.0
        return self._draft.step_s / step_s
