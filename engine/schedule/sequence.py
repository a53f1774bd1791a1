"""The tokens of a generation, with their KV blocks, and its rows in the steps."""

from dataclasses import dataclass, field

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.schedule.constraint import Constraint
from swiftchat.engine.schedule.content import Digest, root_of
from swiftchat.engine.schedule.reasoning import ReasoningProgress
from swiftchat.engine.schedule.tuning import SequenceTuning
from swiftchat.weights.architectures.parts.prefix_lm import CAUSAL, BidirectionalPrefix


@dataclass(eq=False)
class TokenSequence:
    """The tokens of one generation, and the blocks with their keys and values.

    The blocks of `block_table` hold the keys and values of `tokens[:num_computed]`. The newest
    token is computed in the next step, so `num_computed < len(tokens)` while running. The first
    `num_published` blocks are full and registered in the prefix cache; `parent` is the digest of
    the last of them, or `root`. `num_cached` is the length of the prefix found in the cache.
    `num_scored` prompt tokens have had the logprob of the token after them reported. The hidden
    states of `num_pooled` tokens are part of the embedding, if one is requested. `constraint`
    follows the generated tokens, `reasoning` their reasoning, if it has a budget. `forced` are the
    next tokens, whatever is sampled. `proposed` are tokens that may follow: the next step computes
    them too, to verify them (`engine.speculation`). `num_dropped_prompt` and
    `num_dropped_generated` tokens are no longer in `tokens`, after `num_slides` full contexts
    (`sliding.py`). `num_restored` counts the tokens whose blocks came from a tier below the device,
    by its name. `tuning` is what the sequence adds to the base model. `state_slot` holds its states
    while it is running, if the model has some, and `spare_slot` is the slot that the next state is
    written to; `verified_slots` are for the states after the tokens of a step that verifies
    proposed ones (`states.py`). A sequence that `is_held` is one of several beams, which are
    preempted only together (`engine.generation.beams`); it is admitted when `num_further_blocks`
    are available for the others.
    """

    id: int
    tokens: list[int]
    params: SamplingParams
    bidirectional_prefix: BidirectionalPrefix = CAUSAL
    constraint: Constraint | None = None
    tuning: SequenceTuning | None = None
    reasoning: ReasoningProgress | None = field(init=False)
    forced: list[int] = field(default_factory=list)
    proposed: tuple[int, ...] = ()
    num_prompt: int = field(init=False)
    num_computed: int = 0
    num_cached: int = 0
    block_table: list[int] = field(default_factory=list)
    num_published: int = 0
    num_scored: int = 0
    num_pooled: int = 0
    num_dropped_prompt: int = 0
    num_dropped_generated: int = 0
    num_slides: int = 0
    num_restored: dict[str, int] = field(default_factory=dict)
    state_slot: int = -1
    spare_slot: int = -1
    verified_slots: list[int] = field(default_factory=list)
    is_held: bool = False
    num_further_blocks: int = 0
    parent: Digest = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt = len(self.tokens)
        self.reasoning = ReasoningProgress.of(self.params)
        self.num_scored = self.num_virtual
        self.parent = self.root

    @property
    def root(self) -> Digest:
        """The parent of the first block."""
        identity = None if self.tuning is None else self.tuning.identity
        return root_of(self.tokens[: self.bidirectional_prefix.length], identity)

    @property
    def num_virtual(self) -> int:
        """The number of virtual tokens before the prompt; `tokens` has any ids for them."""
        virtual = None if self.tuning is None else self.tuning.virtual
        return 0 if virtual is None else virtual.count

    @property
    def num_to_store(self) -> int:
        """The number of first tokens whose keys and values are given, and not in blocks yet."""
        virtual = None if self.tuning is None else self.tuning.virtual
        if virtual is None or virtual.kv is None:
            return 0
        return max(0, virtual.count - self.num_computed)

    @property
    def is_embedding(self) -> bool:
        """Whether the prompt is pooled instead of answered."""
        return self.params.pooling is not None

    @property
    def has_adapters(self) -> bool:
        return self.tuning is not None and self.tuning.set_index >= 0

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_left(self) -> int | None:
        """The most tokens that may follow until the answer or its reasoning is ended; None: any."""
        if self.reasoning is not None and self.reasoning.is_thinking:
            return self.reasoning.num_left
        if self.params.max_tokens is None:
            return None
        num_reasoned = 0 if self.reasoning is None else self.reasoning.num_tokens
        num_generated = self.num_generated + self.num_dropped_generated
        return self.params.max_tokens - (num_generated - num_reasoned)

    @property
    def is_decoding(self) -> bool:
        """Whether only the newest token must be computed."""
        return len(self.tokens) - self.num_computed == 1

    @property
    def next_state_slot(self) -> int:
        """The slot that the state after one more token is written to."""
        if self.verified_slots:
            return self.verified_slots[0]
        return self.state_slot if self.spare_slot < 0 else self.spare_slot

    @property
    def num_to_score(self) -> int:
        """The number of prompt tokens whose next token needs a logprob."""
        is_scored = self.params.prompt_logprobs is not None
        return self.num_prompt - 1 - self.num_scored if is_scored else 0

    @property
    def num_reusable(self) -> int:
        """The number of first tokens that need not be computed if the prefix cache has them.

        The last token is always computed, because the next one is sampled from its logits, and so
        is every token whose logits give a logprob or whose hidden state is pooled.
        """
        if self.num_to_score:
            return self.num_scored
        if self.params.pooling in ("mean", "sum"):
            return self.num_pooled
        return len(self.tokens) - 1


