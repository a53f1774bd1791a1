"""A generation in progress: its sequence, its seed, and the times of its events."""

import time
from dataclasses import dataclass
from typing import Any

from swiftchat.engine.api.protocol import Finished, Speculated
from swiftchat.engine.schedule.sequence import TokenSequence


@dataclass
class Generation:
    """A sequence with its seed and the times of its events, in `perf_counter` seconds.

    In a beam search, `sequence` is one of the running beams.
    """

    sequence: TokenSequence
    seed: int
    started: float
    first_token: float | None = None

    def finished(
        self, reason: str, speculated: Speculated | None, tiers: dict[str, Any]
    ) -> Finished:
        """Return the report of its end, now; `tiers` are the fields of `BlockStore.finish`."""
        sequence, now = self.sequence, time.perf_counter()
        first_token = self.first_token or now
        return Finished(
            reason=reason,
            prompt_tokens=sequence.num_prompt + sequence.num_dropped_prompt - sequence.num_virtual,
            cached_tokens=max(0, sequence.num_cached - sequence.num_virtual),
            completion_tokens=sequence.num_generated + sequence.num_dropped_generated,
            prefill_s=first_token - self.started,
            decode_s=now - first_token,
            seed=self.seed,
            speculated=speculated,
            **tiers,
        )
