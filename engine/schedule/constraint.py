"""The grammar of one answer, and what it allows next."""

import numpy as np
import torch
from torch import Tensor

from swiftchat.engine.schedule.token_trie import TokenTrie
from swiftchat.errors import UsageError


class Constraint:
    """Follows one answer through a grammar in llguidance's JSON format.

    `mask` are the ids that may come next: int32 [ceil(vocab_size / 32)], the lowest bit of a word
    first. Ids of the model beyond the vocabulary are not allowed. Where only one text can follow,
    only its first id is. The answer goes on after the text `begun`. Raises `UsageError` for a
    grammar that llguidance does not accept, and one that does not begin with this text.
    """

    mask: Tensor

    def __init__(self, trie: TokenTrie, grammar: str, vocab_size: int, begun: str = "") -> None:
        import llguidance

        self._vocab_size = vocab_size
        self._matcher = llguidance.LLMatcher(trie.tokenizer, grammar, log_level=0)
        self._check()
        ids = trie.tokenize(begun.encode()) if begun else []
        if ids and not self._matcher.consume_tokens(ids):
            raise UsageError(f"an answer of this format does not begin with {begun!r:.80}")
        self._update()

    @property
    def allowed(self) -> Tensor:
        """`mask` as bool [vocab_size]."""
        bits = np.unpackbits(self.mask.numpy().view(np.uint8), bitorder="little")
        return torch.from_numpy(bits[: self._vocab_size]).bool()

    def accept(self, *tokens: int) -> None:
        """Append allowed tokens to the answer; update `mask`.

        Raises `UsageError` if the grammar has become too complex.
        """
        for token in tokens:
            self._matcher.consume_token(token)
        self._update()

    def forced(self) -> list[int]:
        """Return the ids that must come next, none if there is a choice.

        They are those of `TokenTrie.tokenize`, up to where what follows could change them.
        """
        ids: list[int] = self._matcher.compute_ff_tokens()
        self._check()
        return ids if all(i < self._vocab_size for i in ids) else []

    def _update(self) -> None:
        self._check()
        found = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)
        self._check()
        words = np.zeros(-(-self._vocab_size // 32), dtype=np.int32)
        words[: len(found)] = found[: len(words)]
        self.mask = torch.from_numpy(words)

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().strip().partition("\n")[0]
            raise UsageError(f"the grammar cannot be followed: {reason}", "simplify the grammar")
