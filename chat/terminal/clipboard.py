"""The clipboard: the terminal's over SSH, the desktop's otherwise."""

import base64
from collections.abc import Callable, Mapping

from swiftchat.errors import UsageError

# What xterm takes of one OSC 52 sequence, and others took over.
_LONGEST_BASE64 = 74_994


def copy(text: str, env: Mapping[str, str], write: Callable[[str], None]) -> None:
    """Put a text on the clipboard of whoever sits at the keyboard; `UsageError` if none is there.

    Over SSH (`SSH_TTY` in `env`) the terminal is asked to by OSC 52, which it never answers.
    `write` takes that sequence.
    """
    if env.get("SSH_TTY"):
        code = base64.b64encode(text.encode("utf-8", "replace")).decode()
        if len(code) > _LONGEST_BASE64:
            raise UsageError(
                f"{len(text)} characters are too many for a clipboard over SSH",
                "copy a part: /copy code N",
            )
        write(f"\x1b]52;c;{code}\x07")
        return
    # Here, not at the top: it looks for the programs it may use.
    import pyperclip

    try:
        pyperclip.copy(text)
    except (pyperclip.PyperclipException, OSError) as error:
        raise UsageError(
            "there is no clipboard here", "install wl-clipboard, xclip or xsel"
        ) from error
