"""Addresses in texts that are shown or kept."""

import re

# The part of an address that holds a user name, a password or a token.
_USER = re.compile(r"\b([a-z][a-z0-9+.-]*://)[^\s/?#]*@", re.IGNORECASE)


def without_passwords(text: str) -> str:
    """Return a text in which no address has a user name and a password: `https://HOST/PATH`."""
    return _USER.sub(r"\1", text)
