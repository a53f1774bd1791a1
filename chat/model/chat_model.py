"""A model that answers: its files, its tokenizer, and the engine process that runs it."""

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swiftchat.chat.history.conversation import Conversation, EncodedTurn
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.reasoning import ReasoningForm, reasoning_form
from swiftchat.chat.model.template_choice import TemplateChoice, choose_template
from swiftchat.chat.options.config import ChatConfig
from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import EngineInfo, Prefill, Progress
from swiftchat.errors import SwiftchatError, UsageError

if TYPE_CHECKING:
    from swiftchat.tokenizer import Prompt, Tokenizer
    from swiftchat.weights.model.directory import Model

# What chat templates call it: Qwen3, SmolLM3 and GLM-4.5 the first, DeepSeek-V3.1 and Granite the
# second.
_SWITCHES = ("enable_thinking", "thinking")
_ASKS_SWITCH = re.compile(r"(?<![.\w'\"])(?:enable_)?thinking\b")  # not a message's field

StartEngine = Callable[[EngineConfig, Path], EngineClient]


def start_engine(config: EngineConfig, path: Path) -> EngineClient:
    return EngineClient(config, path).start()


def chat_model_for(config: ChatConfig) -> "ChatModel":
    """The model that the config names, downloaded if need be, or the engine that runs elsewhere.

    Raises what finding the model or attaching to the engine does.
    """
    if config.connect is not None:
        from swiftchat.chat.model.remote import RemoteEngineFactory

        engine = RemoteEngineFactory(config.connect, config.token_file)
        return ChatModel(engine.folder, replace(config, model=engine.name), engine.start)
    from swiftchat.chat.model.find import find_model

    return ChatModel(find_model(config.model, offline=config.offline, quiet=config.quiet), config)


