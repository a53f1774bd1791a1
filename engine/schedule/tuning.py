"""What a sequence adds to the base model, as far as the schedule and a batch depend on it."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from swiftchat.engine.schedule.content import Digest


@dataclass(frozen=True, eq=False)
class VirtualTokens:
    """The tokens of a soft prompt, which precede a sequence's own.

    `embeddings` fp32 [n, embedding size] are computed like looked-up ones. `kv` [num_layers, n,
    2 * num_kv_heads, head_dim] are keys, already rotated, and values that are only stored.
    """

    count: int
    embeddings: Tensor | None = None
    kv: Tensor | None = None


@dataclass(frozen=True, eq=False)
class SequenceTuning:
    """The adapters and the soft prompt of a sequence.

    `identity` is the digest of their content: the prefix cache keeps blocks of different ones
    apart. `set_index` is the number of the set of adapters in the engine, -1 for none.
    """

    identity: Digest
    set_index: int = -1
    virtual: VirtualTokens | None = None

    def placeholders(self, prompt: Sequence[int]) -> list[int]:
        """Return ids for the virtual tokens: the prompt's first, which penalties know anyway."""
        return [] if self.virtual is None else [prompt[0]] * self.virtual.count
