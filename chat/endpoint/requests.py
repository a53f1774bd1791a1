"""The requests of the API: their fields, and the sampling parameters they ask for.

Fields of other servers are in `fields.py`.
"""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from swiftchat.chat.endpoint.answer_formats import FORMATS, wanted_format
from swiftchat.chat.endpoint.errors import ApiError
from swiftchat.chat.endpoint.fields import COMPLETION_FIELDS, OTHER_FIELDS, FieldTable
from swiftchat.chat.endpoint.served_models import named_adapter
from swiftchat.chat.history.tool_call import is_shallow
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.model.output_format import OutputFormat
from swiftchat.chat.options.chat_options import BEAM_PARAMETERS, PARAMETERS, TEXTS_PARAMETERS
from swiftchat.chat.options.option_types import OWN_VARIABLES
from swiftchat.chat.options.parameter import ChoiceParameter, Parameter
from swiftchat.engine.api.params import (
    LOGIT_BIAS_RANGE,
    MAX_BEAMS,
    MAX_COUNT,
    MAX_SAMPLES,
    SamplingParams,
)
from swiftchat.engine.api.tuning import Tuning
from swiftchat.errors import UsageError

_MAX_STOPS = 16
_MAX_ID_DIGITS = 9
_MAX_STOP_IDS = 64
# Texts of our parameters, besides `stop`, by the name in a request.
_TEXTS = {
    name: found.name
    for found in TEXTS_PARAMETERS.values()
    if found.name not in ("stop", "logit_bias")
    for name in (found.name, *found.aliases)
} | {"bad_words": "ban", "dry_sequence_breakers": "dry_breaker"}
# By the name in a request: our parameter of answers. `logprobs` is of another type there.
_SAMPLING = {
    name: found
    for found in PARAMETERS.values()
    if found.is_sampled and found.name != "logprobs"
    for name in (found.name, *found.aliases)
} | {"max_completion_tokens": PARAMETERS["max_tokens"]}


# The fields of requests that are parameters of an answer, but for its length.
PARAMETER_FIELDS = frozenset(
    {name for name, found in _SAMPLING.items() if found.name != "max_tokens"}
    | {*_TEXTS, "early_stopping", "logit_bias", "stop_token_ids", "chat_template_kwargs", "lora"}
)


class _Fields(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class StreamOptions(_Fields):
    include_usage: bool | None = None


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]  # also 100.0, as some languages write numbers


def _field(found: Parameter | ChoiceParameter) -> Any:
    if isinstance(found, ChoiceParameter):
        return Literal[found.choices] | None, None
    return (Whole if found.kind is int else float) | None, None


class LoraScale(_Fields):
    """An adapter by its number, as llama.cpp's requests name it."""

    id: Whole
    scale: float = 1.0


