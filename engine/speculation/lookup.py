"""Prompt look-up: proposes what followed the longest repeated suffix of a conversation."""

from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.engine.speculation.step_costs import StepCosts
from swiftchat.engine.speculation.suffix_automaton import SuffixAutomaton

# Ids that are added to the automaton in one step at most, so that a long prompt delays no answer.
_MAX_NEW_IDS = 4096
# The prior acceptance rate for matches of at least so many ids, and how many predictions it counts
# for. Code and quotes that continue have long matches, chance has short ones.
_PRIORS = {1: 0.05, 2: 0.2, 3: 0.4, 5: 0.6, 9: 0.75, 17: 0.85}
_CLASSES = tuple(_PRIORS)
_PRIOR_WEIGHT = 4.0
_MEMORY = 64.0  # predictions of one class that count; older ones fade


class PromptLookup:
    """The proposer of one sequence, from its own prompt and answer (n-gram speculation).

    Every id that the sequence gets is compared with the one predicted for it, whether or not it was
    proposed. So the acceptance rate by the length of the match is known at no cost, and a text
    without repetitions gets no proposals.
    """

    def __init__(self) -> None:
        self._automaton = SuffixAutomaton()
        self._hits = [rate * _PRIOR_WEIGHT for rate in _PRIORS.values()]
        self._trials = [_PRIOR_WEIGHT] * len(_PRIORS)

    def follow(self, sequence: TokenSequence) -> bool:
        """Add the sequence's new ids; return whether all of them were.

        Only ids of the answer count for the acceptance rate.
        """
        ids, num_prompt = sequence.tokens, sequence.num_prompt
        num_dropped = sequence.num_dropped_prompt + sequence.num_dropped_generated
        known = len(self._automaton.ids) - num_dropped
        end = min(len(ids), known + _MAX_NEW_IDS)
        self._automaton.extend(ids[known : max(known, min(end, num_prompt))])
        for token in ids[max(known, num_prompt) : end]:
            self._compare(token)
            self._automaton.extend((token,))
        return end == len(ids)

    def propose(self, costs: StepCosts, num_rows: int, max_tokens: int) -> list[int]:
        """Return the proposal with the largest expected gain, empty if there is none.

        `num_rows` are those of the step without it.
        """
        length = self._automaton.match_length
        if not length:
            return []
        best_num, best_gain = 0, _LEAST_GAIN
        probability, expected, plain = 1.0, 1.0, costs.cost(num_rows)
        for k in range(1, max_tokens + 1):
            probability *= self._rate(length + k - 1)
            expected += probability
            gain = expected * plain / costs.cost(num_rows + k)
            if gain > best_gain:
                best_num, best_gain = k, gain
        return self._automaton.following(best_num) if best_num else []

    def _rate(self, match_length: int) -> float:
        """The estimated probability that the predicted id follows."""
        i = _class_of(match_length)
        return self._hits[i] / self._trials[i]

    def _compare(self, token: int) -> None:
        predicted = self._automaton.following(1)
        if not predicted:
            return
        i = _class_of(self._automaton.match_length)
        if self._trials[i] >= _MEMORY:
            self._hits[i] *= 1 - 1 / _MEMORY
            self._trials[i] -= 1
        self._hits[i] += predicted[0] == token
        self._trials[i] += 1


_LEAST_GAIN = 1.05  # the expected gain that a proposal must have


# Of each match length up to the least one of the last class.
_CLASS_OF = tuple(sum(n >= least for least in _CLASSES) - 1 for n in range(_CLASSES[-1] + 1))


def _class_of(match_length: int) -> int:
    return _CLASS_OF[min(match_length, _CLASSES[-1])]
