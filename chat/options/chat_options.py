"""What follows from the table of options: the command line, its sections, names by their use."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import click

from swiftchat.chat.options.parameter import TextsParameter
from swiftchat.chat.options.spec import AnyParameter, Spec, click_option, spec_of
from swiftchat.chat.options.table import Options
from swiftchat.errors import UsageError

_FIELDS = {entry.name: entry for entry in fields(Options)}
_SPECS = {name: spec for name, entry in _FIELDS.items() if (spec := spec_of(entry)) is not None}
_OPTIONS = {name: click_option(_FIELDS[name], spec) for name, spec in _SPECS.items()}
CHAT_OPTIONS = list(_OPTIONS.values())


def _sections() -> dict[str, list[click.Option]]:
    sections: dict[str, list[click.Option]] = {}
    title = ""
    for name, spec in _SPECS.items():
        title = spec.section or title
        sections.setdefault(title, []).append(_OPTIONS[name])
    return sections


def _names(is_wanted: Callable[[Spec], object]) -> tuple[str, ...]:
    return tuple(name for name, spec in _SPECS.items() if is_wanted(spec))


SECTIONS = _sections()  # of `--help`
ALL_PARAMETERS: tuple[AnyParameter, ...] = tuple(
    spec.parameter(name) for name, spec in _SPECS.items() if spec.parameter is not None
)
PARAMETERS = {
    found.name: found for found in ALL_PARAMETERS if not isinstance(found, TextsParameter)
}
TEXTS_PARAMETERS = {
    found.name: found for found in ALL_PARAMETERS if isinstance(found, TextsParameter)
}
# Parameters of each answer; those that are saved with a conversation; those of a beam search.
SAMPLED = tuple(found.name for found in ALL_PARAMETERS if found.is_sampled)
SAMPLING_OPTIONS = tuple(name for name in SAMPLED if _SPECS[name].is_saved)
BEAM_PARAMETERS = _names(lambda spec: spec.of_beams)
# By their names in generation_config.json.
MODEL_NAMES = {name: spec.in_model for name, spec in _SPECS.items() if spec.in_model}
# Options that are saved with a conversation.
SESSION_OPTIONS = _names(lambda spec: spec.is_saved)
# What the engine's process gets, by the fields of `EngineConfig`; a running engine has its own.
ENGINE_FIELDS = {name: spec.engine for name, spec in _SPECS.items() if spec.engine}
# The options that have a variable; roles may set them too.
CONFIG_NAMES = set(_names(lambda spec: spec.env))
# The options that the configuration file may set: also lists, which a variable could not separate.
FILE_NAMES = CONFIG_NAMES | set(_names(lambda spec: spec.in_file))

_BY_ANY_NAME = {
    name: found.name for found in ALL_PARAMETERS for name in (found.name, *found.aliases)
}
_VALUE_HINT = "swiftchat chat --help explains the options"


def option_name(name: str) -> str:
    """Return the name of the option that a name or alias stands for, with `_` for `-`."""
    name = name.replace("-", "_")
    return _BY_ANY_NAME.get(name, name)


def options_of(command: str) -> list[click.Option]:
    """Return the options of the chat that a subcommand has too."""
    return [_OPTIONS[name] for name in _names(lambda spec: command in spec.commands)]


def typed(settings: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Return the values of options in their types.

    Raises `UsageError` for an invalid value, which begins with `place`.
    """
    return {name: _typed(name, value, place) for name, value in settings.items()}


def _typed(name: str, value: object, place: str) -> Any:
    try:
        return _OPTIONS[name].type_cast_value(click.Context(click.Command("swiftchat")), value)
    except click.BadParameter as error:
        raise UsageError(f"{place}{name}: {error.message}", _VALUE_HINT) from None


def saved_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the options that a conversation sets, in their types, and what is wrong with others.

    An imported conversation may come from another person: it sets only options that are saved with
    a conversation. Conversations of older versions have other names.
    """
    found, problems = {}, []
    for old_name, value in settings.items():
        name = option_name(old_name)
        if name not in SESSION_OPTIONS:
            continue
        try:
            found[name] = _typed(name, value, "")
        except UsageError as error:
            problems.append(error.message)
    return found, problems


def sampling_changes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters in the settings of a conversation or role."""
    return {name: value for name, value in settings.items() if name in SAMPLING_OPTIONS}
