"""The constraint of an answer: the grammar of its output format, behind the reasoning."""

from typing import TYPE_CHECKING

from swiftchat.chat.model.files import ModelFiles
from swiftchat.chat.model.output_format import OutputFormat, output_grammar
from swiftchat.chat.model.reasoning import find_reasoning_format, opens_reasoning
from swiftchat.chat.options.config import ChatConfig
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.vocabulary import ConstraintSpec, Vocabulary

if TYPE_CHECKING:
    from swiftchat.tokenizer import Prompt


class AnswerConstraints:
    """Makes the constraints of answers of one model, with its vocabulary and template."""

    def __init__(self, files: ModelFiles, config: ChatConfig) -> None:
        self._files, self._config = files, config
        self._vocabulary: Vocabulary | None = None

    def of(
        self, form: OutputFormat, prompt: "Prompt", params: SamplingParams, think: str
    ) -> ConstraintSpec:
        """Return the constraint of an answer to `prompt` that matches `form`.

        `think` is that of `ChatModel`.
        """
        control = self._files.tokenizer.special_tokens
        if self._vocabulary is None:
            pieces = tuple(self._files.tokenizer.token_bytes())
            stop_ids = tuple(i for i in params.stop_ids if i < len(pieces))
            self._vocabulary = Vocabulary(pieces, tuple(control.values()), stop_ids)
        # --raw changes what is shown, not what the model generates.
        source, has_template = self._files.template_source, not self._config.no_template
        reasoning = find_reasoning_format(source, control) if has_template else None
        is_thinking = reasoning is not None and opens_reasoning(prompt, reasoning)
        if think == "off" and not is_thinking:
            reasoning = None
        grammar = output_grammar(form, reasoning, control, is_thinking=is_thinking)
        return ConstraintSpec(grammar, self._vocabulary)
