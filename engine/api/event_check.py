"""What an engine reports about a generation, compared with what was asked for.

An engine on another machine may be any program: fields of the right types can still contradict
each other or the request, or never end.
"""

from collections.abc import Sequence

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import (
    Beam,
    Embedding,
    Event,
    Finished,
    Logprob,
    PromptLogprobs,
    Tokens,
)
from swiftchat.engine.api.wire import WireError

_MAX_VALUES = 1 << 22  # events and tokens of one generation: more than any answer has
_MAX_LOGPROB = 1.0  # logprobs are at most 0, but for rounding


class EventCheck:
    """Checks the events of one generation, in their order."""

    def __init__(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self._params = params
        self._num_values = 0
        self._prompt_logprobs_left = max(0, len(prompt) - 1)
        has_beams = params.beams is not None or params.logprobs is None
        self._beams_left = params.returned_beams if has_beams else 0
        self._embeddings_left = 1

    def check(self, event: Event) -> None:
        """Raise `WireError` for an event that cannot be an answer to the request."""
        size = 1
        match event:
            case Tokens(ids, logprobs):
                size += len(ids)
                is_missing = self._params.logprobs is not None and not logprobs
                if len(logprobs) != len(ids) and (logprobs or is_missing):
                    raise WireError(f"{len(logprobs)} logprobs of {len(ids)} tokens")
                _check_logprobs(logprobs)
            case PromptLogprobs(logprobs):
                size += len(logprobs)
                self._prompt_logprobs_left -= len(logprobs)
                _check_logprobs(logprobs)
            case Embedding():
                self._embeddings_left -= 1
            case Beam():
                self._beams_left -= 1
            case Finished(reason, speculated=speculated):
                is_asked = self._params.pooling is not None and reason != "interrupt"
                if is_asked and self._embeddings_left:
                    raise WireError("the embedding is missing")
                if speculated and min(speculated.num_steps, speculated.num_proposed) < 1:
                    raise WireError("speculation without a step")
        self._num_values += size
        left = (self._prompt_logprobs_left, self._beams_left, self._embeddings_left)
        if min(left) < 0 or self._num_values > _MAX_VALUES:
            raise WireError("more than was asked for")


def _check_logprobs(logprobs: Sequence[Logprob]) -> None:
    for one in logprobs:
        if max([one.logprob, *(logprob for _, logprob in one.top)]) > _MAX_LOGPROB:
            raise WireError("a logprob above 0")
