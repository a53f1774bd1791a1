"""What constrains an answer: the grammar of its output format, and the budget of its reasoning."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from swiftchat.chat.model.files import ModelFiles
from swiftchat.chat.model.output_format import OutputFormat, output_grammar
from swiftchat.chat.model.reasoning import (
    ReasoningFormat,
    find_reasoning_format,
    opens_reasoning,
)
from swiftchat.chat.model.reasoning_markers import text_after_reasoning
from swiftchat.chat.options.config import ChatConfig
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.reasoning import ReasoningMarkers
from swiftchat.engine.api.vocabulary import ConstraintSpec, Vocabulary

if TYPE_CHECKING:
    from swiftchat.tokenizer import Prompt


class AnswerConstraints:
    """Makes the constraints of answers of one model, with its vocabulary and template."""

    def __init__(self, files: ModelFiles, config: ChatConfig) -> None:
        self._files, self._config = files, config
        self._vocabulary: Vocabulary | None = None

    def of(
        self,
        form: OutputFormat | None,
        prompt: "Prompt",
        params: SamplingParams,
        think: str | None,
        begun: str = "",
    ) -> ConstraintSpec | None:
        """Return the constraint of an answer to `prompt` that matches `form`, None without one.

        `think` is that of `PromptEncoder`, None if all that is generated is the answer. The prompt
        ends with the beginning of the answer `begun`.
        """
        if form is None:
            return None
        control = self._files.tokenizer.special_tokens
        stop_ids = tuple(i for i in params.stop_ids if i < len(self._pieces))
        if self._vocabulary is None or self._vocabulary.stop_ids != stop_ids:
            self._vocabulary = Vocabulary(self._pieces, tuple(control.values()), stop_ids)
        reasoning = None if think is None else self._reasoning
        is_thinking = reasoning is not None and opens_reasoning(prompt, reasoning)
        if think == "off" and not is_thinking:
            reasoning = None
        grammar = output_grammar(form, reasoning, control, is_thinking=is_thinking)
        return ConstraintSpec(grammar, self._vocabulary, begun)

    def with_budget(
        self, prompt: "Prompt", params: SamplingParams
    ) -> "tuple[Prompt, SamplingParams]":
        """Return a prompt and parameters by which `params.reasoning_budget` is kept.

        The engine ends the reasoning. Where the prompt has begun one that may have no token, the
        prompt ends it.
        """
        reasoning = self._reasoning
        if params.reasoning_budget is None or reasoning is None:
            return prompt, params
        is_open = opens_reasoning(prompt, reasoning)
        if is_open and params.reasoning_budget == 0:
            prompt, is_open = self._ended(prompt), False
        return prompt, replace(params, reasoning=replace(self._markers, is_open=is_open))

    def _ended(self, prompt: "Prompt") -> "Prompt":
        """Return a prompt with the end of its reasoning."""
        from swiftchat.tokenizer.prompt import Prompt, PromptSpan

        text, ids = self._ending
        # As control, whether or not it is: no message of a later turn with this text gets its ids.
        return Prompt((*prompt.spans, PromptSpan(text, tuple(ids), is_control=True)))

    @cached_property
    def _reasoning(self) -> ReasoningFormat | None:
        """The format of the reasoning. --raw changes what is shown, not what is generated."""
        if self._config.no_template:
            return None
        control = self._files.tokenizer.special_tokens
        return find_reasoning_format(self._files.template_source, control)

    @cached_property
    def _pieces(self) -> tuple[bytes, ...]:
        return tuple(self._files.tokenizer.token_bytes())

    @cached_property
    def _ending(self) -> tuple[str, list[int]]:
        """The text that ends reasoning, after the message of --reasoning-budget-message; its ids.

        No control token is recognized in the message.
        """
        reasoning, tokenizer = self._reasoning, self._files.tokenizer
        assert reasoning is not None
        message = self._config.reasoning_budget_message
        message = f"\n\n{message}" if message else ""
        ending = text_after_reasoning(tokenizer, self._files.template_source)
        if reasoning.close not in ending:
            ending = reasoning.ending or reasoning.close
        text, before = message + ending, reasoning.opens[0]  # not at the beginning of a text
        start = len(before)
        untrusted = [(start, start + len(message))] if message else []
        first = tokenizer.encode_rendered(before, [])
        ids = tokenizer.encode_rendered(before + text, untrusted)
        if ids[: len(first)] != first:
            ids, first = tokenizer.encode_rendered(text, [(0, len(message))]), []
        return text, ids[len(first) :]

    @cached_property
    def _markers(self) -> ReasoningMarkers:
        """What the engine knows of the reasoning."""
        assert self._reasoning is not None
        opens, close = self._reasoning.opens, self._reasoning.close.encode()
        encoded = tuple(marker.encode() for marker in opens)
        return ReasoningMarkers(
            opens=encoded,
            close=close,
            is_open=False,
            pieces=tuple(_marker_pieces(self._pieces, (*encoded, close))),
            ending=tuple(self._ending[1]),
        )


def _marker_pieces(
    pieces: Sequence[bytes], markers: Sequence[bytes]
) -> Iterator[tuple[int, bytes]]:
    """Yield the ids that can be part of a marker, or white space before one, with their bytes.

    A marker begins inside a piece, has pieces within, and ends at the beginning of another one.
    """
    begins = {marker[:1] for marker in markers}
    lengths = [(marker, range(1, len(marker) + 1)) for marker in markers]
    ends = tuple(marker[-length:] for marker, sizes in lengths for length in sizes)
    inner = {
        marker[start:end] for marker, sizes in lengths for end in sizes for start in range(end)
    }
    for token, piece in enumerate(pieces):
        if (
            any(begin in piece for begin in begins)
            or piece in inner
            or piece.startswith(ends)
            or piece.isspace()
        ):
            yield token, piece
