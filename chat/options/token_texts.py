"""Texts that stand for tokens: `--ban`, `--logit-bias`, `--dry-breaker` and `--top-p-reset`.

A text inside an answer can be written with different tokens. `--ban` bans its usual ones, with and
without a space before it; `--logit-bias` changes its single tokens, with and without a space;
`--dry-breaker` and `--top-p-reset` mean every token that contains the text.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from swiftchat.engine.api.params import LOGIT_BIAS_RANGE
from swiftchat.errors import UsageError

if TYPE_CHECKING:
    from swiftchat.tokenizer import Tokenizer

# As in llama.cpp and in the first description of DRY.
_DRY_BREAKERS = ("\n", ":", '"', "*")
_NO_BREAKER = "none"


def parse_bias(text: str) -> tuple[str, float]:
    """Return the text and the number of `TEXT=NUMBER`. Raises `UsageError`."""
    token, equals, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not equals or not token or value not in LOGIT_BIAS_RANGE:
        rule = f"TEXT=NUMBER with a number {LOGIT_BIAS_RANGE}"
        raise UsageError(
            f"--logit-bias {text!r} is not {rule}", "write it as --logit-bias ' yes=5'"
        )
    return token, value


def check_texts(texts: Mapping[str, Sequence[str]]) -> None:
    """Raise `UsageError` for invalid and contradictory texts, without a tokenizer."""
    biased = [parse_bias(text)[0] for text in texts["logit_bias"]]
    for text in biased:
        if biased.count(text) > 1:
            raise UsageError(f"--logit-bias has {text!r} twice", "give it one number")
        if text in texts["ban"]:
            raise UsageError(f"--ban and --logit-bias both have {text!r}", "leave out one of them")


class TokenTexts:
    """Finds the tokens that texts stand for."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer
        self._pieces: list[bytes] | None = None
        self._last: tuple[object, dict[str, Any]] | None = None  # texts and their parameters

    def parameters(self, texts: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """Return the engine's parameters for `ChatConfig.texts`.

        Without `dry_breaker` texts, those that are usual for DRY are taken. Raises `UsageError`
        for a biased text that is no single token.
        """
        if self._last is None or self._last[0] != texts:
            self._last = texts, self._parameters(texts)
        return self._last[1]

    def _parameters(self, texts: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        breakers = texts["dry_breaker"] or _DRY_BREAKERS
        if tuple(breakers) == (_NO_BREAKER,):
            breakers = ()
        bias: dict[int, float] = {}
        for text in texts["logit_bias"]:
            token, value = parse_bias(text)
            bias |= dict.fromkeys(self._single_tokens(token), value)
        words = dict.fromkeys(word for text in texts["ban"] for word in self._words(text))
        return {
            "logit_bias": tuple(bias.items()),
            "bad_words": tuple(words),
            "dry_breaker_ids": self._containing(breakers),
            "top_p_reset_ids": self._containing(texts["top_p_reset"]),
        }

    def _single_tokens(self, text: str) -> list[int]:
        found = self._equal(text)
        if not found:
            num_tokens = len(self._tokenizer.encode(text))
            raise UsageError(
                f"--logit-bias: {text!r} is {num_tokens} tokens, not one",
                "swiftchat tokens --show prints the tokens of a text; --ban bans any text",
            )
        return found

    def _equal(self, text: str) -> list[int]:
        """Return the tokens that write the text, or the text after a space."""
        forms = {text.encode(), b" " + text.encode()}
        return [i for i, piece in enumerate(self._all_pieces()) if piece in forms]

    def _words(self, text: str) -> list[tuple[int, ...]]:
        """Return the usual sequences of tokens for the text, with and without a space."""
        encode = self._tokenizer.encode
        words = [tuple(encode(text)), tuple(encode(" " + text))]
        # After other text, a tokenizer that puts a space before a text adds none.
        before = encode("\n")
        continued = encode("\n" + text)
        if continued[: len(before)] == before:
            words.append(tuple(continued[len(before) :]))
        return [*words, *((token,) for token in self._equal(text))]

    def _containing(self, texts: Sequence[str]) -> tuple[int, ...]:
        parts = [text.encode() for text in texts]
        if not parts:
            return ()
        pieces = enumerate(self._all_pieces())
        return tuple(i for i, piece in pieces if any(part in piece for part in parts))

    def _all_pieces(self) -> list[bytes]:
        """Return the bytes of each token inside a text, empty for control tokens."""
        if self._pieces is None:
            tokenizer = self._tokenizer
            num_ids = tokenizer.vocab_size
            # The first token of a text may lose its leading space.
            pieces = tokenizer.pieces([0, *range(num_ids)])[1:]
            for control in tokenizer.special_tokens.values():
                pieces[control] = b""
            self._pieces = pieces
        return self._pieces