class ModelRequest(_Fields):
    """What a request says of the model; fields of other servers are in `model_extra`."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    lora: str | list[str] | list[LoraScale] | None = None

    def full_name(self, chat_model: ChatModel) -> str:
        """Return the name of the model, with the adapter that `model` names."""
        adapter = named_adapter(chat_model, self.model)
        return chat_model.name if adapter is None else f"{chat_model.name}:{adapter}"

    def tuning(self, chat_model: ChatModel) -> Tuning | None:
        """Return the adapters of the answer, by default those in use.

        Raises `ApiError` for unknown ones.
        """
        named = named_adapter(chat_model, self.model)
        refuse(bool(named and self.lora), "lora", "lora: the name of the model has an adapter")
        if named is None and self.lora is None:
            return chat_model.adapters.tuning
        names = [*chat_model.adapters.loaded]
        given = self.lora or ([] if named is None else [named])
        chosen = [given] if isinstance(given, str) else given
        texts = []
        for one in chosen:
            if isinstance(one, LoraScale):
                refuse(not 0 <= one.id < len(names), "lora", f"lora: there is no adapter {one.id}")
            texts.append(one if isinstance(one, str) else f"{names[one.id]}={one.scale}")
        try:
            return chat_model.adapters.chosen(texts)
        except UsageError as error:
            raise ApiError(400, f"lora: {error.message}", "unsupported_value", "lora") from None


if TYPE_CHECKING:
    _SamplingFields = ModelRequest
else:
    _SamplingFields = create_model(
        "_SamplingFields",
        __base__=ModelRequest,
        **{name: _field(found) for name, found in _SAMPLING.items()},
        **dict.fromkeys(_TEXTS, (list[str] | None, None)),
        **dict.fromkeys(FORMATS, (Any, None)),
    )


class GenerationRequest(_SamplingFields):
    """The fields that chat completions and completions have in common.

    Also all of `_SAMPLING`, `_TEXTS` and `FORMATS`.
    """

    TABLE: ClassVar[FieldTable]

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    n: Whole | None = Field(default=None, ge=1, le=MAX_SAMPLES)
    beams: Whole | None = Field(default=None, ge=1, le=MAX_BEAMS)
    early_stopping: bool | Literal["never"] | None = None
    logit_bias: dict[str, float] | None = None
    stop_token_ids: list[Whole] | None = None

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def num_samples(self) -> int:
        """The number of answers to each prompt."""
        return self.n or 1

    @property
    def num_answers(self) -> int:
        """The number of answers to all prompts."""
        return self.num_samples

    @property
    @abstractmethod
    def num_logprobs(self) -> int | None:
        """The number of top logprobs to return, None for no logprobs."""

    def stops(self) -> list[str]:
        """Return the stop strings; raises `ApiError` for empty or too many ones."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > _MAX_STOPS or "" in stops:
            raise ApiError(
                400, f"stop: at most {_MAX_STOPS} texts, none of them empty", None, "stop"
            )
        return stops

    def sampling(self) -> dict[str, Any]:
        """Return the sampling parameters that are set, by our names. Raises `ApiError`."""
        self.check()
        values: dict[str, Any] = {}
        for theirs, found in _SAMPLING.items():
            value = getattr(self, theirs)
            if isinstance(found, Parameter) and value is not None:
                try:
                    values[found.name] = found.understood(value)
                except ValueError as error:
                    refuse(True, theirs, f"{theirs} {error}")
            elif value is not None:
                values[found.name] = value
        if isinstance(self.early_stopping, bool):
            values["early_stopping"] = "true" if self.early_stopping else "false"
        for theirs, name in _TEXTS.items():
            if (texts := getattr(self, theirs)) is not None:
                values[name] = tuple(texts)
        return {**values, "logprobs": self.num_logprobs}

    def applied(self, params: SamplingParams, vocab_size: int) -> SamplingParams:
        """Return sampling parameters with what the request says by ids of tokens.

        Raises `ApiError` for an id that the vocabulary does not have.
        """
        ids = self.stop_token_ids or []
        is_valid = len(ids) <= _MAX_STOP_IDS and all(0 <= one < vocab_size for one in ids)
        rule = f"stop_token_ids: at most {_MAX_STOP_IDS} ids of tokens"
        refuse(not is_valid, "stop_token_ids", rule)
        bias = self.bias() or params.logit_bias
        return replace(params, logit_bias=bias, stop_ids=(*params.stop_ids, *ids))

    @property
    def output_format(self) -> OutputFormat | None:
        """The format of the answer; raises `ApiError` for what cannot be enforced."""
        return wanted_format({name: getattr(self, name) for name in FORMATS})

    def bias(self) -> tuple[tuple[int, float], ...]:
        """Return ids and the numbers that are added to their logits."""
        pairs = {int(token): float(value) for token, value in (self.logit_bias or {}).items()}
        return tuple(pairs.items())

    def check(self) -> None:
        """Raise `ApiError` for fields that would change the answer and are not supported."""
        self.TABLE.check(self.model_extra or {})
        if self.beams is None:
            for name in BEAM_PARAMETERS:
                is_given = getattr(self, name) is not None
                refuse(is_given, name, f"{name} is for a beam search: add beams")
        elif self.num_samples > self.beams:
            refuse(True, "n", f"n {self.n} is above beams {self.beams}")
        for token, value in (self.logit_bias or {}).items():
            is_id = token.isascii() and token.isdecimal() and len(token) <= _MAX_ID_DIGITS
            is_valid = is_id and value in LOGIT_BIAS_RANGE
            rule = f"logit_bias has ids, and numbers {LOGIT_BIAS_RANGE}"
            refuse(not is_valid, "logit_bias", rule)


class ContentPart(_Fields):
    type: str
    text: str | None = None


class FunctionCall(_Fields):
    name: str
    arguments: str


class ToolCall(_Fields):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(_Fields):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # its name on other servers
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class ReasoningOptions(_Fields):
    """`max_tokens` is the budget; `enabled` false is the effort none."""

    effort: str | None = None
    max_tokens: Whole | None = None
    enabled: bool | None = None


