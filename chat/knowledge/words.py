"""The words of a text for the word search: parts of names in code, characters of Chinese."""

import re
from collections.abc import Iterator

_WORD = re.compile(r"[^\W_]+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# Chinese, Japanese and Thai have no spaces between words.
_UNSPACED = re.compile("[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")
# Words of questions, which say nothing about what is asked for.
_COMMON = frozenset(
    re.findall(
        r"\w+",
        """a an and any are as at be by can could did do does for from had has have how i if in into
        is it its me my of on or our please should so some tell than that the their them then there
        these they this to was we were what when where which who why will with would you your""",
    )
)


def words_of(text: str) -> Iterator[str]:
    """Yield the words in lower case; of `maxTokens` also its parts, of Chinese pairs of signs."""
    for word in _WORD.findall(text):
        if runs := _UNSPACED.findall(word):
            for run in runs:
                yield from (run[i : i + 2] for i in range(max(1, len(run) - 1)))
            continue
        yield word.lower()
        parts = _PART.findall(word) if word.isascii() else []
        if len(parts) > 1:
            yield from (part.lower() for part in parts)


def words_of_question(question: str, most: int = 64) -> list[str]:
    """Return the last different words of a question that say what it is about."""
    found = dict.fromkeys(words_of(question))
    return [word for word in found if word not in _COMMON][-most:]
