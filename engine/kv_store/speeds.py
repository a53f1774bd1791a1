"""Measured speeds, which decide whether copying a block is faster than computing it again."""

_WEIGHT = 0.5  # of the newest measurement
_RETRY_FACTOR = 1.1
_MIN_PREFILL_TOKENS = 256  # fewer are dominated by the costs of a step


class Speeds:
    """The speed of prefill in tokens/s, and of reading blocks of each tier in bytes/s."""

    def __init__(self) -> None:
        self.prefill: float | None = None
        self.reads: dict[str, float] = {}

    def measured_prefill(self, num_tokens: int, seconds: float) -> None:
        if num_tokens >= _MIN_PREFILL_TOKENS and seconds > 0:
            self.prefill = _average(self.prefill, num_tokens / seconds)

    def measured_read(self, tier: str, num_bytes: int, seconds: float) -> None:
        if num_bytes and seconds > 0:
            self.reads[tier] = _average(self.reads.get(tier), num_bytes / seconds)

    def is_worth_reading(
        self, tier: str, num_bytes: int, num_tokens: int, prefill: float | None = None
    ) -> bool:
        """Return whether reading takes less time than computing the tokens; unknown speeds: yes.

        `prefill` is assumed as long as this engine has computed no prompt. A tier that loses counts
        as a little faster next time, so that it is measured again some day.
        """
        prefill, read = self.prefill or prefill, self.reads.get(tier)
        if prefill is None or read is None:
            return True
        is_faster = num_bytes / read < num_tokens / prefill
        if not is_faster:
            self.reads[tier] = read * _RETRY_FACTOR
        return is_faster


def _average(old: float | None, new: float) -> float:
    return new if old is None else (1 - _WEIGHT) * old + _WEIGHT * new
