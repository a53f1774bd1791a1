"""Beam search over log-probabilities, as `transformers` does it: which beams go on, which end."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Candidate:
    """The token that may follow a running beam, and the sum of all logprobs up to it."""

    beam: int
    token: int
    logprob: float


@dataclass(frozen=True)
class Hypothesis:
    """A finished beam: its last candidate, and the sum of its logprobs / length ^ penalty.

    `tokens` are those of the beam and the last one, which is a stop id unless the length ended it.
    """

    tokens: tuple[int, ...]
    score: float


@dataclass
class BeamSearch:
    """The running beams of one prompt, best first, and the hypotheses that have finished.

    `tokens` are the generated ids of each running beam and `logprobs` their sums. At most
    `num_beams` hypotheses are kept in `finished`, best first. A hypothesis ends with one of
    `stop_ids` or at `max_tokens`; the stop id counts in its length. `early_stopping`: `true` ends
    the search with the first `num_beams` hypotheses; `false` when the best running beam, at its
    present length, scores no higher than the worst of them; `never` when it cannot do so at any
    length (estimated at `max_tokens`, if longer beams score higher). Above 0, `diversity_rate` ·
    (number of more probable continuations of the same beam) is subtracted from a candidate's sum of
    logprobs where candidates are compared, and only there (Li et al., 2016, arXiv:1611.08562): with
    it, fewer of the chosen beams come from one.
    """

    num_beams: int
    stop_ids: frozenset[int]
    max_tokens: int
    length_penalty: float = 1.0
    early_stopping: str = "false"
    diversity_rate: float = 0.0
    tokens: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    logprobs: list[float] = field(default_factory=lambda: [0.0])
    finished: list[Hypothesis] = field(default_factory=list)

    @property
    def num_candidates(self) -> int:
        """How many candidates a step needs: enough that `num_beams` of them end with no stop id."""
        return max(2, 1 + len(self.stop_ids)) * self.num_beams

    def advance(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Choose the beams that run on, best first; return the candidate that each comes from.

        `candidates` must include the best `num_candidates` of all running beams. Only hypotheses
        among the best `num_beams` candidates finish. Equal candidates keep the order of beams and
        tokens. Returns no candidate when the search is over.
        """
        length = len(self.tokens[0]) + 1
        order = self._ordered(candidates)
        running: list[Candidate] = []
        for rank, candidate in enumerate(order[: self.num_candidates]):
            if candidate.token not in self.stop_ids and length < self.max_tokens:
                running.append(candidate)
            elif rank < self.num_beams:
                tokens = (*self.tokens[candidate.beam], candidate.token)
                score: float = candidate.logprob / length**self.length_penalty
                self.finished.append(Hypothesis(tokens, score))
        running = running[: self.num_beams]
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self.finished[self.num_beams :]
        best_logprob = max((c.logprob for c in running), default=-math.inf)
        if not running or not self._can_improve(best_logprob, length):
            running = []
        self.tokens = [(*self.tokens[c.beam], c.token) for c in running]
        self.logprobs = [c.logprob for c in running]
        return running

    def _ordered(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates, best first."""
        order = sorted(candidates, key=lambda c: (-c.logprob, c.beam, c.token))
        if not self.diversity_rate:
            return order
        num_siblings: Counter[int] = Counter()
        diverse: list[tuple[float, Candidate]] = []
        for candidate in order:
            penalty = self.diversity_rate * num_siblings[candidate.beam]
            diverse.append((candidate.logprob - penalty, candidate))
            num_siblings[candidate.beam] += 1
        diverse.sort(key=lambda pair: -pair[0])  # stable: equal ones keep their order
        return [candidate for _, candidate in diverse]

    def _can_improve(self, best_logprob: float, length: int) -> bool:
        """Return whether a running beam may still become one of the best hypotheses."""
        if len(self.finished) < self.num_beams:
            return True
        if self.early_stopping == "true":
            return False
        if self.early_stopping == "never" and self.length_penalty > 0:
            length = self.max_tokens
        best_score: float = best_logprob / length**self.length_penalty
        return best_score > self.finished[-1].score
