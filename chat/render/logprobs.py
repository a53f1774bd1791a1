"""Log-probabilities of an answer's tokens, as JSON and as colored text.

Both functions need an `Answer` whose parameters requested `logprobs`. They cover all generated
tokens including reasoning, up to and including the token that completed a stop string.
"""

import io
import math
import shutil
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from swiftchat.chat.render.style import Style
from swiftchat.chat.terminal.sanitize import sanitize

if TYPE_CHECKING:
    from swiftchat.chat.model.answer import Answer
    from swiftchat.engine.api.protocol import Logprob
    from swiftchat.tokenizer import Tokenizer

# (lowest probability, style of the theme).
_BANDS = (
    (0.9, "swiftchat.probable"),
    (0.5, "swiftchat.likely"),
    (0.1, "swiftchat.unlikely"),
    (0.0, "swiftchat.improbable"),
)
_MAX_LISTED_PROBABILITY = _BANDS[0][0]  # tokens at or above it are counted but not listed
_MAX_COLUMNS = 100


def as_json(answer: "Answer", tokenizer: "Tokenizer") -> list[dict[str, Any]] | None:
    """Return a list of `token`, `id`, `logprob`, `alternatives`; None if not requested."""
    if answer.params.logprobs is None:
        return None
    return entries(_pairs(answer), tokenizer)


def prompt_as_json(answer: "Answer", tokenizer: "Tokenizer") -> list[dict[str, Any]] | None:
    """Return the same for the prompt's tokens but the first, which has no logprob."""
    if answer.params.prompt_logprobs is None:
        return None
    ids = answer.prompt.ids[1 : 1 + len(answer.prompt_logprobs)]
    return entries(zip(ids, answer.prompt_logprobs, strict=True), tokenizer)


def cumulative_logprob(answer: "Answer") -> float | None:
    """Return the logprob of the whole answer; None if logprobs were not requested."""
    if answer.params.logprobs is None:
        return None
    return round(math.fsum(one.logprob for _, one in _pairs(answer)), 6)


def entries(pairs: "Iterable[tuple[int, Logprob]]", tokenizer: "Tokenizer") -> list[dict[str, Any]]:
    """Return `token`, `id`, `logprob` and `alternatives` of each token.

    The text of a token that is only part of a character contains U+FFFD; use the id instead.
    """

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        text = _text(tokenizer, token_id)
        return {"token": text, "id": token_id, "logprob": round(logprob, 6)}

    return [
        {
            **entry(token_id, one.logprob),
            "alternatives": [entry(*alternative) for alternative in one.top],
        }
        for token_id, one in pairs
    ]


def as_terminal_text(answer: "Answer", tokenizer: "Tokenizer", style: Style) -> str:
    """Return the answer colored by token probability, then a list of the uncertain tokens.

    Without colors the list is the whole text.
    """
    # Imported here because rich would delay the first prompt.
    from rich.console import Console
    from rich.text import Text
    from rich.theme import Theme as RichTheme

    out = io.StringIO()
    console = Console(
        file=out,
        width=min(_MAX_COLUMNS, shutil.get_terminal_size().columns),
        force_terminal=style.is_colored,
        highlight=False,
        color_system="standard" if style.is_colored else None,
        theme=RichTheme(style.theme.styles()),
    )
    if style.is_colored:
        console.print(_colored(answer, tokenizer))
        legend = [
            (f"{floor:.0%} and more  " if floor else "less", color) for floor, color in _BANDS
        ]
        console.print(Text.assemble(*legend))
    rows = [(i, token_id, one) for i, (token_id, one) in enumerate(_pairs(answer), 1)]
    listed = [row for row in rows if math.exp(row[2].logprob) < _MAX_LISTED_PROBABILITY]
    for number, token_id, one in listed:
        line = _line(tokenizer, number, token_id, one)
        console.print(Text(line, style=_color(one.logprob)), no_wrap=True, overflow="ellipsis")
    if num_omitted := len(rows) - len(listed):
        console.print(
            Text(f"not listed: {num_omitted} tokens of {_MAX_LISTED_PROBABILITY:.0%} and more")
        )
    return out.getvalue()


def _colored(answer: "Answer", tokenizer: "Tokenizer") -> Any:
    from rich.text import Text

    text, stream = Text(), tokenizer.stream()
    for token_id, one in _pairs(answer):
        text.append(sanitize(stream.push(token_id)), style=_color(one.logprob))
    return text


def _line(tokenizer: "Tokenizer", number: int, token_id: int, one: "Logprob") -> str:
    others = [
        f"{_quoted(tokenizer, other)} {_percent(logprob)}"
        for other, logprob in one.top
        if other != token_id
    ]
    line = f"{number:5}  {_percent(one.logprob):>6}  {_quoted(tokenizer, token_id)}"
    return f"{line:30}  {'  '.join(others)}".rstrip()


def _pairs(answer: "Answer") -> "Iterator[tuple[int, Logprob]]":
    # With async decode the engine may have sampled one token more than the answer uses.
    used = slice(answer.num_tokens)
    return zip(answer.ids[used], answer.logprobs[used], strict=True)


def token_bytes(tokenizer: "Tokenizer", token_id: int) -> bytes:
    """Return the bytes of a token inside a text, which may be part of a character."""
    # Decode the token after another one: the first token of a text may lose its leading space.
    *_, piece = tokenizer.pieces((token_id, token_id))
    return piece


def _text(tokenizer: "Tokenizer", token_id: int) -> str:
    return token_bytes(tokenizer, token_id).decode("utf-8", "replace")


def _quoted(tokenizer: "Tokenizer", token_id: int) -> str:
    return sanitize(repr(_text(tokenizer, token_id)))


def _percent(logprob: float) -> str:
    probability = math.exp(logprob)
    return f"{probability:.0%}" if probability >= 0.1 else f"{probability:.1%}"


def _color(logprob: float) -> str:
    return next(color for floor, color in _BANDS if math.exp(logprob) >= floor)
