"""The kinds of parameters: options that `/set` can change too, with their valid values."""

from dataclasses import dataclass

from swiftchat.engine.api.params import Range

UNSET = ("off", "default")  # values that unset a parameter
_MAX_SHOWN = 40  # characters of a value in an error
# What other programs write for a parameter that is off or not set, and what that is here.
_OTHERS: dict[str, dict[float, int | float | None]] = {
    "max_tokens": {-1: None, -2: None},
    "reasoning_budget": {-1: None},
    "seed": {-1: None},
    "top_k": {-1: 0},
    "top_p": {0: 1e-6},  # the most probable token
}


def shown(value: object) -> str:
    """Return a value for an error: a text in quotes, and the beginning of a long one."""
    text = str(value)
    text = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
    return repr(text) if isinstance(value, str) else text


def flag_of(name: str) -> str:
    """Return the long flag of an option: `--top-k`."""
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True, kw_only=True)
class _Named:
    """A parameter by its name, that of the option and of the engine's parameter.

    `aliases` are its names in ollama, llama.cpp and Hugging Face's generation_config.json.
    `is_sampled` says whether it is one of each answer, not of the engine.
    """

    name: str
    help: str
    aliases: tuple[str, ...] = ()
    is_sampled: bool = True

    @property
    def flags(self) -> tuple[str, ...]:
        """The long flags of all names."""
        return tuple(map(flag_of, (self.name, *self.aliases)))


@dataclass(frozen=True, kw_only=True)
class Parameter(_Named):
    """A parameter with a number as its value."""

    kind: type[int] | type[float]
    range: Range

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
            return self.value_of(self.kind(text))
        except ValueError:
            raise ValueError(f"must be {self.rule}, not {shown(text)}") from None

    def value_of(self, number: float) -> int | float:
        """Return the value of a number. Raises `ValueError` with the valid values."""
        if number not in self.range or (self.kind is int and number != int(number)):
            raise ValueError(f"must be {self.rule}, not {shown(number)}")
        return self.kind(number)

    def understood(self, number: float) -> int | float | None:
        """Return the value of a number from another program, None for "not set" there.

        Raises as `value_of` does.
        """
        others = _OTHERS.get(self.name, {})
        return others[number] if number in others else self.value_of(number)


@dataclass(frozen=True, kw_only=True)
class ChoiceParameter(_Named):
    """A parameter with one of a few texts as its value."""

    choices: tuple[str, ...]

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


@dataclass(frozen=True, kw_only=True)
class TextsParameter(_Named):
    """A parameter with any number of texts as its value: a flag that can be repeated."""

    metavar: str = "TEXT"
