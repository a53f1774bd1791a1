"""The grammar of one answer, and what it allows next."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.api.vocabulary import Vocabulary
from swiftchat.errors import UsageError


class Constraint:
    """Follows one answer through a grammar in llguidance's JSON format.

    `allowed` are the ids that may come next: bool [vocab_size], where ids of the model beyond the
    vocabulary are not allowed. Raises `UsageError` for a grammar that llguidance does not accept.
    """

    allowed: Tensor

    def __init__(self, vocabulary: Vocabulary, grammar: str, vocab_size: int) -> None:
        import llguidance

        self._vocab_size = vocab_size
        self._matcher = llguidance.LLMatcher(vocabulary.tokenizer, grammar, log_level=0)
        self._update()

    def accept(self, token: int) -> None:
        """Append an allowed token to the answer; update `allowed`.

        Raises `UsageError` if the grammar has become too complex.
        """
        self._matcher.consume_token(token)
        self._update()

    def _update(self) -> None:
        self._check()
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        allowed = torch.from_numpy(np.unpackbits(bits, bitorder="little")).bool()
        missing = max(0, self._vocab_size - len(allowed))
        self.allowed = F.pad(allowed[: self._vocab_size], (0, missing))

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().strip().partition("\n")[0]
            raise UsageError(f"the grammar cannot be followed: {reason}", "simplify the grammar")
