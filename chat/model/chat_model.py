"""A model ready to answer: files, tokenizer, chat template and engine."""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from swiftchat.chat.history.conversation import Conversation, EncodedTurn
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.output_format import Encode, OutputFormat, chosen_format, output_grammar
from swiftchat.chat.model.reasoning import (
    ReasoningFormat,
    find_reasoning_format,
    opens_reasoning,
)
from swiftchat.chat.model.template_choice import TemplateChoice, choose_template
from swiftchat.chat.model.tool_support import (
    ToolSupport,
    find_tool_support,
    has_tool_messages,
    without_tools,
)
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.options.token_texts import TokenTexts, check_texts
from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.tools.formats import ToolFormat
from swiftchat.engine.api.attach import attach
from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import EngineInfo, Prefill, Progress
from swiftchat.engine.api.vocabulary import ConstraintSpec, Vocabulary
from swiftchat.errors import ContextOverflow, FileSystemError, SwiftchatError, UsageError

if TYPE_CHECKING:
    from swiftchat.tokenizer import Prompt, Tokenizer
    from swiftchat.weights.model.directory import Model

# Template variables that switch thinking: `enable_thinking` in Qwen3, SmolLM3 and GLM-4.5,
# `thinking` in DeepSeek-V3.1 and Granite.
_THINKING_VARIABLES = ("enable_thinking", "thinking")
# A variable, not the attribute or key of a message.
_THINKING_PATTERN = re.compile(r"(?<![.\w'\"])(?:enable_)?thinking\b")

StartEngine = Callable[[EngineConfig, Path], EngineClient]


def start_engine(config: EngineConfig, path: Path) -> EngineClient:
    """Start a local engine process."""
    return EngineClient(config, path).start()


def attach_or_start(config: EngineConfig, path: Path) -> EngineClient:
    """Attach to the running engine with this model and these options, or start one."""
    try:
        client = attach(config, path)
    except FileSystemError as error:
        print_notice(f"warning: {error.message}")
        client = None
    return client or start_engine(config, path)


def chat_model_for(config: ChatConfig) -> "ChatModel":
    """Return the model of the config (downloaded if it is missing), or that of `--connect`.

    Raises the errors of finding the model or connecting to the engine.
    """
    if config.connect is not None:
        from swiftchat.chat.model.remote import RemoteEngineFactory

        engine = RemoteEngineFactory(config.connect, config.token_file)
        return ChatModel(engine.folder, replace(config, model=engine.name), engine.start)
    from swiftchat.chat.model.find import find_model

    path = find_model(config.model, offline=config.offline, quiet=config.quiet)
    return ChatModel(path, config, start_engine) if config.no_attach else ChatModel(path, config)


