"""The grammars of answers, with the vocabulary and the tokenizer that they need."""

from collections.abc import Callable
from pathlib import Path

from swiftchat.engine.api.vocabulary import ConstraintSpec
from swiftchat.engine.schedule.constraint import Constraint
from swiftchat.engine.schedule.token_trie import TokenTrie
from swiftchat.errors import SwiftchatError


class Grammars:
    """Makes the constraints of answers.

    Ids of texts that a grammar forces are those of the tokenizer in `folder`, if there is one:
    the model has learned these, and not other ids that spell the same text.
    """

    def __init__(self, folder: Path | None, vocab_size: int) -> None:
        self._folder, self._vocab_size = folder, vocab_size
        self._trie: TokenTrie | None = None  # of the last vocabulary

    def constraint(self, spec: ConstraintSpec) -> Constraint:
        """Raises `UsageError` for an invalid grammar, and one that `spec.begun` does not match."""
        if self._trie is None or spec.vocabulary != self._trie.vocabulary:
            self._trie = TokenTrie(spec.vocabulary, self._encode())
        return Constraint(self._trie, spec.grammar, self._vocab_size, spec.begun)

    def _encode(self) -> Callable[[str], list[int]] | None:
        from swiftchat.tokenizer import Tokenizer

        try:
            return None if self._folder is None else Tokenizer.load(self._folder).encode
        except SwiftchatError:  # the terminal has one of its own
            return None
