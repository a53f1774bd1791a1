"""The table of the parameters that flags, `/set`, roles and the configuration file can change."""

from dataclasses import dataclass

from swiftchat.engine.api.params import (
    EARLY_STOPPING,
    MAX_COUNT,
    OVERFLOWS,
    SAMPLING_RANGES,
    SPECULATE,
    Range,
)

UNSET = ("off", "default")  # values that unset a parameter
# Parameters that need `beams`.
BEAM_PARAMETERS = ("length_penalty", "early_stopping", "diversity_rate")
_MAX_SHOWN = 40  # characters of a value in an error


def shown(value: object) -> str:
    """Return a value for an error: a text in quotes, and the beginning of a long one."""
    text = str(value)
    text = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
    return repr(text) if isinstance(value, str) else text


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
            raise ValueError(f"must be {self.rule}, not {shown(text)}")
        return value


@dataclass(frozen=True)
class ChoiceParameter:
    """A parameter of each answer with one of a few texts as its value."""

    name: str
    choices: tuple[str, ...]
    help: str
    aliases: tuple[str, ...] = ()
    is_sampled = True

    @property
    def flags(self) -> tuple[str, ...]:
        """The long flags: `--speculate`."""
        return tuple(f"--{name.replace('_', '-')}" for name in (self.name, *self.aliases))

    @property
    def rule(self) -> str:
        """The valid values, as `auto, off or ngram`."""
        return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"

    def parse(self, text: str) -> str | None:
        """Return the value of a text, None for `default`. Raises `ValueError` as `Parameter`."""
        if text == "default":
            return None
        if text not in self.choices:
            raise ValueError(f"must be {self.rule}, not {shown(text)}")
        return text


def _sampled(
    name: str, kind: type[int] | type[float], help: str, aliases: tuple[str, ...] = ()
) -> Parameter:
    return Parameter(name, kind, SAMPLING_RANGES[name], help, aliases)


_AT_LEAST_1 = Range("between 1 and 2^31 - 1", 1, MAX_COUNT)
_MAX_THREADS = 4096
# Aliases are the names in ollama, llama.cpp and Hugging Face's generation_config.json.
PARAMETERS: dict[str, Parameter | ChoiceParameter] = {
    parameter.name: parameter
    for parameter in (
        _sampled("temperature", float, "Randomness of the answer; 0 is greedy.", ("temp",)),
        _sampled("top_k", int, "Sample from the k most probable tokens; 0 is off."),
        _sampled("top_p", float, "Nucleus sampling with probability p; 1 is off."),
        _sampled("top_p_decay", float, "Multiply top-p by this after each token; 1 is off."),
        _sampled("top_p_min", float, "Lower bound of top-p with --top-p-decay."),
        _sampled(
            "min_p", float, "Minimum probability relative to the most probable token; 0 is off."
        ),
        _sampled(
            "typical_p",
            float,
            "Locally typical sampling with probability p; 1 is off.",
            ("typ_p", "typical"),
        ),
        _sampled(
            "repeat_penalty", float, "Penalize repeated tokens; 1 is off.", ("repetition_penalty",)
        ),
        _sampled(
            "presence_penalty", float, "Subtract this once from the logit of tokens that occurred."
        ),
        _sampled("frequency_penalty", float, "Subtract this from the logit for each occurrence."),
        _sampled(
            "repeat_last_n",
            int,
            "The penalties look at the last N tokens; -1 is all, 0 none.",
            ("penalty_last_n",),
        ),
        _sampled("dry_multiplier", float, "Penalty of repeated sequences (DRY); 0 is off."),
        _sampled("dry_base", float, "Growth of the DRY penalty with each repeated token (1.75)."),
        _sampled("dry_allowed_length", int, "Longest repetition without a DRY penalty (2)."),
        _sampled(
            "no_repeat_ngram",
            int,
            "No sequence of this many tokens occurs twice; 0 is off.",
            ("no_repeat_ngram_size",),
        ),
        _sampled("seed", int, "Seed; makes an answer repeatable."),
        _sampled("min_tokens", int, "Minimum length of an answer in tokens.", ("min_new_tokens",)),
        Parameter(
            "max_tokens",
            int,
            _AT_LEAST_1,
            "Maximum length of an answer in tokens.",
            ("num_predict", "n_predict"),
        ),
        _sampled("logprobs", int, "Logprobs of each token and of N alternatives (5)."),
        ChoiceParameter(
            "speculate",
            SPECULATE,
            "Speculative decoding: verify proposed tokens, faster.",
        ),
        ChoiceParameter("overflow", OVERFLOWS, "What happens when the context is full (error)."),
        _sampled(
            "overflow_keep",
            int,
            "First tokens that a sliding context keeps; default: the system prompt.",
            ("num_keep", "n_keep"),
        ),
        _sampled("beams", int, "Beam search with this many beams.", ("num_beams",)),
        _sampled("length_penalty", float, "Beam search: above 0 favors longer answers (1)."),
        ChoiceParameter(
            "early_stopping",
            EARLY_STOPPING,
            "Beam search: end at the first N answers (false).",
        ),
        _sampled("diversity_rate", float, "Beam search: above 0 the beams differ more; 0 is off."),
        _sampled(
            "speculate_tokens",
            int,
            "At most so many proposed tokens (15; CPU: 8).",
            ("draft_max",),
        ),
        Parameter(
            "ctx_size",
            int,
            _AT_LEAST_1,
            "Context in tokens; default: the model's, if it fits.",
            ("num_ctx",),
            is_sampled=False,
        ),
        Parameter(
            "threads",
            int,
            Range(f"between 1 and {_MAX_THREADS}", 1, _MAX_THREADS),
            "CPU threads.",
            ("num_thread",),
            is_sampled=False,
        ),
    )
}


@dataclass(frozen=True)
class TextsParameter:
    """A parameter with any number of texts as its value: a flag that can be repeated."""

    name: str
    help: str
    metavar: str = "TEXT"
    aliases: tuple[str, ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """The long flags: `--ban`."""
        return tuple(f"--{name.replace('_', '-')}" for name in (self.name, *self.aliases))


# All of them are parameters of each answer.
TEXTS_PARAMETERS = {
    parameter.name: parameter
    for parameter in (
        TextsParameter("stop", "Stop before this text (repeatable)."),
        TextsParameter("ban", "Never write this text (repeatable)."),
        TextsParameter(
            "logit_bias",
            "Add -100 to 100 to the logit of a token (repeatable).",
            "TEXT=NUMBER",
        ),
        TextsParameter(
            "dry_breaker",
            "Text that ends a repetition for DRY (repeatable); none: no such text.",
            aliases=("dry_sequence_breaker",),
        ),
        TextsParameter("top_p_reset", "Text that resets the decay of top-p (repeatable)."),
    )
}
ALL_PARAMETERS: tuple[Parameter | ChoiceParameter | TextsParameter, ...] = (
    *PARAMETERS.values(),
    *TEXTS_PARAMETERS.values(),
)
_NAMES = {
    name: parameter.name
    for parameter in ALL_PARAMETERS
    for name in (parameter.name, *parameter.aliases)
}


def option_name(name: str) -> str:
    """Return the name of the option that a name or alias stands for, with `_` for `-`."""
    name = name.replace("-", "_")
    return _NAMES.get(name, name)
