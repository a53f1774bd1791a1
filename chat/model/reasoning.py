"""What a model thinks before it answers, told from the answer by the marks around it."""

from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass


class Thought(str):
    """A piece of text that is reasoning, not the answer."""

    __slots__ = ()


@dataclass(frozen=True)
class ReasoningForm:
    """The texts that begin reasoning, the one that ends it, and what may begin the answer itself.

    Some of them are control tokens of the model, which are no text anywhere else. `sign` is what
    a chat template for such a model has in it.
    """

    sign: str
    opens: tuple[str, ...]
    close: str
    heads: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        return (*self.opens, self.close, *self.heads)


def _between(begin: str, end: str) -> ReasoningForm:
    return ReasoningForm(end, (begin,), end)


# From the chat templates that the models' makers published.
_CHANNELS = ("<|channel|>", "<|start|>assistant<|channel|>")
FORMS = (
    # gpt-oss ("harmony"): channels, of which `analysis` is not for the user
    ReasoningForm(
        "<|channel|>",
        tuple(f"{start}analysis<|message|>" for start in _CHANNELS),
        "<|end|>",
        tuple(
            f"{start}{name}<|message|>" for start in _CHANNELS for name in ("final", "commentary")
        ),
    ),
    _between("<think>", "</think>"),  # Qwen3, QwQ, DeepSeek-R1, SmolLM3, GLM-4.5, Nemotron
    _between("<seed:think>", "</seed:think>"),  # Seed-OSS
    _between("<thought>", "</thought>"),  # EXAONE Deep
    _between("[THINK]", "[/THINK]"),  # Magistral
    _between("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A Reasoning
    _between("◁think▷", "◁/think▷"),  # Kimi-VL Thinking
)


def reasoning_form(template: str, control: Collection[str]) -> ReasoningForm | None:
    """The form whose sign a chat template has, else the vocabulary; None for most models.

    `template` is its source, `control` the texts of the control tokens.
    """
    for form in FORMS:
        if form.sign in template:
            return form
    return next((form for form in FORMS if {form.opens[0], form.close} <= set(control)), None)


def control_marks(form: ReasoningForm, control: Mapping[str, int]) -> dict[int, str]:
    """The control tokens that the form's marks consist of: text by id."""
    return {i: text for text, i in control.items() if any(text in mark for mark in form.marks)}


class ReasoningSplitter:
    """Tells pieces of text apart; marks may be spread over pieces and never come out.

    `prompt_end` is the end of the prompt: some templates begin the reasoning themselves. Marks
    count at the beginning and after reasoning; an answer that speaks of `<think>` later is text.
    """

    def __init__(self, form: ReasoningForm | None, prompt_end: str = "") -> None:
        self._form = form
        self._held = ""
        self.is_thinking = form is not None and prompt_end.rstrip().endswith(form.opens)
        self.is_answering = form is None
        self._is_first = not self.is_thinking

    def push(self, text: str) -> Iterator[str]:
        """Give what is certain now: `Thought`s and the answer's pieces."""
        self._held += text
        while self._held:
            if self.is_answering:
                held, self._held = self._held, ""
                yield held
            elif self.is_thinking:
                found = yield from self._think()
                if not found:
                    return
            elif not self._begin():
                return

    def flush(self) -> Iterator[str]:
        """Give what was held back: there is no more."""
        held, self._held = self._held, ""
        if self.is_thinking and held:
            yield Thought(held)
        elif self._is_first and held:
            yield held

    def _think(self) -> Generator[str, None, bool]:
        assert self._form is not None
        close = self._form.close
        thought, found, rest = self._held.partition(close)
        if found:
            self.is_thinking, self._held = False, rest
        else:
            kept = _overlap(thought, close)
            thought, self._held = thought[: len(thought) - kept], thought[len(thought) - kept :]
        if thought:
            yield Thought(thought)
        return bool(found)

    def _begin(self) -> bool:
        """Find out what comes: reasoning or the answer; False while that is not certain."""
        assert self._form is not None
        stripped = self._held.lstrip()
        for mark in (*self._form.opens, *self._form.heads):
            if stripped.startswith(mark):
                self._held = stripped.removeprefix(mark).lstrip("\n")
                self._is_first = False
                self.is_thinking = mark in self._form.opens
                self.is_answering = not self.is_thinking
                return True
        if not stripped or any(m.startswith(stripped) for m in self._form.marks):
            return False
        if not self._is_first:
            self._held = stripped
        self.is_answering = True
        return True


def _overlap(text: str, mark: str) -> int:
    """How long the longest end of the text is that the mark begins with."""
    return max((n for n in range(1, len(mark)) if text.endswith(mark[:n])), default=0)
