"""The table of the parameters that flags, `/set`, roles and the configuration file can change."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swiftchat.engine.api.params import SAMPLING_RANGES, Range
from swiftchat.errors import UsageError

UNSET = ("off", "default")  # values that unset a parameter


@dataclass(frozen=True)
class Parameter:
    """A parameter with a number as its value.

    `name` is that of the option and of the engine's parameter, `aliases` are other names of it.
    """

    name: str
    kind: type[int] | type[float]
    range: Range
    help: str
    aliases: tuple[str, ...] = ()
    is_sampled: bool = True  # a parameter of each answer, not of the engine

    @property
    def flags(self) -> tuple[str, ...]:
        """The long flags: `--top-k`."""
        return tuple(f"--{name.replace('_', '-')}" for name in (self.name, *self.aliases))

    @property
    def rule(self) -> str:
        """The valid values, as `a number between 0 and 1`."""
        return f"{'a number' if self.kind is float else 'a whole number'} {self.range}"

    def parse(self, text: str) -> int | float | None:
        """Return the value of a text, None for `off` and `default`.

        Raises `ValueError` with the valid values.
        """
        if text in UNSET:
            return None
        try:
            value = self.kind(text)
        except ValueError:
            value = None
        if value is None or value not in self.range:
            raise ValueError(f"must be {self.rule}, not {text!r}")
        return value


def _sampled(
    name: str, kind: type[int] | type[float], help: str, aliases: tuple[str, ...] = ()
) -> Parameter:
    return Parameter(name, kind, SAMPLING_RANGES[name], help, aliases)


_AT_LEAST_1 = Range("of at least 1", 1)
# Aliases are the names in ollama, llama.cpp and Hugging Face's generation_config.json.
PARAMETERS = {
    parameter.name: parameter
    for parameter in (
        _sampled("temperature", float, "Randomness of the answer; 0 is greedy.", ("temp",)),
        _sampled("top_k", int, "Sample from the k most probable tokens; 0 is off."),
        _sampled("top_p", float, "Nucleus sampling with probability p; 1 is off."),
        _sampled(
            "min_p", float, "Minimum probability relative to the most probable token; 0 is off."
        ),
        _sampled(
            "repeat_penalty", float, "Penalize repeated tokens; 1 is off.", ("repetition_penalty",)
        ),
        _sampled("presence_penalty", float, "Subtracted from the logit of tokens that occurred."),
        _sampled("frequency_penalty", float, "Subtracted from the logit per occurrence."),
        _sampled("seed", int, "Seed; makes an answer repeatable."),
        Parameter(
            "max_tokens",
            int,
            _AT_LEAST_1,
            "Maximum length of an answer in tokens.",
            ("num_predict", "n_predict"),
        ),
        _sampled(
            "logprobs", int, "Log probability of each token and of this many (5) alternatives."
        ),
        Parameter(
            "ctx_size",
            int,
            _AT_LEAST_1,
            "Context in tokens; default: the model's, if it fits.",
            ("num_ctx",),
            is_sampled=False,
        ),
        Parameter("threads", int, _AT_LEAST_1, "CPU threads.", ("num_thread",), is_sampled=False),
    )
}
_NAMES = {
    name: parameter.name
    for parameter in PARAMETERS.values()
    for name in (parameter.name, *parameter.aliases)
}


def option_name(name: str) -> str:
    """Return the name of the option that a name or alias stands for, with `_` for `-`."""
    name = name.replace("-", "_")
    return _NAMES.get(name, name)


def named_options(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return values by option name; `source` is the name of their file for errors.

    Raises `UsageError` if two names stand for one option.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        option = option_name(name)
        if option in found:
            raise UsageError(f"{source}: {option} is set twice", f"remove one: {name}")
        found[option] = value
    return found
