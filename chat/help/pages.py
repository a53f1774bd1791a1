"""All pages of `swiftchat help TOPIC`, with their generated tables and values."""

from collections.abc import Callable

from swiftchat.chat.help.answer_pages import ANSWER_PAGES
from swiftchat.chat.help.columns import two_columns
from swiftchat.chat.help.conversation_pages import CONVERSATION_PAGES, KEYS
from swiftchat.chat.help.engine_pages import ENGINE_PAGES
from swiftchat.chat.help.setup_pages import EXIT_CODES, SETUP_PAGES
from swiftchat.chat.help.wrap import wrapped
from swiftchat.chat.options.chat_options import ALL_PARAMETERS, option_name
from swiftchat.chat.options.parameter import TextsParameter

PAGES = {**CONVERSATION_PAGES, **ANSWER_PAGES, **ENGINE_PAGES, **SETUP_PAGES}


def page(topic: str, command_table: Callable[[int], str], width: int = 80) -> str:
    """Return the text of a page in lines of `width`; raise `KeyError` for an unknown topic.

    `command_table` returns the table of slash commands.
    """
    text = PAGES[topic].text
    for name, fill in {"commands": command_table, **FILLED}.items():
        mark = f"{{{{{name}}}}}"
        if mark in text:
            text = text.replace(mark, fill(width))
    return wrapped(text, width)


def parameter_help(name: str) -> str:
    """Return the help text of a parameter, by its name, alias or flag; empty for another name."""
    wanted = option_name(name.removeprefix("--"))
    for one in ALL_PARAMETERS:
        if one.name == wanted:
            values = "any text" if isinstance(one, TextsParameter) else one.rule
            ways = f"{one.flags[0]} at the start, /set {one.name} VALUE at the prompt."
            return f"{one.name}: {values}\n{one.help}\n{ways}"
    return ""


def _keys(width: int) -> str:
    return two_columns(KEYS, width)


def _parameters(width: int) -> str:
    rows = []
    for one in ALL_PARAMETERS:
        also = f" Also {', '.join(one.aliases)}." if one.aliases else ""
        rows.append((one.name, f"{one.help}{also}"))
    return two_columns(rows, width)


def _exit_codes(_: int) -> str:
    return "\n".join(f"{code:5}  {meaning}" for code, meaning in EXIT_CODES)


def _templates(_: int) -> str:
    from swiftchat.tokenizer.template.builtin import BUILT_IN

    return ", ".join(BUILT_IN)


def _default_model(_: int) -> str:
    from swiftchat.weights.hub.known_models import DEFAULT_MODEL

    return DEFAULT_MODEL


def _models_folder(_: int) -> str:
    from swiftchat.weights.store import default_store

    return str(default_store().root)


def _roles_folder(_: int) -> str:
    from swiftchat.chat.options.user_files import roles_folder

    return str(roles_folder())


def _config_path(_: int) -> str:
    from swiftchat.chat.options.user_files import config_path

    return str(config_path())


def _colors(_: int) -> str:
    from dataclasses import fields

    from swiftchat.chat.terminal.theme import Theme

    return ", ".join(field.name for field in fields(Theme))


FILLED: dict[str, Callable[[int], str]] = {
    "keys": _keys,
    "parameters": _parameters,
    "exit_codes": _exit_codes,
    "templates": _templates,
    "default_model": _default_model,
    "models_folder": _models_folder,
    "roles_folder": _roles_folder,
    "config_path": _config_path,
    "colors": _colors,
}
