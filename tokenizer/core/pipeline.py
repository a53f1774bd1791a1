"""The encoding and decoding steps of a tokenizer, common to all file formats."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from swiftchat.tokenizer.core.added_tokens import AddedToken


@dataclass(frozen=True)
class TokenizerPipeline:
    """Steps from text to ids in their order, and from tokens to bytes.

    `vocab` may lack added tokens, whose ids are in `added_tokens`. `normalize` rewrites the text
    between added tokens. `count_first` returns how many leading characters of the normalized form
    of a text stem from its first one. `words` splits it; the second argument is that number at the
    beginning of the whole text, else 0. `encode_word` returns the ids of a word, never a control
    token's. `make_decoder` returns a function from token to bytes that has state, so each text
    needs its own. `kind` is a name for display. `before` and `after` are the ids between which a
    whole text is encoded.
    """

    kind: str
    vocab: Mapping[str, int]
    added_tokens: tuple[AddedToken, ...]
    normalize: Callable[[str], str]
    words: Callable[[str, int], Iterable[str]]
    encode_word: Callable[[str], list[int]]
    make_decoder: Callable[[], Callable[[str], bytes]]
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    count_first: Callable[[str], int] = lambda text: 1