class ChatModel:
    """Loads in the background; a context manager that ends the engine.

    The engine's process starts with the construction. This process's part, the tokenizer, starts
    with `prepare`, so that a prompt can be drawn first, or else when it is first needed.
    `changes` are sampling parameters changed in the conversation, over those of the config.
    `think` is `on`, `off`, or `auto` for what the template does by itself.
    """

    def __init__(self, path: Path, config: ChatConfig, start: StartEngine = start_engine) -> None:
        self.path = path
        self.config = config
        self.changes: dict[str, Any] = {}
        self.stops = list(config.stop)
        self.think = config.think
        self._start = start
        self._failure: Exception | None = None
        self._engine_failed = False
        self._opening: threading.Thread | None = None
        self.engine = start(config.engine(), path)

    def __enter__(self) -> "ChatModel":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self.engine.close()

    def for_model(self, path: Path, name: str) -> "ChatModel":
        """Another model, with what was asked for here; this one should be closed before."""
        return ChatModel(path, replace(self.config, model=name), self._start)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def model(self) -> "Model":
        self._opened()
        return self._model

    @property
    def quantization(self) -> str | None:
        """Who quantized the weights, by the name in `config.json`; None: they are plain."""
        if self.config.dummy is not None or self.model.quantization_config is None:
            return None
        return str(self.model.quantization_config.get("quant_method"))

    @property
    def tokenizer(self) -> "Tokenizer":
        self._opened()
        return self._tokenizer

    @property
    def params(self) -> SamplingParams:
        control = self.tokenizer.special_tokens
        ends = [control[end] for end in self.template.ends if end in control]
        stop_ids = (*self.tokenizer.eos_ids, *self.model.config.eos_ids, *ends)
        stop_ids = tuple(dict.fromkeys(stop_ids))
        return self.config.sampling(self.model.generation_config, stop_ids, self.changes)

    @property
    def settings(self) -> dict[str, Any]:
        """What was asked for, as options: a conversation that goes on later goes on with them."""
        from swiftchat.weights.hub.aliases import DEFAULT_MODEL

        stop = {"stop": list(self.stops)} if self.stops else {}
        return {"model": DEFAULT_MODEL} | self.config.settings(self.changes) | stop

    @property
    def template(self) -> TemplateChoice:
        """The chat template; with `--no-template` one that writes and ends nothing."""
        self._opened()
        return self._template

    def prepare(self) -> None:
        """Begin to read the tokenizer in the background; does nothing the second time."""
        if self._opening is None:
            self._opening = threading.Thread(target=self._open, name="tokenizer", daemon=True)
            self._opening.start()

    def set_parameter(self, name: str, value: Any) -> None:
        """Change a sampling parameter for the answers to come; `UsageError` if it cannot be."""
        changes = {**self.changes, name: value}
        self.config.sampling(self.model.generation_config, (), changes)
        self.changes = changes

    def wait_ready(self, on_progress: Callable[[Progress], None] | None = None) -> EngineInfo:
        """Wait for the engine, starting it anew if its process has died since.

        A failure to load is raised, and tried again with the next call.
        """
        self._opened()
        if self._engine_failed:
            self._restart()
        try:
            return self.engine.wait_ready(on_progress)
        except SwiftchatError:
            if self.engine.info is None:
                self._engine_failed = True
                raise
        self._restart()
        return self.engine.wait_ready(on_progress)

    def _restart(self) -> None:
        self.engine.close()
        self.engine = self._start(self.config.engine(), self.path)
        self._engine_failed = False

    def answer(
        self,
        conversation: Conversation,
        on_dropped: Callable[[int], None],
        on_prefill: Callable[[Prefill], None] | None = None,
        new_seed: bool = False,
        prefix: str = "",
    ) -> Answer:
        """Begin the answer to a conversation; `on_dropped` hears of messages left out.

        With `new_seed` a seed is drawn even where one is set, for another answer. With `prefix` the
        answer goes on from this text, and has only what comes after it.
        """
        info = self.wait_ready()
        params = replace(self.params, seed=None) if new_seed else self.params
        quarter = info.ctx_size_tokens // 4
        room = quarter if params.max_tokens is None else min(params.max_tokens, quarter)
        encode = (
            self._plain if self.config.no_template else self.encoder(conversation.last_turn, prefix)
        )
        prompt, num_dropped = conversation.fit_context(
            encode, info.ctx_size_tokens, self.config.overflow, room
        )
        if num_dropped:
            on_dropped(num_dropped)
        if not len(prompt):
            raise UsageError("the prompt is empty", "type something to answer")
        text_ends = [end for end in self.template.ends if end not in self.tokenizer.special_tokens]
        stops = [*self.stops, *text_ends]
        answer = Answer(
            self.engine, self.tokenizer, prompt, params, stops, on_prefill, self._reasoning_form()
        )
        conversation.last_turn = EncodedTurn(prompt, answer.ids)
        return answer

    def encoder(
        self, last: EncodedTurn | None = None, prefix: str = ""
    ) -> Callable[[list[dict[str, str]]], "Prompt"]:
        """Renders by the template, with the ids of the last answer as far as it repeats it."""
        tokenizer, source = self.tokenizer, self.template.source
        earlier = None if last is None else tokenizer.continued(last.prompt, last.answer_ids)
        variables = {} if self.think == "auto" else dict.fromkeys(_SWITCHES, self.think == "on")
        return lambda messages: tokenizer.prompt(
            messages, earlier=earlier, template=source, begun=prefix, **variables
        )

    @property
    def can_switch_thinking(self) -> bool:
        """Whether the chat template asks if it should make the model think."""
        return _ASKS_SWITCH.search(self._template_source()) is not None

    def _reasoning_form(self) -> ReasoningForm | None:
        """How to tell reasoning apart; not where the model's text is wanted as it is."""
        if self.config.raw or self.config.no_template:
            return None
        return reasoning_form(self._template_source(), self.tokenizer.special_tokens)

    def _template_source(self) -> str:
        return self.template.source or self.tokenizer.template or ""

    def _plain(self, messages: list[dict[str, str]]) -> "Prompt":
        from swiftchat.tokenizer.prompt import Prompt, PromptSpan

        tokenizer = self.tokenizer
        bos = [] if tokenizer.bos_id is None or not self._adds_bos() else [tokenizer.bos_id]
        text = "".join(message["content"] for message in messages)
        return Prompt((PromptSpan(text, (*bos, *tokenizer.encode(text)), False),))

    def _adds_bos(self) -> bool:
        return self.model.tokenizer_config.get("add_bos_token") is True

    def _open(self) -> None:
        # Here, not at the top: numpy would delay the prompt by 0.1 s.
        from swiftchat.tokenizer import Tokenizer
        from swiftchat.weights.model.directory import Model

        try:
            self._model = Model.open(self.path)
            self._tokenizer = Tokenizer.load(self.path)
            self._template = self._chosen_template()
            # jinja2: the first answer would have to wait for it.
            import swiftchat.tokenizer.template.template  # noqa: F401
        except Exception as error:  # noqa: BLE001  (raised again by whoever needs the files)
            self._failure = error

    def _chosen_template(self) -> TemplateChoice:
        from swiftchat.weights.architectures.registry import architecture_of

        if self.config.no_template:
            return TemplateChoice("none")
        model_type = architecture_of(self._model.config.architecture).model_type
        return choose_template(self.config.template, self._tokenizer, model_type)

    def _opened(self) -> None:
        self.prepare()
        assert self._opening is not None
        self._opening.join()
        if self._failure is not None:
            raise self._failure
