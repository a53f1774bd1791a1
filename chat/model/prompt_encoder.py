"""Conversations as prompts: the chat template of a model, its tools and its thinking."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from swiftchat.chat.history.conversation import EncodedTurn
from swiftchat.chat.model.files import ModelFiles
from swiftchat.chat.model.output_format import Encode
from swiftchat.chat.model.reasoning import ReasoningFormat, find_reasoning_format
from swiftchat.chat.model.template_variables import (
    effort_variables,
    thinking_levels,
    thinking_variables,
)
from swiftchat.chat.model.tool_messages import (
    has_tool_messages,
    is_answer_requested,
    without_tools,
)
from swiftchat.chat.model.tool_support import ToolSupport, find_tool_support
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.options.option_types import parse_argument
from swiftchat.errors import UsageError

if TYPE_CHECKING:
    from swiftchat.tokenizer import Prompt


class PromptEncoder:
    """Renders and encodes conversations with the chat template in `files`.

    `think` is a level, or `auto` for the default of the template.
    """

    def __init__(self, files: ModelFiles, config: ChatConfig) -> None:
        self.think = config.think
        self._files = files
        self._config = config

    def encoder(
        self,
        last: EncodedTurn | None = None,
        begun: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        more_variables: Mapping[str, Any] | None = None,
    ) -> Encode:
        """Return a function that renders and encodes messages, reusing the ids of the last turn.

        The answer continues the content of the message `begun`. `tools` are descriptions of
        functions as JSON schemas, for templates that list tools. `more_variables` of the template
        take precedence over those of --template-arg, and these over those that switch thinking.
        Messages that request an answer (`requesting_answer`) get the template without tools.
        """
        tokenizer = self._files.tokenizer
        earlier = None if last is None else tokenizer.continued(last.prompt, last.answer_ids)
        variables: dict[str, Any] = {}
        if self.think != "auto":
            variables |= thinking_variables(self.think, self._files.template_source)
        variables |= dict(map(parse_argument, self._config.template_arg))
        variables |= more_variables or {}

        def encode(messages: Sequence[Mapping[str, Any]]) -> "Prompt":
            source, all_variables = self._files.template.source, variables
            offered = list(tools or ())
            if offered or has_tool_messages(messages):
                support = self._tool_support
                if support and is_answer_requested(messages, support.tool_format.direct):
                    support, offered, messages = None, [], messages[:-1]
                source = support.source if support else source
                messages = (
                    support.messages(messages, offered) if support else without_tools(messages)
                )
                if offered:
                    listed = support.variables(offered) if support else {"tools": offered}
                    all_variables = {**listed, **variables}
            return tokenizer.prompt(
                messages, earlier=earlier, template=source, begun=begun, **all_variables
            )

        return encode

    def require_tools(self) -> ToolSupport:
        """Return how the chat template takes tools. Raises `UsageError` if it does not."""
        support = self._tool_support
        if support is None:
            raise UsageError(
                f"the chat template of {self._files.name} has no tools, or writes calls in an "
                "unknown way",
                "choose a model with tools, such as qwen3:0.6b; or leave out --mcp",
            )
        return support

    @property
    def free_control_tokens(self) -> dict[str, int]:
        """The ids of the control tokens that end no answer, by their texts."""
        ends = {*self._files.tokenizer.eos_ids, *self._files.model.config.eos_ids}
        control = self._files.tokenizer.special_tokens
        return {text: token_id for text, token_id in control.items() if token_id not in ends}

    @cached_property
    def _tool_support(self) -> ToolSupport | None:
        tokenizer, source = self._files.tokenizer, self._files.template.source
        has_template = source or tokenizer.templates
        return find_tool_support(tokenizer, source) if has_template else None

    @property
    def thinking_levels(self) -> list[str]:
        """What the chat template can set thinking to."""
        return thinking_levels(self._files.template_source)

    def effort_variables(self, effort: str) -> dict[str, Any]:
        """Return the variables of the template for a reasoning effort."""
        return effort_variables(effort, self._files.template_source)

    @property
    def always_reasons_alike(self) -> bool:
        """Whether the model reasons, and no effort changes that."""
        return self.reasoning_format() is not None and not self.effort_variables("none")

    def reasoning_format(self) -> ReasoningFormat | None:
        """Return the format of the reasoning, None if the raw text is requested."""
        if self._config.raw or self._config.no_template:
            return None
        return find_reasoning_format(
            self._files.template_source, self._files.tokenizer.special_tokens
        )

    def encode_plain_messages(self, messages: Sequence[Mapping[str, Any]]) -> "Prompt":
        """Encode the texts of messages one after the other, without the chat template."""
        return self.encode_beginning("".join(message["content"] for message in messages))

    def encode_beginning(self, text_or_ids: str | Sequence[int]) -> "Prompt":
        """Encode a text that is continued, without the chat template; ids stay as they are."""
        if isinstance(text_or_ids, str):
            return self._files.tokenizer.plain_prompt(text_or_ids, is_whole=False)
        from swiftchat.tokenizer.prompt import Prompt, PromptSpan

        return Prompt((PromptSpan("", tuple(text_or_ids), False),))

    def encode_plain(self, text: str) -> "Prompt":
        """Encode a whole text without the chat template, between the tokens that mark its ends."""
        return self._files.tokenizer.plain_prompt(text, is_whole=True)
