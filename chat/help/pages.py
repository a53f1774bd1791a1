"""All pages of `swiftchat help TOPIC`, with their generated tables and values."""

from collections.abc import Callable

from swiftchat.chat.help.answer_pages import ANSWER_PAGES
from swiftchat.chat.help.columns import two_columns
from swiftchat.chat.help.conversation_pages import CONVERSATION_PAGES, KEYS
from swiftchat.chat.help.engine_pages import ENGINE_PAGES
from swiftchat.chat.help.setup_pages import EXIT_CODES, SETUP_PAGES
from swiftchat.chat.options.parameters import ALL_PARAMETERS

PAGES = {**CONVERSATION_PAGES, **ANSWER_PAGES, **ENGINE_PAGES, **SETUP_PAGES}


def page(topic: str, commands: str) -> str:
    """Return the text of a page; raise `KeyError` for an unknown topic.

    `commands` is the table of slash commands.
    """
    text = PAGES[topic].text
    for name, fill in {"commands": lambda: commands, **FILLED}.items():
        mark = f"{{{{{name}}}}}"
        if mark in text:
            text = text.replace(mark, fill())
    return text


def _keys() -> str:
    return two_columns(KEYS)


def _parameters() -> str:
    rows = []
    for one in ALL_PARAMETERS:
        also = f" Also {', '.join(one.aliases)}." if one.aliases else ""
        rows.append((one.name, f"{one.help}{also}"))
    return two_columns(rows)


def _exit_codes() -> str:
    return "\n".join(f"{code:5}  {meaning}" for code, meaning in EXIT_CODES)


def _templates() -> str:
    from swiftchat.tokenizer.template.builtin import BUILT_IN

    return ", ".join(BUILT_IN)


def _roles_folder() -> str:
    from swiftchat.chat.options.roles import roles_folder

    return str(roles_folder())


def _config_path() -> str:
    from swiftchat.chat.options.config import config_path

    return str(config_path())


def _colors() -> str:
    import textwrap
    from dataclasses import fields

    from swiftchat.chat.terminal.theme import Theme

    names = "The parts are " + ", ".join(field.name for field in fields(Theme))
    return textwrap.fill(names, 78).removeprefix("The parts are ")


FILLED: dict[str, Callable[[], str]] = {
    "keys": _keys,
    "parameters": _parameters,
    "exit_codes": _exit_codes,
    "templates": _templates,
    "roles_folder": _roles_folder,
    "config_path": _config_path,
    "colors": _colors,
}
