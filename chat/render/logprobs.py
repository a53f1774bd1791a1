"""How likely an answer's tokens were, and what the model would have said instead.

Needs an `Answer` whose parameters asked for `logprobs`. All tokens that the model said count,
those of its reasoning too, up to and with the one in which a stop string ended the answer.
"""

import io
import math
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from swiftchat.chat.render.style import Style
from swiftchat.chat.terminal.sanitize import sanitize

if TYPE_CHECKING:
    from swiftchat.chat.model.answer import Answer
    from swiftchat.engine.api.protocol import Logprob
    from swiftchat.tokenizer import Tokenizer

# Look by the least probability; colors that stand out on light and dark.
_BANDS = ((0.9, "green"), (0.5, "cyan"), (0.1, "yellow"), (0.0, "red"))
_SURE = _BANDS[0][0]  # from here on alternatives are not worth a line
_MOST_CELLS = 100


def as_json(answer: "Answer", tokenizer: "Tokenizer") -> list[dict[str, Any]] | None:
    """A list of `token`, `id`, `logprob` and `alternatives`, None where nobody asked.

    A token that is a part of a character has U+FFFD in its text; its id tells it apart.
    """
    if answer.params.logprobs is None:
        return None

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        text = _text(tokenizer, token_id)
        return {"token": text, "id": token_id, "logprob": round(logprob, 6)}

    return [
        {
            **entry(token_id, one.logprob),
            "alternatives": [entry(*alternative) for alternative in one.top],
        }
        for token_id, one in _pairs(answer)
    ]


def as_terminal_text(answer: "Answer", tokenizer: "Tokenizer", style: Style) -> str:
    """The answer with each token colored by its probability, then a list of the unsure ones.

    Without colors it is the list alone.
    """
    # Here, not at the top: the prompt must not wait for it.
    from rich.console import Console
    from rich.text import Text

    width = min(_MOST_CELLS, shutil.get_terminal_size().columns)
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=style.is_colored,
        highlight=False,
        color_system="standard" if style.is_colored else None,
    )
    if style.is_colored:
        console.print(_colored(answer, tokenizer))
        legend = [
            (f"{floor:.0%} and more  " if floor else "less", style) for floor, style in _BANDS
        ]
        console.print(Text.assemble(*legend))
    rows = [(i, token_id, one) for i, (token_id, one) in enumerate(_pairs(answer), 1)]
    unsure = [row for row in rows if math.exp(row[2].logprob) < _SURE]
    for number, token_id, one in unsure:
        line = _line(tokenizer, number, token_id, one)
        console.print(Text(line, style=_style(one.logprob)), no_wrap=True, overflow="ellipsis")
    if sure := len(rows) - len(unsure):
        console.print(Text(f"not listed: {sure} tokens of {_SURE:.0%} and more"))
    return out.getvalue()


def _colored(answer: "Answer", tokenizer: "Tokenizer") -> Any:
    from rich.text import Text

    text, stream = Text(), tokenizer.stream()
    for token_id, one in _pairs(answer):
        text.append(sanitize(stream.push(token_id)), style=_style(one.logprob))
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
    said = slice(answer.num_tokens)  # the engine may have been a step ahead
    return zip(answer.ids[said], answer.likelihoods[said], strict=True)


def _text(tokenizer: "Tokenizer", token_id: int) -> str:
    # After another token: the first of a text may lose the blank that it begins with.
    *_, piece = tokenizer.pieces((token_id, token_id))
    return piece.decode("utf-8", "replace")


def _quoted(tokenizer: "Tokenizer", token_id: int) -> str:
    return sanitize(repr(_text(tokenizer, token_id)))


def _percent(logprob: float) -> str:
    probability = math.exp(logprob)
    return f"{probability:.0%}" if probability >= 0.1 else f"{probability:.1%}"


def _style(logprob: float) -> str:
    return next(style for floor, style in _BANDS if math.exp(logprob) >= floor)
