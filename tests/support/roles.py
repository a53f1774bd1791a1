"""Roles from texts."""

from swiftchat.chat.options.role_text import split_role
from swiftchat.chat.options.roles import Role, role_of


def parse_role(text: str, file: str) -> Role:
    """Return the role of a text; `file` is its name for errors."""
    return role_of(split_role(text, file))
