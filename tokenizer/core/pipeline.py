"""What a tokenizer does, whichever file it was read from."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from swiftchat.tokenizer.core.added_tokens import AddedToken

__all__ = ["TokenizerPipeline"]


@dataclass(frozen=True)
class TokenizerPipeline:
    """The steps between text and ids, in their order, and the way back.

    `vocab` is the model's own: added tokens that are not in it have their ids in
    `added_tokens` only. `normalize` rewrites the text between added tokens. `words` cuts it;
    its second argument says whether the text stands at the very beginning. `encode_word` gives
    a word's ids, none of which is a control token's. `reader` makes a function that turns
    tokens into bytes one after the other; a new one for each text, for it may remember where in
    the text it is. `kind` names all this to people.
    """

    kind: str
    vocab: Mapping[str, int]
    added_tokens: tuple[AddedToken, ...]
    normalize: Callable[[str], str]
    words: Callable[[str, bool], Iterable[str]]
    encode_word: Callable[[str], list[int]]
    reader: Callable[[], Callable[[str], bytes]]
