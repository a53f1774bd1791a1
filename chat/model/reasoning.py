"""Reasoning of a model: its formats, and splitting it from the answer."""

from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swiftchat.chat.model.reasoning_markers import derive_markers

if TYPE_CHECKING:
    from swiftchat.tokenizer import Prompt


class ReasoningText(str):
    """A piece of text that belongs to the reasoning, not to the answer."""

    __slots__ = ()


@dataclass(frozen=True)
class ReasoningFormat:
    """The markers around reasoning.

    `opens` are the texts that start reasoning, `close` ends it, `heads` may start the answer and
    `tail` end it. Some of them consist of control tokens. A chat template with `signature` in it
    uses this format. `ending` leads from reasoning to the answer where a template does not show it;
    by default `close`.
    """

    signature: str
    opens: tuple[str, ...]
    close: str
    heads: tuple[str, ...] = ()
    tail: str = ""
    ending: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        return (*self.opens, self.close, *self.heads, self.tail)


def _tags(begin: str, end: str, ending: str = "") -> ReasoningFormat:
    return ReasoningFormat(end, (begin,), end, ending=ending)


# From the published chat templates.
_CHANNELS = ("<|channel|>", "<|start|>assistant<|channel|>")
FORMATS = (
    # gpt-oss ("harmony"): channels; `analysis` is the reasoning
    ReasoningFormat(
        "<|channel|>",
        tuple(f"{start}analysis<|message|>" for start in _CHANNELS),
        "<|end|>",
        tuple(
            f"{start}{name}<|message|>" for start in _CHANNELS for name in ("final", "commentary")
        ),
        ending="<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    ReasoningFormat(  # Muse Glimmer: messages to the model itself, before those to others
        "to=self<|message|>",
        ("to=self<|message|>", "<|start|>assistant to=self<|message|>"),
        "<|eom|>",
        ("to=user<|message|>", "<|start|>assistant to=user<|message|>", "<|message|>"),
        ending="<|eom|><|start|>assistant to=user<|message|>",
    ),
    # Qwen3, QwQ, DeepSeek-R1, SmolLM3, GLM-4.5, Nemotron
    _tags("<think>", "</think>", "\n</think>\n\n"),
    _tags("<seed:think>", "</seed:think>"),  # Seed-OSS
    _tags("<thought>", "</thought>", "\n</thought>\n\n"),  # EXAONE Deep
    _tags("[THINK]", "[/THINK]"),  # Magistral
    _tags("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A Reasoning
    _tags("◁think▷", "◁/think▷"),  # Kimi-VL Thinking
    ReasoningFormat(  # Gemma 4
        "<|channel>", ("<|channel>thought",), "<channel|>", ending="\n<channel|>"
    ),
    ReasoningFormat(  # Apriel
        "[BEGIN FINAL RESPONSE]",
        ("Here are my reasoning steps:",),
        "[BEGIN FINAL RESPONSE]",
        tail="[END FINAL RESPONSE]",
        ending="\n[BEGIN FINAL RESPONSE]\n",
    ),
    _tags("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ReasoningFormat(  # Kimi K3
        "'<|open|>'",
        ("<|open|>think<|sep|>",),
        "<|close|>think<|sep|>",
        ("<|open|>response<|sep|>",),
        tail="<|close|>response<|sep|>",
        ending="<|close|>think<|sep|><|open|>response<|sep|>",
    ),
    ReasoningFormat(  # Solar Open
        "<|begin|>assistant<|think|>",
        ("<|begin|>assistant<|think|>", "<|think|>"),
        "<|end|>",
        ("<|begin|>assistant<|content|>", "<|content|>"),
        tail="<|end|>",
        ending="<|end|><|begin|>assistant<|content|>",
    ),
)


def find_reasoning_format(template: str, control: Collection[str]) -> ReasoningFormat | None:
    """Return the format of a chat template, else of the vocabulary, None for most models.

    `template` is the source of the template, `control` the texts of the control tokens. The format
    is known by a text of the template, or derived from reasoning that it has written.
    """
    for candidate in FORMATS:
        if candidate.signature in template:
            return candidate
    if derived := derive_markers(template):
        return _tags(*derived)
    return next((f for f in FORMATS if {f.opens[0], f.close} <= set(control)), None)


def marker_tokens(markers: Collection[str], control: Mapping[str, int]) -> dict[int, str]:
    """Return the control tokens that occur in the markers: text by id."""
    return {
        token_id: text
        for text, token_id in control.items()
        if any(text in marker for marker in markers)
    }


def opens_reasoning(prompt: "Prompt", reasoning: ReasoningFormat) -> bool:
    """Return whether a prompt ends with a marker that starts reasoning."""
    end = "".join(span.text for span in prompt.spans[-4:])
    return end.rstrip().endswith(reasoning.opens)


class ReasoningSplitter:
    """Splits streamed text into reasoning and answer, and removes the markers.

    A marker may be spread over several pieces. `is_thinking` is true if the prompt has opened the
    reasoning. Markers count only at the beginning and after reasoning:
    `<think>` later in an answer is text.
    """

    def __init__(self, reasoning: ReasoningFormat | None, *, is_thinking: bool = False) -> None:
        self._format = reasoning
        self._buffer = ""
        self.is_thinking = is_thinking
        self.is_answering = reasoning is None
        self._is_first = not self.is_thinking
        self._is_after_marker = False  # line ends behind it are not part of the text

    def push(self, text: str) -> Iterator[str]:
        """Yield the pieces that are certain: `ReasoningText` and pieces of the answer."""
        self._buffer += text
        while self._buffer:
            if self._is_after_marker:
                self._buffer = self._buffer.lstrip("\n")
                self._is_after_marker = not self._buffer
                continue
            if self.is_answering:
                is_certain = yield from self._read_answer()
                if not is_certain:
                    return
            elif self.is_thinking:
                is_closed = yield from self._read_reasoning()
                if not is_closed:
                    return
            elif not self._read_start():
                return

    def flush(self) -> Iterator[str]:
        """Yield the buffered text at the end of the stream."""
        buffer, self._buffer = self._buffer, ""
        if self.is_thinking and buffer:
            yield ReasoningText(buffer)
        elif (self._is_first or self.is_answering) and buffer:
            yield buffer

    def _read_reasoning(self) -> Generator[str, None, bool]:
        """Yield reasoning up to the closing marker; return whether the marker was found."""
        assert self._format is not None
        close = self._format.close
        text, found, rest = self._buffer.partition(close)
        if found:
            self.is_thinking, self._buffer = False, rest
        else:
            # The end may be the beginning of the closing marker.
            end = len(text) - _overlap(text, close)
            text, self._buffer = text[:end], text[end:]
        if text:
            yield ReasoningText(text)
        return bool(found)

    def _read_answer(self) -> Generator[str, None, bool]:
        """Yield the answer without its tail; return False if the end may be part of one."""
        tail = self._format.tail if self._format else ""
        text, self._buffer = self._buffer, ""
        if tail:
            text, found, rest = text.partition(tail)
            end = len(text) if found else len(text) - _overlap(text, tail)
            end = len(text[:end].rstrip())
            self._buffer = rest if found else text[end:]
            text = text[:end]
        if text:
            yield text
        return not self._buffer or bool(tail and found)

    def _read_start(self) -> bool:
        """Decide between reasoning and answer; return False if more text is needed."""
        assert self._format is not None
        stripped = self._buffer.lstrip()
        for marker in (*self._format.opens, *self._format.heads):
            if stripped.startswith(marker):
                self._buffer = stripped.removeprefix(marker)
                self._is_first, self._is_after_marker = False, True
                self.is_thinking = marker in self._format.opens
                self.is_answering = not self.is_thinking
                return True
        if not stripped or any(
            marker.startswith(stripped) for marker in (*self._format.opens, *self._format.heads)
        ):
            return False
        if not self._is_first:
            self._buffer = stripped
        self.is_answering = True
        return True


def _overlap(text: str, marker: str) -> int:
    """Return the length of the longest end of `text` that is a beginning of `marker`."""
    return max((n for n in range(1, len(marker)) if text.endswith(marker[:n])), default=0)