class ChatCompletionRequest(GenerationRequest):
    TABLE = OTHER_FIELDS

    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Whole | None = Field(default=None, ge=0, le=20)

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def continues(self) -> bool:
        """Whether the answer continues the last message, the beginning of one of the assistant."""
        last = self.messages[-1]
        is_wanted = self.continue_final_message is not False and not self.add_generation_prompt
        return is_wanted and last.role == "assistant" and not last.tool_calls

    @property
    def effort(self) -> str | None:
        """The reasoning effort, None for the model's own."""
        wanted = self.reasoning or ReasoningOptions()
        if wanted.enabled is False:
            return "none"
        return wanted.effort if self.reasoning_effort is None else self.reasoning_effort

    def sampling(self) -> dict[str, Any]:
        values = super().sampling()
        if self.reasoning is None or (budget := self.reasoning.max_tokens) is None:
            return values
        budget_of = _SAMPLING["reasoning_budget"]
        assert isinstance(budget_of, Parameter)
        try:
            return {**values, "reasoning_budget": budget_of.understood(budget)}
        except ValueError as error:
            raise ApiError(400, f"reasoning.max_tokens {error}", None, "reasoning") from None

    def check(self) -> None:
        super().check()
        rule = "it continues a last message of the assistant without calls"
        for name, value in (("continue_final_message", True), ("add_generation_prompt", False)):
            is_given = getattr(self, name) is value
            refuse(is_given and not self.continues, name, f"{name}: {rule}")
        refuse(not is_shallow(self.tools or []), "tools", "the tools are nested too deeply")
        variables = self.chat_template_kwargs or {}
        for name in OWN_VARIABLES & variables.keys():
            refuse(True, "chat_template_kwargs", f"chat_template_kwargs cannot replace {name}")
        text = "the variables are nested too deeply"
        refuse(not is_shallow(variables), "chat_template_kwargs", text)
        has_top = self.top_logprobs is not None
        refuse(has_top and not self.logprobs, "top_logprobs", "top_logprobs needs logprobs: true")


class CompletionRequest(GenerationRequest):
    TABLE = COMPLETION_FIELDS

    prompt: str | list[str] | list[int] | list[list[int]]
    suffix: str | None = None
    echo: bool | None = None
    best_of: Whole | None = None
    max_tokens: Whole | None = None  # 0: only the prompt is wanted
    logprobs: Whole | None = Field(default=None, ge=0, le=20)

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_answers(self) -> int:
        return self.num_samples * len(self.prompts)

    @property
    def prompts(self) -> list[str | list[int]]:
        """The texts, or the token ids of each; raises `ApiError` for no id of a token."""
        return texts_or_ids(self.prompt, "prompt")

    def sampling(self) -> dict[str, Any]:
        if self.max_tokens == 0:
            unlimited = self.model_copy(update={"max_tokens": None})
            return {**unlimited.sampling(), "max_tokens": 0}
        values = super().sampling()
        return {**values, "prompt_logprobs": self.logprobs} if self.echo else values

    def check(self) -> None:
        super().check()
        refuse(bool(self.suffix), "suffix", "suffix is not supported")
        is_same = self.best_of in (None, self.num_samples)
        refuse(not is_same, "best_of", "a best_of that differs from n is not supported")
        is_bounded = 1 <= self.num_answers <= MAX_SAMPLES
        refuse(not is_bounded, "prompt", f"prompt: between 1 and {MAX_SAMPLES} answers")
        is_search = self.beams is not None and len(self.prompts) > 1
        refuse(is_search, "beams", "a beam search is for one prompt")


def texts_or_ids(
    given: str | list[str] | list[int] | list[list[int]], param: str
) -> list[str | list[int]]:
    """Return texts, or lists of token ids, of which one may be given without a list around it.

    Raises `ApiError` for numbers that no token has.
    """
    match given:
        case str() as text:
            return [text]
        case [int(), *_]:
            return [_token_ids(given, param)]
    return [
        one if isinstance(one, str) else _token_ids(one, param)
        for one in given
        if not isinstance(one, int)
    ]


def _token_ids(values: Iterable[object], param: str) -> list[int]:
    ids = [one for one in values if isinstance(one, int)]
    refuse(not all(0 <= one <= MAX_COUNT for one in ids), param, f"{param}: no id of a token")
    return ids


def refuse(condition: bool, param: str, message: str) -> None:
    """Raise `ApiError` about a field if the condition holds."""
    if condition:
        raise ApiError(400, message, "unsupported_value", param)
