"""How often the tokens of a draft model are accepted, and how many of them are worth proposing."""

_PRIOR_RATE, _PRIOR_WEIGHT = 0.6, 4.0
_MEMORY = 64.0  # tokens that count; older ones fade
_LEAST_GAIN = 1.05  # the expected gain that a proposal must have
# Where no gain is expected, so many tokens are tried again after so many tokens of the answer, then
# after twice as many, and so on.
_TRIED, _TRIED_AFTER = 2, 48


class AcceptanceRate:
    """The rate of one sequence: each proposed token is taken as accepted with equal probability."""

    def __init__(self) -> None:
        self._hits, self._trials = _PRIOR_RATE * _PRIOR_WEIGHT, _PRIOR_WEIGHT
        self._last_trial, self._tried_after = 0, _TRIED_AFTER

    @property
    def rate(self) -> float:
        return self._hits / self._trials

    def verified(self, num_accepted: int, num_proposed: int, num_generated: int) -> None:
        """Receive how many proposed tokens were accepted, at this length of the answer.

        Those after a rejected one tell nothing.
        """
        is_again = num_generated - self._last_trial >= self._tried_after
        self._tried_after = 2 * self._tried_after if is_again else _TRIED_AFTER
        self._last_trial = num_generated
        num_trials = min(num_accepted + 1, num_proposed)
        fade = min(1.0, _MEMORY / (self._trials + num_trials))
        self._hits = fade * (self._hits + num_accepted)
        self._trials = fade * (self._trials + num_trials)

    def best_number(
        self, max_tokens: int, num_generated: int, costs: list[float], draft_cost: float
    ) -> int:
        """Return how many tokens to propose, up to `max_tokens`.

        `costs[k]` is that of a step with k proposed tokens, and `draft_cost` that of proposing one,
        in steps without.
        """
        if max_tokens < 1:
            return 0
        expected = probability = 1.0
        best, best_gain = 0, _LEAST_GAIN
        for k in range(1, max_tokens + 1):
            probability *= self.rate
            expected += probability
            gain = expected / (costs[k] + k * draft_cost)
            if gain > best_gain:
                best, best_gain = k, gain
        if not best and num_generated - self._last_trial >= self._tried_after:
            return min(_TRIED, max_tokens)
        return best
