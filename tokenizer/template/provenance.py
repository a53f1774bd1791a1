"""Which parts of a rendered template come from the caller, not from the template."""

from collections.abc import Iterable, Mapping
from typing import Any

from swiftchat.tokenizer.template.own_text import Ranges, own_ranges
from swiftchat.tokenizer.template.process import TemplateProcess
from swiftchat.tokenizer.template.variables import harmless_words


def render(
    process: TemplateProcess,
    source: str,
    inputs: Mapping[str, Any],
    own: Mapping[str, Any],
    special_tokens: Iterable[str],
) -> tuple[str, Ranges]:
    """Return what a template writes, and the ranges of it that are the caller's.

    `inputs` are `messages`, `tools` and other variables of the caller; `own` are variables that
    count as the template's, such as `bos_token`. The template is rendered once, with the caller's
    texts as they are, so that it decides as it would anywhere. Its own texts are `OwnText`, which
    keeps track of them through the operations of templates.

    Raises `BadModelFile` if the template fails.
    """
    text = process.render(source, inputs, own, harmless_words(inputs, special_tokens))
    return str.__str__(text), _complement(own_ranges(text), len(text))


def up_to(answer: str, text: str, content: Ranges) -> tuple[str, Ranges] | None:
    """Return a rendered text and its ranges of the caller, up to the end of its last message.

    The message has the content `answer`, of which a template may remove white space around it. None
    if the text does not end with it, but for what the template writes.
    """
    stripped = answer.strip()
    start = text.rfind(stripped)
    end = start + len(stripped)
    kept = [(low, min(high, end)) for low, high in content if low < end]
    if not stripped or start < 0 or not kept or not kept[-1][0] <= start < end == kept[-1][1]:
        return None
    blank = answer[len(answer.rstrip()) :]
    *before, (low, _) = kept
    return text[:end] + blank, [*before, (low, end + len(blank))]


def _complement(ranges: Ranges, length: int) -> Ranges:
    """Return the ranges of `0 : length` between the ascending `ranges`."""
    ends = [0, *(high for _, high in ranges)]
    starts = [*(low for low, _ in ranges), length]
    return [(end, start) for end, start in zip(ends, starts, strict=True) if end < start]
