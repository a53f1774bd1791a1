"""What the user asked for: flags, environment and configuration file in one frozen value."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from swiftchat.engine.api.params import EngineConfig, NumRanks, SamplingParams
from swiftchat.errors import FileSystemError, UsageError

# The options that belong to a conversation: one that goes on later goes on with them.
_OF_CONVERSATION = (
    "model",
    "template",
    "max_tokens",
    "temp",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)
# generation_config.json's name for each sampling parameter; transformers' own names.
_GENERATION_NAMES = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
}


# Where an option is not called like the sampling parameter.
_OPTIONS = {"temperature": "temp"}


@dataclass(frozen=True)
class ChatConfig:
    """The options of `swiftchat chat`; None means that nobody said, and the model decides."""

    model: str | None = None
    prompt: str | None = None
    interactive: bool = False
    system: str | None = None
    system_file: str | None = None
    file: tuple[str, ...] = ()
    continue_: bool = False
    session: str | None = None
    no_save: bool = False
    role: str | None = None
    no_template: bool = False
    template: str | None = None
    max_tokens: int | None = None
    ctx_size: int | None = None
    temp: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    think: str = "auto"
    overflow: str = "error"
    logprobs: int | None = None
    device: str = "auto"
    tp: NumRanks = 1
    pp: int = 1
    dtype: str | None = None
    kv_dtype: str = "auto"
    threads: int | None = None
    dummy: str | None = None
    connect: str | None = None
    token_file: str | None = None
    offline: bool = False
    json: bool = False
    stream_json: bool = False
    raw: bool = False
    extract: bool = False
    color: str = "auto"
    accessible: bool = False
    editing_mode: str = "emacs"
    stats: bool = False
    quiet: bool = False
    debug: bool = False

    def check(self) -> None:
        """Raise `UsageError` for what no model could do; to be asked before one is loaded."""
        if "" in self.stop:
            raise UsageError("a --stop text is empty", "leave it out, or give a text")
        if self.no_template and self.template is not None:
            raise UsageError("--template and --no-template were both given", "choose one")
        if self.continue_ and self.session is not None:
            raise UsageError("--continue and --session were both given", "choose one")
        if self.no_template and (self.continue_ or self.session is not None):
            raise UsageError(
                "--no-template completes one text and continues nothing",
                "leave it out, or leave --continue and --session out",
            )
        if self.extract and (self.json or self.stream_json or self.raw or self.interactive):
            raise UsageError("-x gives code alone", "leave out --json, --stream-json, --raw and -i")
        self.engine()
        self.sampling({}, ())

    def sampling(
        self,
        generation_config: dict[str, Any],
        stop_ids: tuple[int, ...],
        changes: dict[str, Any] | None = None,
    ) -> SamplingParams:
        """Sampling parameters: `changes` (from `/set`) over these over the model's own."""
        values = _from_model(generation_config)
        asked = {
            "temperature": self.temp,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repeat_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
            "logprobs": self.logprobs,
        }
        values |= {name: value for name, value in asked.items() if value is not None}
        return SamplingParams(**{**values, **(changes or {}), "stop_ids": stop_ids})

    def settings(self, changes: dict[str, Any]) -> dict[str, Any]:
        """The options that belong to a conversation, with `changes` (from `/set`) over them.

        Files are named so that they are found from any folder.
        """
        changed = {_OPTIONS.get(name, name): value for name, value in changes.items()}
        asked = {name: getattr(self, name) for name in _OF_CONVERSATION}
        asked |= {name: value for name, value in changed.items() if name in asked}
        for name in ("model", "template"):
            if asked[name] and Path(asked[name]).exists():
                asked[name] = str(Path(asked[name]).absolute())
        return {name: value for name, value in asked.items() if value is not None}

    def engine(self) -> EngineConfig:
        return EngineConfig(
            device=self.device,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            ctx_size_tokens=self.ctx_size,
            num_threads=self.threads,
            dummy=self.dummy,
            tp=self.tp,
            pp=self.pp,
        )

    def system_text(self) -> str | None:
        """The system prompt, read from `system_file` if that was given."""
        if self.system_file is None:
            return self.system
        if self.system is not None:
            raise UsageError("--system and --system-file were both given", "choose one")
        return read_text(self.system_file)


def sampling_changes(settings: dict[str, Any]) -> dict[str, Any]:
    """What of a conversation's settings `/set` could have set, by the parameters' names."""
    names = {option: name for name, option in _OPTIONS.items()}
    sampling = {name for name in _OF_CONVERSATION if name not in ("model", "template")}
    return {names.get(name, name): settings[name] for name in settings if name in sampling}


def _from_model(generation_config: dict[str, Any]) -> dict[str, Any]:
    if generation_config.get("do_sample") is False:
        return {"temperature": 0.0}
    found: dict[str, Any] = {}
    for ours, theirs in _GENERATION_NAMES.items():
        value = generation_config.get(theirs)
        # A file that says nonsense here is no reason not to run the model.
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[ours] = int(value) if ours == "top_k" else float(value)
    try:
        SamplingParams(**found)
    except UsageError:
        return {}
    return found


def defaults(model: str | None) -> dict[str, tuple[Any, str]]:
    """What holds for sampling where nobody said anything: (value, origin) by option name.

    The origin is `model` for what generation_config.json says, if the model is on this machine.
    """
    from swiftchat.errors import SwiftchatError
    from swiftchat.weights.hub.aliases import DEFAULT_MODEL
    from swiftchat.weights.model.directory import Model
    from swiftchat.weights.store import default_store

    said: dict[str, Any] = {}
    name = model or DEFAULT_MODEL
    # Not `resolve`, which may convert a model first: a listing should not do that.
    with contextlib.suppress(SwiftchatError):
        path = default_store().find(name, offline=True)
        said = _from_model(Model.open(path).generation_config)
    values = {field.name: (field.default, "default") for field in fields(SamplingParams)}
    values |= {name: (value, "model") for name, value in said.items()}
    return {_OPTIONS.get(name, name): value for name, value in values.items()}


def read_text(name: str) -> str:
    """A text file's content, bytes that are no UTF-8 replaced; `FileSystemError` if unreadable."""
    try:
        return Path(name).read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise FileSystemError(f"cannot read {name}: {error.strerror}") from error


def files_text(names: Iterable[str]) -> str:
    """Files as a part of a message: each under its name, a blank line between."""
    return "\n\n".join(f"{name}:\n{read_text(name)}" for name in names)


def config_path() -> Path:
    import platformdirs

    return platformdirs.user_config_path("swiftchat") / "config.toml"


def load_config_file(known: set[str]) -> dict[str, Any]:
    """The configuration file's values by option name, or {} without one.

    Raises `UsageError` for what is no TOML and for a name that is no option.
    """
    path = config_path()
    if not path.is_file():
        return {}
    import difflib
    import tomllib

    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}", "swiftchat config path shows where it is") from error
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
            raise UsageError(f"{path}: unknown option {name!r}", hint)
    return values
