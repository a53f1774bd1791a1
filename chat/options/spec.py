"""The entries of the table of options: one call for each field of `Options`."""

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field
from typing import Any

import click

from swiftchat.chat.options.option_types import (
    ChatOption,
    Number,
    OnceOption,
    TextsOption,
)
from swiftchat.chat.options.parameter import ChoiceParameter, Parameter, TextsParameter, flag_of
from swiftchat.engine.api.params import SAMPLING_RANGES, Range, SamplingParams

AnyParameter = Parameter | ChoiceParameter | TextsParameter
_KEY = "option"


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What the table says of an option, besides its name, type and default.

    A section of `--help` begins with an option that has a `section`. `flags` replace the one made
    of the name. With `env` the option has variables, and roles may set it; with `in_file` the
    configuration file may. `commands` are the subcommands that have it too, `engine` is the field
    of `EngineConfig` that it sets. `is_saved` with a conversation. `in_model` is its name in
    generation_config.json. `of_beams`: only for a beam search. `parameter` makes what `/set`
    changes. `settings` are those of click.
    """

    help: str
    section: str = ""
    flags: tuple[str, ...] = ()
    kind: type[ChatOption] = ChatOption
    env: bool = True
    in_file: bool = False
    commands: tuple[str, ...] = ()
    engine: str = ""
    is_saved: bool = False
    in_model: str = ""
    of_beams: bool = False
    parameter: Callable[[str], AnyParameter] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def spec_of(entry: "Field[Any]") -> Spec | None:
    """Return what the table says of a field, None if no option sets it."""
    spec: Spec | None = entry.metadata.get(_KEY)
    return spec


def click_option(entry: "Field[Any]", spec: Spec) -> click.Option:
    """Return the option of a field for the command line."""
    name, settings = entry.name, dict(spec.settings)
    if spec.parameter is not None:
        found = spec.parameter(name)
        flags = (*spec.flags, *found.flags)
        if isinstance(found, TextsParameter):
            settings |= {"metavar": found.metavar}
        else:
            settings |= {"type": Number(found)}
    else:
        own = () if any(flag.startswith("--") for flag in spec.flags) else (flag_of(name),)
        flags = (*spec.flags, *own)
    if entry.default == ():
        settings |= {"multiple": True}
    elif entry.default is False:
        settings |= {"is_flag": True}
    elif entry.default is not None:
        settings |= {"default": entry.default}
    variables = [
        "SWIFTCHAT" + flag[1:].replace("-", "_").upper() for flag in flags if flag[:2] == "--"
    ]
    return spec.kind(
        (*flags, name), envvar=variables if spec.env else None, help=spec.help, **settings
    )


_SPEC_FIELDS = Spec.__dataclass_fields__.keys()


def option(*flags: str, help: str, default: Any = None, **details: Any) -> Any:
    """An option; `details` are fields of `Spec`, others are settings of click's option."""
    own = {name: value for name, value in details.items() if name in _SPEC_FIELDS}
    settings = {name: value for name, value in details.items() if name not in _SPEC_FIELDS}
    spec = Spec(help=help, flags=flags, settings=settings, **own)
    return field(default=default, metadata={_KEY: spec})


def once(*flags: str, help: str, **details: Any) -> Any:
    """An option that may be given once."""
    return option(*flags, help=help, kind=OnceOption, **details)


def flag(*flags: str, help: str, **details: Any) -> Any:
    """An option without a value."""
    return option(*flags, help=help, default=False, **details)


def many(*flags: str, help: str, **details: Any) -> Any:
    """An option that may be given several times."""
    return option(*flags, help=help, default=(), **details)


def number(
    help: str,
    *aliases: str,
    short: str = "",
    limits: Range | None = None,
    **details: Any,
) -> Any:
    """A parameter with a number, whose limits and type are those of the engine's parameter."""

    def parameter(name: str) -> Parameter:
        return Parameter(
            name=name,
            help=help,
            aliases=aliases,
            is_sampled=not details.get("engine"),
            kind=float if SamplingParams.__annotations__.get(name) is float else int,
            range=limits or SAMPLING_RANGES[name],
        )

    details = {**_of_answers(details), **details}
    flags = (short,) if short else ()
    return option(*flags, help=help, parameter=parameter, **details)


def choice(choices: tuple[str, ...], help: str, **details: Any) -> Any:
    """A parameter with one of a few texts."""

    def parameter(name: str) -> ChoiceParameter:
        return ChoiceParameter(name=name, help=help, choices=choices)

    details = {**_of_answers(details), **details}
    return option(help=help, parameter=parameter, **details)


def texts(help: str, *aliases: str, metavar: str = "TEXT") -> Any:
    """A parameter with any number of texts."""

    def parameter(name: str) -> TextsParameter:
        return TextsParameter(name=name, help=help, aliases=aliases, metavar=metavar)

    details = _of_answers({})
    return option(help=help, default=(), kind=TextsOption, parameter=parameter, **details)


def _of_answers(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return what holds for the parameters of each answer."""
    return {} if details.get("engine") else {"is_saved": True, "commands": ("batch",)}
