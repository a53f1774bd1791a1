"""The kinds of options of `swiftchat`, and the types of their values."""

import copy
import os
import re
from typing import Any, Self

import click

from swiftchat.chat.options.config import config_path
from swiftchat.chat.options.parameters import (
    PARAMETERS,
    TEXTS_PARAMETERS,
    ChoiceParameter,
    Parameter,
)
from swiftchat.errors import UsageError

MAX_RANKS = 1024
MAX_AT_A_TIME = 4096  # answers


class RankCount(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """A number of ranks or `auto`."""

    name = "number or auto"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "auto":
            return value
        text = str(value)
        if not re.fullmatch("[0-9]{1,4}", text) or not 1 <= int(text) <= MAX_RANKS:
            self.fail(f"{value!r} is neither auto nor a number from 1 to {MAX_RANKS}", param, ctx)
        return int(text)


class Number(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """A value of a parameter; `off` unsets a number."""

    name = "value"

    def __init__(self, parameter: Parameter | ChoiceParameter) -> None:
        self._parameter = parameter

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        found = self._parameter
        return "N" if isinstance(found, Parameter) else f"[{'|'.join(found.choices)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value).lower() if isinstance(value, bool) else str(value)  # TOML has true
        try:
            return self._parameter.parse(text)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Colors(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """Colors as `NAME=STYLE,…`, in a configuration file also as a table."""

    name = "name=style,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from swiftchat.chat.terminal.theme import parse_colors

        if isinstance(value, dict):
            value = ",".join(f"{name}={style}" for name, style in value.items())
        try:
            parse_colors(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class ChatOption(click.Option):
    """An option whose errors name the place of the value: flag, variable or file.

    Help texts and errors show its short flag and one long flag, not the aliases of a parameter.
    """

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
        if source is click.core.ParameterSource.DEFAULT_MAP:
            return f"{self.name} in {config_path()}"
        return click.Option.get_error_hint(self._without_aliases(), ctx)


class TextsOption(ChatOption):
    """An option with any number of texts; a variable has one on each line."""

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        texts = [value] if isinstance(value, str) else value
        if texts is not None and not _are_texts(texts):
            raise click.BadParameter(f"must be a text or a list of texts, not {value!r}", ctx, self)
        return super().type_cast_value(ctx, texts)

    def value_from_envvar(self, ctx: click.Context) -> Any:
        text = self.resolve_envvar_value(ctx)
        return None if text is None else text.split("\n")


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)


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


def option(
    *names: str, env: bool = True, kind: type[ChatOption] = ChatOption, **settings: Any
) -> click.Option:
    """An option, with SWIFTCHAT_* variables and a place in the configuration file if `env`."""
    flags = [name.removeprefix("--") for name in names if name.startswith("--")]
    variables = ["SWIFTCHAT_" + flag.replace("-", "_").upper() for flag in flags]
    return kind(names, envvar=variables if env else None, **settings)


def once(*names: str, env: bool = True, **settings: Any) -> click.Option:
    """An option that may be given once."""
    return option(*names, env=env, kind=OnceOption, **settings)


def parameter(name: str, *short: str, env: bool = True, **settings: Any) -> click.Option:
    """The option of a parameter in the table."""
    found = PARAMETERS[name]
    return option(
        *short, *found.flags, name, env=env, type=Number(found), help=found.help, **settings
    )


def texts(name: str) -> click.Option:
    """The option of a parameter with texts."""
    found = TEXTS_PARAMETERS[name]
    variables = ["SWIFTCHAT_" + flag[2:].replace("-", "_").upper() for flag in found.flags]
    return TextsOption(
        (*found.flags, name),
        envvar=variables,
        multiple=True,
        metavar=found.metavar,
        help=found.help,
    )


def flag(*names: str, help: str, env: bool = True) -> click.Option:
    return option(*names, env=env, is_flag=True, help=help)