class ChatModel:
    """Answers conversations; a context manager that closes the engine.

    The constructor starts the engine, which loads in the background. `prepare` (or the first use)
    loads the tokenizer, so that the prompt can be drawn before. `changes` are sampling parameters
    set with `/set`; they take precedence over those of the config. `think` is `on`, `off`, or
    `auto` for the default of the chat template. `tools` are given to the template.
    """

    def __init__(
        self, path: Path, config: ChatConfig, start: StartEngine = attach_or_start
    ) -> None:
        self.path = path
        self.config = config
        self.changes: dict[str, Any] = {}
        self.think = config.think
        self.tools: list[dict[str, Any]] = []
        self._tool_support: ToolSupport | Literal["unknown"] | None = "unknown"
        self.output_format = chosen_format(config)
        self._vocabulary: Vocabulary | None = None
        self._start = start
        self._failure: Exception | None = None
        self._engine_failed = False
        self.is_closed = False
        self._loading: threading.Thread | None = None
        self.engine = start(config.engine(), path)

    def __enter__(self) -> "ChatModel":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self.engine.close()
        self.is_closed = True

    def for_model(self, path: Path, name: str) -> "ChatModel":
        """Return a ChatModel for another model with the same options and changes."""
        other = ChatModel(path, replace(self.config, model=name), self._start)
        other.changes, other.think = dict(self.changes), self.think
        other.output_format = self.output_format
        return other

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def model(self) -> "Model":
        self._wait_loaded()
        return self._model

    @property
    def quantization(self) -> str | None:
        """The quantization method in `config.json`, None for a plain model."""
        if self.config.dummy is not None or self.model.quantization_config is None:
            return None
        return str(self.model.quantization_config.get("quant_method"))

    @property
    def tokenizer(self) -> "Tokenizer":
        self._wait_loaded()
        return self._tokenizer

    @property
    def context_tokens(self) -> int:
        """The context of the engine, or what it will probably be while the engine loads."""
        if self.engine.info is not None:
            return self.engine.info.ctx_size_tokens
        longest = self.model.config.max_context_tokens
        return min(self.config.ctx_size or longest, longest)

    @property
    def params(self) -> SamplingParams:
        return self.params_with(self.changes)

    def params_with(self, changes: dict[str, Any]) -> SamplingParams:
        """Return the sampling parameters with changes. Raises `UsageError` for a bad value."""
        control = self.tokenizer.special_tokens
        ends = [control[end] for end in self.template.ends if end in control]
        stop_ids = (*self.tokenizer.eos_ids, *self.model.config.eos_ids, *ends)
        stop_ids = tuple(dict.fromkeys(stop_ids))
        params = self.config.sampling(self.model.generation_config, stop_ids, changes)
        texts = self.config.texts(changes)
        check_texts(texts)
        if not (params.dry_multiplier or any(texts.values())):
            return params  # looking for tokens takes some time
        return replace(params, **self._token_texts.parameters(texts))

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop texts."""
        return self.config.texts(self.changes)["stop"]

    @property
    def settings(self) -> dict[str, Any]:
        """The options to save with a conversation."""
        from swiftchat.weights.hub.aliases import DEFAULT_MODEL

        return {"model": DEFAULT_MODEL} | self.config.settings(self.changes)

    @property
    def template(self) -> TemplateChoice:
        """The chat template; with `--no-template` an empty choice."""
        self._wait_loaded()
        return self._template

    def prepare(self) -> None:
        """Load the tokenizer in the background; later calls do nothing."""
        if self._loading is None:
            self._loading = threading.Thread(target=self._load_files, name="tokenizer", daemon=True)
            self._loading.start()

    def set_parameter(self, name: str, value: Any) -> None:
        """Change a sampling parameter of future answers. Raises `UsageError` for a bad value."""
        changes = {**self.changes, name: value}
        self.params_with(changes)
        self.changes = changes

    def set_engine_option(self, name: str, value: float | None) -> None:
        """Change an option of the engine, which starts again if the value is another one.

        Raises `UsageError` for a bad value and for the engine of `--connect`.
        """
        if self.config.connect is not None:
            raise UsageError(f"the remote engine determines {name}", "choose it where it starts")
        change: dict[str, Any] = {name: value}
        config = replace(self.config, **change)
        config.engine()  # checks the value
        if config != self.config:
            self.config = config
            self.restart()

    def wait_ready(self, on_progress: Callable[[Progress], None] | None = None) -> EngineInfo:
        """Wait for the engine; restart it if its process has ended.

        Raises an error of loading; the next call tries again.
        """
        self._wait_loaded()
        if self._engine_failed:
            self.restart()
        try:
            return self.engine.wait_ready(on_progress)
        except SwiftchatError:
            if self.engine.info is None:
                self._engine_failed = True
                raise
        self.restart()
        return self.engine.wait_ready(on_progress)

    def restart(self) -> None:
        """Start the engine again, which loads in the background."""
        if not self.is_closed:
            self.engine.close()
        self.engine = self._start(self.config.engine(), self.path)
        self._engine_failed = self.is_closed = False

    def answer(
        self,
        conversation: Conversation,
        on_dropped: Callable[[int], None],
        on_prefill: Callable[[Prefill], None] | None = None,
        new_seed: bool = False,
        prefix: str = "",
    ) -> Answer:
        """Start to answer a conversation.

        `on_dropped` receives the number of messages that did not fit the context. `new_seed`
        ignores a fixed seed. With `prefix` the answer continues this text, which is not part of it.
        """
        info = self.wait_ready()
        params = replace(self.params, seed=None) if new_seed else self.params
        quarter = info.ctx_size_tokens // 4
        room = quarter if params.max_tokens is None else min(params.max_tokens, quarter)
        encode = (
            self._encode_messages
            if self.config.no_template
            else self.encoder(conversation.last_turn, prefix, self.tools or None)
        )
        if self.output_format is not None:
            encode = self.output_format.instructed(encode)
        prompt, num_dropped = conversation.fit_context(
            encode, info.ctx_size_tokens, self.config.overflow, room
        )
        if num_dropped:
            on_dropped(num_dropped)
        tool_format = self.require_tools().tool_format if self.tools else None
        answer = self.start_answer(
            prompt, params, self.stops, on_prefill, tool_format, self.output_format
        )
        conversation.last_turn = EncodedTurn(prompt, answer.ids)
        return answer

    def start_answer(
        self,
        prompt: "Prompt",
        params: SamplingParams,
        stops: Sequence[str],
        on_prefill: Callable[[Prefill], None] | None = None,
        tool_format: ToolFormat | None = None,
        output_format: OutputFormat | None = None,
    ) -> Answer:
        """Start to answer a prompt. It ends before any of `stops` and of the template's ends.

        Calls of tools are text without `tool_format`. The answer matches `output_format`.
        """
        if not len(prompt):
            raise UsageError("the prompt is empty", "type a message")
        text_ends = [end for end in self.template.ends if end not in self.tokenizer.special_tokens]
        constraint: ConstraintSpec | None = None
        if output_format is not None:
            constraint = self._constraint(output_format, prompt, params)
        return Answer(
            *(self.engine, self.tokenizer, prompt, params, [*stops, *text_ends], on_prefill),
            *(self._reasoning_format(), tool_format, constraint),
        )

    def check_fits(self, prompt: "Prompt") -> None:
        """Raise `ContextOverflow` for a prompt that the engine would refuse as too long."""
        ctx_size = self.wait_ready().ctx_size_tokens
        if len(prompt) >= ctx_size:
            raise ContextOverflow(
                f"the prompt has {len(prompt)} tokens, the context only {ctx_size}"
            )

    def complete(
        self, text_or_ids: str | Sequence[int], params: SamplingParams, stops: Sequence[str]
    ) -> Answer:
        """Start to continue a text or its token ids, without the chat template."""
        from swiftchat.tokenizer.prompt import Prompt, PromptSpan

        if isinstance(text_or_ids, str):
            prompt = self.encode_plain(text_or_ids)
        else:
            prompt = Prompt((PromptSpan("", tuple(text_or_ids), False),))
        if not len(prompt):
            raise UsageError("the prompt is empty")
        self.check_fits(prompt)
        return Answer(self.engine, self.tokenizer, prompt, params, stops)

    def encoder(
        self,
        last: EncodedTurn | None = None,
        prefix: str = "",
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> Encode:
        """Return a function that renders and encodes messages, reusing the ids of the last turn.

        `tools` are descriptions of functions as JSON schemas, for templates that list tools.
        """
        tokenizer = self.tokenizer
        earlier = None if last is None else tokenizer.continued(last.prompt, last.answer_ids)
        variables: dict[str, Any] = {} if tools is None else {"tools": list(tools)}
        if self.think != "auto":
            variables |= dict.fromkeys(_THINKING_VARIABLES, self.think == "on")

        def encode(messages: Sequence[Mapping[str, Any]]) -> "Prompt":
            source = self.template.source
            if tools or has_tool_messages(messages):
                support = self._find_tool_support()
                source = support.source if support else source
                messages = support.adapted(messages) if support else without_tools(messages)
            return tokenizer.prompt(
                messages, earlier=earlier, template=source, answer_prefix=prefix, **variables
            )

        return encode

    def require_tools(self) -> ToolSupport:
        """Return how the chat template takes tools. Raises `UsageError` if it does not."""
        support = self._find_tool_support()
        if support is None:
            raise UsageError(
                f"the chat template of {self.name} takes no tools, or in a way that is not known",
                "choose a model whose template takes tools, as qwen3:0.6b; or leave out --mcp",
            )
        return support

    def _find_tool_support(self) -> ToolSupport | None:
        if self._tool_support == "unknown":
            has_template = self.template.source or self.tokenizer.templates
            self._tool_support = (
                find_tool_support(self.tokenizer, self.template.source) if has_template else None
            )
        return self._tool_support

    @property
    def can_switch_thinking(self) -> bool:
        """Whether the chat template has a variable that switches thinking."""
        return _THINKING_PATTERN.search(self._template_source()) is not None

    def _constraint(
        self, form: OutputFormat, prompt: "Prompt", params: SamplingParams
    ) -> ConstraintSpec:
        control = self.tokenizer.special_tokens
        if self._vocabulary is None:
            pieces = tuple(self.tokenizer.token_bytes())
            stop_ids = tuple(i for i in params.stop_ids if i < len(pieces))
            self._vocabulary = Vocabulary(pieces, tuple(control.values()), stop_ids)
        # --raw changes what is shown, not what the model generates.
        source = self._template_source()
        reasoning = None if self.config.no_template else find_reasoning_format(source, control)
        is_thinking = reasoning is not None and opens_reasoning(prompt, reasoning)
        if self.think == "off" and not is_thinking:
            reasoning = None
        grammar = output_grammar(form, reasoning, control, is_thinking=is_thinking)
        return ConstraintSpec(grammar, self._vocabulary)

    def _reasoning_format(self) -> ReasoningFormat | None:
        """Return the format of the reasoning, None if the raw text is requested."""
        if self.config.raw or self.config.no_template:
            return None
        return find_reasoning_format(self._template_source(), self.tokenizer.special_tokens)

    def _template_source(self) -> str:
        return self.template.source or self.tokenizer.template or ""

    def _encode_messages(self, messages: Sequence[Mapping[str, Any]]) -> "Prompt":
        return self.encode_plain("".join(message["content"] for message in messages))

    def encode_plain(self, text: str) -> "Prompt":
        """Encode a text without the chat template, after the model's first control token."""
        from swiftchat.tokenizer.prompt import Prompt, PromptSpan

        tokenizer = self.tokenizer
        bos = [] if tokenizer.bos_id is None or not self._adds_bos() else [tokenizer.bos_id]
        return Prompt((PromptSpan(text, (*bos, *tokenizer.encode(text)), False),))

    def _adds_bos(self) -> bool:
        return self.model.tokenizer_config.get("add_bos_token") is True

    def _load_files(self) -> None:
        # Imported here: numpy would delay the prompt by 0.1 s.
        from swiftchat.tokenizer import Tokenizer
        from swiftchat.weights.model.directory import Model

        try:
            self._model = Model.open(self.path)
            self._tokenizer = Tokenizer.load(self.path)
            self._token_texts = TokenTexts(self._tokenizer)
            self._template = self._choose_template()
            # Imports jinja2 now instead of during the first answer.
            import swiftchat.tokenizer.template.template  # noqa: F401
        except Exception as error:  # noqa: BLE001  (raised again when the files are used)
            self._failure = error

    def _choose_template(self) -> TemplateChoice:
        from swiftchat.weights.architectures.registry import architecture_of

        if self.config.no_template:
            return TemplateChoice("none")
        model_type = architecture_of(self._model.config.architecture).model_type
        return choose_template(self.config.template, self._tokenizer, model_type)

    def _wait_loaded(self) -> None:
        self.prepare()
        assert self._loading is not None
        self._loading.join()
        if self._failure is not None:
            raise self._failure
