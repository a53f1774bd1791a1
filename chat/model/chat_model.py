"""A model ready to answer: files, tokenizer, chat template and engine."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swiftchat.chat.history.conversation import Conversation, EncodedTurn
from swiftchat.chat.model.adapters import Adapters, open_adapters
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.answer_group import AnswerGroup
from swiftchat.chat.model.constraints import AnswerConstraints
from swiftchat.chat.model.context_budget import Messages, check_fits, fit_prompt
from swiftchat.chat.model.draft import draft_kept, with_draft
from swiftchat.chat.model.engine_start import StartEngine, engine_starter, hint_at_others
from swiftchat.chat.model.files import ModelFiles
from swiftchat.chat.model.output_format import Encode, OutputFormat, chosen_format
from swiftchat.chat.model.prompt_encoder import PromptEncoder
from swiftchat.chat.model.template_choice import TemplateChoice
from swiftchat.chat.model.tool_messages import requesting_answer
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.options.token_texts import check_texts
from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.tools.formats import ToolFormat, find_plain_format
from swiftchat.chat.tools.offer import NO_TOOLS, Offer
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import EngineInfo, Progress, Wait
from swiftchat.engine.api.tuning import Tuning
from swiftchat.errors import OutOfMemory, SwiftchatError, UsageError
from swiftchat.weights.hub.cached_models import name_at

if TYPE_CHECKING:
    from swiftchat.tokenizer import Prompt, Tokenizer
    from swiftchat.weights.model.directory import Model

_RESTORED_HINT = "the engine's options are those before /set again; send the message again"


def chat_model_for(config: ChatConfig) -> "ChatModel":
    """Return the model of the config (downloaded if it is missing), or that of `--connect`.

    Raises the errors of finding the model or connecting to the engine.
    """
    if config.connect is not None:
        from swiftchat.chat.model.remote import RemoteEngineFactory

        engine = RemoteEngineFactory(config)
        return ChatModel(engine.folder, replace(config, model=engine.name), engine.start)
    from swiftchat.chat.model.find import find_model

    path = find_model(config.model, offline=config.offline, quiet=config.quiet)
    config = with_draft(config, path)
    adapters = open_adapters(config, path)  # first: a wrong one is found before loading
    return ChatModel(path, config, adapters=adapters)


class ChatModel:
    """Answers conversations; a context manager that closes the engine.

    The constructor starts the engine, which loads in the background. `prepare` (or the first use)
    loads the tokenizer, so that the prompt can be drawn before. `changes` are sampling parameters
    set with `/set`; they take precedence over those of the config. `prompts` encodes conversations.
    Without `start` the engine is the running one with these options, if there is one. `name` is
    that of the model for the user.
    `tools` are given to the template. `adapters` are those of its answers.
    """

    def __init__(
        self,
        path: Path,
        config: ChatConfig,
        start: StartEngine | None = None,
        adapters: Adapters | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.path, self.name = path, name or name_at(path)
        self.config = config
        self.changes: dict[str, Any] = {}
        self.tools: list[dict[str, Any]] = []
        self.output_format = chosen_format(config)
        self._start = start or engine_starter(config)
        self._files = ModelFiles(path, config)
        self.prompts = PromptEncoder(self._files, config)
        self._constraints = AnswerConstraints(self._files, config)
        is_remote = config.connect is not None
        self.adapters = adapters or Adapters(lambda: self.model.config, is_remote=is_remote)
        self._engine_failed = self._has_told_engine_note = False
        self._ready_config: ChatConfig | None = None  # of the last engine that was ready
        self.is_closed = False
        self.engine = self._start(config.engine(), path)

    def __enter__(self) -> "ChatModel":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self.engine.close()
        self.is_closed = True

    def for_model(self, path: Path, name: str, start: StartEngine | None = None) -> "ChatModel":
        """Return a ChatModel for another model with the same options and changes.

        Without `start` its engine starts as this one's.
        """
        config = draft_kept(replace(self.config, model=name), path)
        other = ChatModel(path, config, start or self._start)
        other.changes, other.prompts.think = dict(self.changes), self.prompts.think
        other.output_format = self.output_format
        return other

    @property
    def model(self) -> "Model":
        return self._files.model

    def tell_notes(self) -> None:
        """Print what is left out of the model's files, and the engine's note; only once."""
        engine_note = self.engine.info.note if self.engine.info is not None else ""
        if engine_note and not self._has_told_engine_note:
            self._has_told_engine_note = True
            print_notice(f"note: {engine_note}")
        for note in () if self.config.dummy is not None else self._files.new_notes():
            print_notice(f"note: {note}")

    @property
    def quantization(self) -> str | None:
        """The quantization method in `config.json`, None for a plain model."""
        if self.config.dummy is not None or self.model.quantization_config is None:
            return None
        return str(self.model.quantization_config.get("quant_method"))

    @property
    def tokenizer(self) -> "Tokenizer":
        return self._files.tokenizer

    @property
    def context_tokens(self) -> int:
        """The context of the engine, or what it will probably be while the engine loads."""
        if self.engine.info is not None:
            return self.engine.info.ctx_size_tokens
        config = self.model.config
        wanted = self.config.ctx_size or config.max_context_tokens
        return min(wanted, config.longest_context_tokens)

    @property
    def params(self) -> SamplingParams:
        return self.params_with(self.changes)

    def params_with(self, changes: dict[str, Any]) -> SamplingParams:
        """Return the sampling parameters with changes. Raises `UsageError` for a bad value."""
        control = self.tokenizer.special_tokens
        ends = [control[end] for end in self.template.ends if end in control]
        stop_ids = (*self.tokenizer.eos_ids, *self.model.config.eos_ids, *ends)
        # A token that is declared but not in the vocabulary has no logit.
        vocab_size = self.model.config.vocab_size
        stop_ids = tuple(i for i in dict.fromkeys(stop_ids) if i < vocab_size)
        params = self.config.sampling(self.model.generation_config, stop_ids, changes)
        texts = self.config.texts(changes)
        check_texts(texts)
        if not (params.dry_multiplier or any(texts.values())):
            return params  # looking for tokens takes some time
        return replace(params, **self._files.token_texts.parameters(texts))

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop texts."""
        return self.config.texts(self.changes)["stop"]

    @property
    def settings(self) -> dict[str, Any]:
        """The options to save with a conversation."""
        from swiftchat.weights.hub.known_models import DEFAULT_MODEL

        return {"model": DEFAULT_MODEL} | self.config.settings(self.changes)

    @property
    def template(self) -> TemplateChoice:
        """The chat template; with `--no-template` an empty choice."""
        return self._files.template

    def prepare(self) -> None:
        """Load the tokenizer in the background; later calls do nothing."""
        self._files.prepare()

    def set_parameter(self, name: str, value: Any) -> None:
        """Change a sampling parameter of future answers. Raises `UsageError` for a bad value."""
        self.set_parameters({name: value})

    def set_parameters(self, values: Mapping[str, Any]) -> None:
        """Change sampling parameters, all of them or, with a `UsageError`, none."""
        changes = {**self.changes, **values}
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
        if name == "ctx_size" and value is not None and config.dummy is None:
            self._check_context(int(value))
        if config != self.config:
            self.config = config
            self.restart()

    def _check_context(self, num_tokens: int) -> None:
        longest = self.model.config.longest_context_tokens
        if num_tokens > longest:
            raise UsageError(
                f"ctx_size must be at most {longest}, the model's context, not {num_tokens}",
                f"/set ctx_size {longest}",
            )

    def wait_ready(self, on_progress: Callable[[Progress], None] | None = None) -> EngineInfo:
        """Wait for the engine; restart it if its process has ended.

        Raises an error of loading; the next call tries again, without the options that were changed
        since an engine was ready.
        """
        self._files.wait()
        if self._engine_failed:
            self.restart()
        try:
            return self.wait_loaded(on_progress)
        except SwiftchatError:
            if self.engine.info is None:
                raise
        self.restart()
        return self.wait_loaded(on_progress)

    def wait_loaded(self, on_progress: Callable[[Progress], None] | None = None) -> EngineInfo:
        """Wait for the engine as it was started.

        Raises an error of loading, and the reason if the engine has ended.
        """
        self._files.wait()
        try:
            info = self.engine.wait_ready(on_progress)
        except SwiftchatError as error:
            if self.engine.info is None:
                self._engine_failed = True
                if isinstance(error, OutOfMemory) and self.config.connect is None:
                    hint_at_others(error)
                if self._ready_config not in (None, self.config):
                    self.config, error.hint = self._ready_config, _RESTORED_HINT
            raise
        self._ready_config = self.config
        return info

    @property
    def engine_has_failed(self) -> bool:
        """Whether loading ended with an error that `wait_ready` has raised."""
        return self._engine_failed

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
        on_wait: Callable[[Wait], None] | None = None,
        new_seed: bool = False,
        prefix: str = "",
    ) -> Answer:
        """Start to answer a conversation; see `answers`."""
        return self.answers(conversation, on_dropped, on_wait, new_seed, prefix).started[0]

    def answers(
        self,
        conversation: Conversation,
        on_dropped: Callable[[int], None],
        on_wait: Callable[[Wait], None] | None = None,
        new_seed: bool = False,
        prefix: str = "",
        count: int = 1,
    ) -> AnswerGroup:
        """Start `count` answers to a conversation.

        `on_dropped` receives the number of messages that did not fit the context. `new_seed`
        ignores a fixed seed. With `prefix` an answer continues this text, which is not part of it.
        """
        params = replace(self.params, seed=None) if new_seed else self.params
        is_kept = not (self.config.no_save or self.config.no_template)
        begun = {"role": "assistant", "content": prefix} if prefix else None
        encode = (
            self.prompts.encode_plain_messages
            if self.config.no_template
            else self.prompts.encoder(conversation.last_turn, begun, self.tools or None)
        )
        if self.output_format is not None:
            encode = self.output_format.instructed(encode)
        group = self.start_answers(
            conversation.versions(),
            encode,
            replace(params, saves_cache=is_kept),
            self.stops,
            count,
            on_dropped=on_dropped,
            on_wait=on_wait,
            offer=Offer(self.tools),
            output_format=self.output_format,
            tuning=self.adapters.tuning,
            begun=prefix,
        )
        first = group.started[0]
        conversation.last_turn = EncodedTurn(first.prompt, first.ids)
        return group

    def start_answers(
        self,
        versions: Iterable[tuple[int, Messages]],
        encode: Encode,
        params: SamplingParams,
        stops: Sequence[str],
        count: int = 1,
        *,
        on_dropped: Callable[[int], None] = lambda num_messages: None,
        on_wait: Callable[[Wait], None] | None = None,
        offer: Offer = NO_TOOLS,
        output_format: OutputFormat | None = None,
        tuning: Tuning | None = None,
        begun: str = "",
    ) -> AnswerGroup:
        """Start `count` answers to the version of the messages that the context has room for.

        They end before any of `stops`, and before the template's ends. Calls are text without
        tools on `offer`, which the template must take, else `UsageError` is raised. The answers
        match `output_format`, together with the text `begun` that the prompt ends with. `tuning`
        has the adapters of the answers.
        """
        tool_format = self._tool_format(offer)
        fitted, params = fit_prompt(versions, encode, params, self._prompt_context)
        prompt = fitted.prompt
        check_fits(prompt, self._prompt_context)
        if fitted.num_messages:
            on_dropped(fitted.num_messages)
        ends = [end for end in self.template.ends if end not in self.tokenizer.special_tokens]
        direct: Callable[[], Prompt] | None = None
        if tool_format is not None and tool_format.direct:
            messages = requesting_answer(fitted.messages, tool_format.direct)

            def direct_prompt() -> "Prompt":
                return self._constraints.with_budget(encode(messages), params)[0]

            direct = direct_prompt
        prompt, params = self._constraints.with_budget(prompt, params)

        def start(params: SamplingParams) -> Answer:
            think = self.prompts.think
            constraint = self._constraints.of(output_format, prompt, params, think, begun)
            answer = Answer(
                *(self.engine, self.tokenizer, prompt, params, stops, on_wait),
                *(self.prompts.reasoning_format(), tool_format, constraint, tuning),
                *(direct, ends),
            )
            answer.num_left_out = fitted.num_tokens
            return answer

        return AnswerGroup(start, params=params, count=count)

    def _tool_format(self, offer: Offer) -> ToolFormat | None:
        """Return the format of calls in answers, None if all of an answer is text."""
        if offer.tools:
            return self.prompts.require_tools().tool_format.offering(offer)
        has_marks = not (self.config.raw or self.config.no_template)
        return find_plain_format(self._files.template_source) if has_marks else None

    @property
    def _prompt_context(self) -> int:
        """The context without the virtual tokens of a soft prompt."""
        return self.wait_ready().ctx_size_tokens - self.adapters.num_virtual_tokens

    def complete(
        self,
        prompts: Sequence[str | Sequence[int]],
        params: SamplingParams,
        stops: Sequence[str],
        count: int = 1,
        *,
        output_format: OutputFormat | None = None,
        tuning: Tuning | None = None,
    ) -> AnswerGroup:
        """Start `count` answers that continue each text, or its token ids.

        There is no chat template. The answers match `output_format`.
        """

        def starting(text_or_ids: str | Sequence[int]) -> Callable[[SamplingParams], Answer]:
            prompt = self.prompts.encode_beginning(text_or_ids)
            check_fits(prompt, self._prompt_context)

            def start(params: SamplingParams) -> Answer:
                constraint = self._constraints.of(output_format, prompt, params, None)
                return Answer(
                    *(self.engine, self.tokenizer, prompt, params, stops),
                    constraint=constraint,
                    tuning=tuning,
                )

            return start

        return AnswerGroup(*map(starting, prompts), params=params, count=count)
