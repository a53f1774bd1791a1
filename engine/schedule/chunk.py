"""The size of a prefill chunk: as many tokens as take a limited time."""

from dataclasses import dataclass, field

_CPU_STEP_S, _GPU_STEP_S = 0.5, 0.04


@dataclass
class ChunkLimit:
    """Adapts the number of prefill tokens of a step to the measured durations of steps.

    `tokens` takes about `max_step_s` at most, but has at least `min_tokens`: fewer would read the
    weights too often. It keeps its first `num_bits` binary digits, so that small differences
    between durations do not change it. `has_fixed_cost`: few tokens take as long as more, so only
    full chunks are measured, and the size grows step by step. With `only_while_decoding`, the limit
    applies while an answer in progress waits for the step.
    """

    max_step_s: float
    max_tokens: int
    min_tokens: int
    first_tokens: int
    num_bits: int
    has_fixed_cost: bool
    only_while_decoding: bool
    tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = min(self.first_tokens, self.max_tokens)

    def measured(self, num_tokens: int, duration_s: float) -> None:
        """Receive how long a step with this many prefill tokens took."""
        if num_tokens < min(self.min_tokens, self.max_tokens):
            return
        if self.has_fixed_cost and num_tokens < self.tokens and duration_s <= self.max_step_s:
            return  # the end of a prompt does not tell how long a full chunk takes
        fitting = max(int(num_tokens * self.max_step_s / duration_s), self.min_tokens)
        num_rest = max(0, fitting.bit_length() - self.num_bits)
        self.tokens = min(fitting >> num_rest << num_rest, self.max_tokens)


def cpu_chunk_limit(max_tokens: int) -> ChunkLimit:
    """Return the limit of a CPU: half a second, after which a cancel takes effect."""
    return ChunkLimit(
        _CPU_STEP_S, max_tokens, 32, 64, 1, has_fixed_cost=False, only_while_decoding=False
    )


def gpu_chunk_limit(max_tokens: int) -> ChunkLimit:
    """Return the limit of a GPU: a prompt delays the tokens of other answers by at most 50 ms.

    Alone, a prompt is computed in the largest chunks.
    """
    return ChunkLimit(
        _GPU_STEP_S, max_tokens, 64, 256, 3, has_fixed_cost=True, only_while_decoding=True
    )
