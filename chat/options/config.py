"""The options of a chat, from flags, environment and configuration file, in one frozen value."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swiftchat.chat.attachments.user_text import read_text
from swiftchat.chat.options.chat_options import (
    BEAM_PARAMETERS,
    ENGINE_FIELDS,
    SAMPLED,
    SESSION_OPTIONS,
    TEXTS_PARAMETERS,
)
from swiftchat.chat.options.model_defaults import model_defaults
from swiftchat.chat.options.parameter import flag_of
from swiftchat.chat.options.table import Options
from swiftchat.chat.options.token_texts import check_texts
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.errors import UsageError
from swiftchat.weights.files.paths import user_path

_LENGTHS = ("max_tokens", "min_tokens")
# Parameters of each answer with a number or one of a few texts.
_VALUES = tuple(name for name in (*SAMPLED, "prompt_logprobs") if name not in TEXTS_PARAMETERS)


@dataclass(frozen=True)
class ChatConfig(Options):
    """The options, checked against each other, and what model and engine get of them."""

    @property
    def has_tools(self) -> bool:
        """Whether the model is given tools at the start."""
        return bool(self.mcp or self.tools)

    def check(self) -> None:
        """Raise `UsageError` for impossible or contradictory options, before a model is loaded."""
        if self.compared and (self.interactive or self.extract or self.dummy or self.connect):
            raise UsageError(
                "two models answer one prompt", "leave out -i, -x, --dummy and --connect"
            )
        if self.samples > 1:
            self._check_samples()
        self._check_beams()
        if (self.lora or self.soft_prompt) and (self.compared or self.connect):
            flag = "--lora" if self.lora else "--soft-prompt"
            other = "two models" if self.compared else "the engine of --connect"
            raise UsageError(
                f"{flag} is for one model on this machine, not for {other}", f"leave out {flag}"
            )
        for name in TEXTS_PARAMETERS:
            if "" in getattr(self, name):
                raise UsageError(
                    f"a {flag_of(name)} text is empty", "leave out the option, or give a text"
                )
        check_texts(self.texts({}))
        if self.knowledge_model is not None and self.knowledge is None:
            raise UsageError("--knowledge-model is for --knowledge", "add --knowledge DIR")
        if self.knowledge_pooling is not None and self.knowledge_model is None:
            raise UsageError("--knowledge-pooling is of --knowledge-model", "leave it out")
        if self.variables and self.role is None:
            raise UsageError("-v is for the variables of a role", "add --role NAME")
        if self.no_template and self.template is not None:
            raise UsageError("--template and --no-template were both given", "choose one")
        if self.continue_ and self.session is not None:
            raise UsageError("--continue and --session were both given", "choose one")
        if self.no_template and (self.continue_ or self.session is not None):
            raise UsageError(
                "--no-template completes one text and continues no conversation",
                "leave out --no-template, or --continue and --session",
            )
        if self.json and self.stream_json:
            raise UsageError("--json and --stream-json were both given", "choose one")
        if self.device == "cpu" and (self.tp != 1 or self.pp != 1):
            option = "--tp" if self.tp != 1 else "--pp"
            raise UsageError(f"{option} needs GPUs, but --device is cpu", f"leave out {option}")
        has_format = self.schema or self.json_object or self.regex or self.grammar
        if self.has_tools and has_format:
            raise UsageError(
                "an answer with a format calls no tools",
                "leave out --mcp and --tools, or --schema, --json-object, --regex and --grammar",
            )
        if self.no_schema_prompt and self.schema is None:
            raise UsageError("--no-schema-prompt is for --schema", "add --schema FILE")
        if self.extract and (self.json or self.stream_json or self.raw or self.interactive):
            raise UsageError("-x prints only code", "leave out --json, --stream-json, --raw and -i")
        if self.speculate == "draft" and self.draft is None and self.connect is None:
            raise UsageError("--speculate draft needs a draft model", "add --draft MODEL")
        if self.draft is not None and self.dummy is not None:
            raise UsageError("--draft and --dummy were both given", "choose one")
        self.engine()
        self.sampling({}, ())

    def _check_samples(self) -> None:
        """Raise `UsageError` for what cannot be combined with several answers to one prompt."""
        others = {
            "-i": self.interactive,
            "-x": self.extract,
            "a second -m": self.compared,
            "--mcp": self.mcp,
            "--tools": self.tools,
        }
        _check_alone("--samples", self.samples, others)
        if self.temperature == 0 and self.beams is None:
            raise UsageError(
                f"--samples {self.samples} with --temperature 0 would give the same answer "
                f"{self.samples} times",
                "leave out one of them",
            )

    def _check_beams(self) -> None:
        """Raise `UsageError` for what cannot be combined with a beam search."""
        names = ("schema", "json_object", "regex", "grammar", "mcp", "tools", "draft")
        others = {flag_of(name): getattr(self, name) for name in names}
        others |= {"--tp": self.tp != 1, "--pp": self.pp != 1}
        if self.beams is None:
            for name in BEAM_PARAMETERS:
                if getattr(self, name) is not None:
                    raise UsageError(f"{flag_of(name)} is for a beam search", "add --beams N")
            return
        _check_alone("--beams", self.beams, others)

    def sampling(
        self,
        generation_config: dict[str, Any],
        stop_ids: tuple[int, ...],
        changes: dict[str, Any] | None = None,
    ) -> SamplingParams:
        """Return sampling parameters: `changes` (from `/set`), else options, else the model's.

        None in `changes` unsets an option. Without those that `texts` stand for: see `TokenTexts`.
        """
        values = model_defaults(generation_config)
        options = {name: getattr(self, name) for name in _VALUES}
        options |= {name: value for name, value in (changes or {}).items() if name in _VALUES}
        values |= {name: value for name, value in options.items() if value is not None}
        if "beams" in values:
            given = options["temperature"]
            values |= {"temperature": given or 0.0, "returned_beams": self.samples}
        return SamplingParams(**values, stop_ids=stop_ids)

    def texts(self, changes: dict[str, Any]) -> dict[str, tuple[str, ...]]:
        """Return the texts of each parameter that has texts: `changes`, else options."""
        texts = {name: changes.get(name, getattr(self, name)) for name in TEXTS_PARAMETERS}
        return {name: tuple(value or ()) for name, value in texts.items()}

    def settings(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Return the options to save with a conversation; `changes` (from `/set`) take precedence.

        Paths of files become absolute.
        """
        options = {name: getattr(self, name) for name in SESSION_OPTIONS}
        options |= {name: value for name, value in changes.items() if name in options}
        for name in ("model", "template", "knowledge", "knowledge_model"):
            if options[name] and (path := user_path(options[name])).exists():
                options[name] = str(path.absolute())
        return {name: value for name, value in options.items() if value not in (None, ())}

    def engine(self) -> EngineConfig:
        """Return the options of the engine. Raises `UsageError` for impossible ones."""
        values = {field: getattr(self, name) for name, field in ENGINE_FIELDS.items()}
        return EngineConfig(**values, max_num_seqs=self.parallel or EngineConfig.max_num_seqs)

    def system_text(self) -> str | None:
        """Return the system prompt, from `system_file` if given."""
        if self.system_file is None:
            return self.system
        if self.system is not None:
            raise UsageError("--system and --system-file were both given", "choose one")
        return read_text(self.system_file).told()


def _check_alone(flag: str, value: object, others: Mapping[str, object]) -> None:
    """Raise `UsageError` if an option cannot be combined with another one that is given."""
    for other, is_given in others.items():
        if is_given:
            message = f"{flag} {value} cannot be combined with {other}"
            raise UsageError(message, f"leave out {flag} or {other}")


def without_lengths(settings: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Return settings with the lengths of an answer from `before`, or without them.

    The length of the answer to one prompt is not that of the conversation.
    """
    kept = {name: value for name, value in before.items() if name in _LENGTHS}
    return {name: value for name, value in settings.items() if name not in _LENGTHS} | kept
