"""The kinds of options of `swiftchat`, and the types of their values."""

import copy
import json
import os
import re
from typing import Any, Self

import click

from swiftchat.chat.options.duration import Duration
from swiftchat.chat.options.parameter import ChoiceParameter, Parameter, shown
from swiftchat.chat.options.size import Size
from swiftchat.errors import UsageError
from swiftchat.weights.files.paths import user_path

MAX_RANKS = 1024
MAX_AT_A_TIME = 4096  # answers
_MAX_BITS = 10_000
# Variables of a chat template that a conversation sets.
OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt"})


class NumberOrAuto(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """A whole number between two others, or `auto`."""

    name = "number or auto"

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high
        self.rule = f"auto or a number from {low} to {high}"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "auto":
            return value
        text = str(value)
        if not re.fullmatch("[0-9]{1,4}", text) or not self._low <= int(text) <= self._high:
            message = f"{shown(text)} is neither auto nor a number from {self._low} to {self._high}"
            self.fail(message, param, ctx)
        return int(text)


class UserPath(click.Path):
    """A path with `~` for a home folder, wherever the value stands; `-` stays as it is."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = value if value == "-" else str(user_path(str(value)))
        return super().convert(path, param, ctx)


class OptionalPath(UserPath):
    """A path, or `none`, which is an empty text: it overrides what a file or conversation sets."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return "" if value in ("", "none") else super().convert(value, param, ctx)


class Whole(click.IntRange):
    """A whole number between two others."""

    def __init__(self, low: int, high: int) -> None:
        super().__init__(low, high)
        self._low, self._high = low, high
        self.rule = f"a whole number between {low} and {high}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number: int | None = int(str(value))
        except ValueError:
            number = None
        if number is None or not self._low <= number <= self._high:
            self.fail(f"must be {self.rule}, not {shown(str(value))}", param, ctx)
        return number


class Number(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """A value of a parameter; `off` unsets a number."""

    name = "value"

    def __init__(self, parameter: Parameter | ChoiceParameter) -> None:
        self._parameter = parameter

        self.rule = parameter.rule
        # Which may be true and false.
        self.choices = parameter.choices if isinstance(parameter, ChoiceParameter) else ()

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        found = self._parameter
        return "N" if isinstance(found, Parameter) else f"[{'|'.join(found.choices)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parameter.parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Colors(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """Colors as `NAME=STYLE,…`."""

    name = "name=style,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from swiftchat.chat.terminal.theme import parse_colors

        try:
            parse_colors(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class TemplateArgument(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """A variable of a chat template as `KEY=VALUE`."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            parse_argument(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


def parse_argument(text: str) -> tuple[str, Any]:
    """Return the name and the value of `KEY=VALUE`: JSON, or else the text itself.

    Raises `ValueError` with what is wrong.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"{shown(text)} is not KEY=VALUE, such as enable_thinking=false")
    if name in OWN_VARIABLES:
        raise ValueError(f"{name} is set by the conversation")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


class ChatOption(click.Option):
    """An option whose errors name the place of the value: flag, variable or file.

    Help texts and errors show its short flag and one long flag, not the aliases of a parameter.
    """

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Convert a value, wherever it stands. Raises `click.BadParameter`.

        A value in a file counts as the text that a flag would have: numbers are for options with
        numbers, `true` and `false` for flags, lists for options that can be repeated.
        """
        if value is not None:
            value = self._texts(value) if self.multiple else self._text(value)
        return super().type_cast_value(ctx, value)

    def _text(self, value: object) -> str | bool:
        match value:
            case str():
                return value
            case bool():
                if self.is_flag:
                    return value
                if isinstance(self.type, Number) and self.type.choices:
                    return str(value).lower()
            case float() if isinstance(self.type, Duration):
                return f"{value}s"
            case int() | float():
                # Python writes no more than 4300 digits.
                if isinstance(self.type, _NUMBERS) and _is_writable(value):
                    return str(value)
        wanted = "true or false" if self.is_flag else "a text"
        wanted = getattr(self.type, "rule", wanted)
        raise click.BadParameter(f"must be {wanted}, not {_described(value)}", param=self)

    def _texts(self, value: object) -> list[str]:
        if isinstance(value, list | tuple) and all(isinstance(text, str) for text in value):
            return list(value)
        raise click.BadParameter(f"must be a list of texts, not {_described(value)}", param=self)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return click.Option.get_help_record(self._without_aliases(), ctx)

    def _without_aliases(self) -> Self:
        shown = copy.copy(self)
        long = [flag for flag in self.opts if flag.startswith("--")]
        shown.opts = [flag for flag in self.opts if flag not in long[1:]]
        return shown

    def get_error_hint(self, ctx: click.Context | None) -> str:
        source = ctx and ctx.get_parameter_source(self.name or "")
        if source is click.core.ParameterSource.ENVIRONMENT:
            names = [self.envvar] if isinstance(self.envvar, str) else list(self.envvar or ())
            return next(name for name in names if os.environ.get(name))
        return click.Option.get_error_hint(self._without_aliases(), ctx)


class TextsOption(ChatOption):
    """An option with any number of texts; a variable has one on each line, a file may have one."""

    def _texts(self, value: object) -> list[str]:
        return super()._texts([value] if isinstance(value, str) else value)

    def value_from_envvar(self, ctx: click.Context) -> Any:
        text = self.resolve_envvar_value(ctx)
        return None if text is None else text.split("\n")


_NUMBERS = (Number, NumberOrAuto, Size, Whole)


def _is_writable(value: float) -> bool:
    return not isinstance(value, int) or value.bit_length() <= _MAX_BITS


def _described(value: object) -> str:
    """Return a value of any type for an error."""
    match value:
        case str():
            return shown(value)
        case bool():
            return str(value).lower()
        case int() if not _is_writable(value):
            return "a number with thousands of digits"
        case list() | tuple():
            return "a list"
        case dict():
            return "a table"
    return shown(value)


class OnceOption(ChatOption):
    """An option of which a second value is refused: it would be dropped without a word.

    Most options take the last of their values, so that they can be added to an alias of the shell.
    """

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        parser.add_option(obj=self, opts=self.opts, dest=self.name, action="append")

    def handle_parse_result(
        self, ctx: click.Context, opts: Any, args: list[str]
    ) -> tuple[Any, list[str]]:
        if given := opts.get(self.name):
            opts = {**opts, self.name: self.chosen(ctx, given)}
        return super().handle_parse_result(ctx, opts, args)

    def chosen(self, ctx: click.Context, given: list[str]) -> str:
        """Return the value. Raises `UsageError` if there are several."""
        if len(given) > 1:
            raise given_twice(self)
        return given[0]


def given_twice(option: click.Option) -> UsageError:
    flag = option.opts[0]
    return UsageError(f"{flag} was given twice", f"give one {flag}")


class ModelOption(OnceOption):
    """A model; given several times, the first value, and `compared_models` returns the others."""

    def chosen(self, ctx: click.Context, given: list[str]) -> str:
        first, *others = given
        ctx.meta[_COMPARED] = tuple(others)
        return first


_COMPARED = "swiftchat.compared"


def compared_models(ctx: click.Context) -> tuple[str, ...]:
    """Return the values of `-m` after the first one."""
    found: tuple[str, ...] = ctx.meta.get(_COMPARED, ())
    return found