@dataclass(frozen=True)
class Row:
    """`num_tokens` tokens of a sequence from `sequence.num_computed` on, in one forward pass.

    If they reach the end, `proposed` tokens may follow in the same pass. They count as computed
    when they have been sampled.
    """

    sequence: TokenSequence
    num_tokens: int
    proposed: tuple[int, ...] = ()

    @property
    def reaches_end(self) -> bool:
        """Whether the next token is sampled from the logits of the row's last token."""
        return self.sequence.num_computed + self.num_tokens == len(self.sequence.tokens)

    @property
    def scored_positions(self) -> range:
        """The positions of the row whose next token is a prompt token that needs a logprob."""
        first = self.sequence.num_computed
        if not self.sequence.num_to_score:
            return range(first, first)
        end = min(first + self.num_tokens, self.sequence.num_prompt - 1)
        return range(max(first, self.sequence.num_scored), end)

    @property
    def pooled_positions(self) -> range:
        """The positions of the row whose hidden states are pooled; none without an embedding."""
        first, end = self.sequence.num_computed, self.sequence.num_computed + self.num_tokens
        match self.sequence.params.pooling:
            case None:
                return range(end, end)
            case "last":
                return range(end - int(self.reaches_end), end)
        return range(max(first, self.sequence.num_pooled), end)


@dataclass(frozen=True)
class Stored:
    """A sequence whose given keys and values are written after `num_copies` copies of the step.

    Not before, because a block may be the source of a copy, then evicted, and then this sequence's;
    not after further copies, because their source may be such a block.
    """

    sequence: TokenSequence
    num_copies: int


@dataclass(frozen=True)
class Step:
    """The rows of a forward pass; the block `copies` (from, to) must be made before it, in order.

    So must `state_copies`, in their order, between the slots of states.
    The given keys and values of the virtual tokens of `stored` are written before it, too.
    There may be no row while blocks of `restoring`, a waiting sequence, are brought to the device.
    """

    rows: list[Row]
    copies: list[tuple[int, int]]
    restoring: TokenSequence | None = None
    stored: list[Stored] = field(default_factory=list)
    state_copies: list[tuple[int, int]] = field(default_factory=list)
