"""What the tiers below the device's prefix cache have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from swiftchat.engine.schedule.content import Digest


@dataclass(frozen=True)
class StoredBlock:
    """A block in a tier: its content (`parent`, `tokens`), and its place there.

    The first `num_matching` tokens are those that were looked for.
    """

    parent: Digest
    tokens: tuple[int, ...]
    num_matching: int
    place: Any


class Tier(Protocol):
    """Blocks that are found by content and copied to blocks of the device."""

    name: str

    @property
    def num_blocks(self) -> int: ...

    @property
    def blocks_per_read(self) -> int:
        """How many blocks one call of `read` should have."""

    def find(self, parent: Digest, tokens: Sequence[int]) -> StoredBlock | None:
        """Return the block whose tokens have the longest common prefix with `tokens`."""

    def read(self, stored: Sequence[StoredBlock], blocks: Sequence[int]) -> int:
        """Copy stored blocks to blocks of the device; return how many of the first succeeded."""
