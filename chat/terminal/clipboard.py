"""Copy text to the clipboard: the local terminal's over SSH, otherwise the desktop's."""

import base64
from collections.abc import Callable, Mapping

from swiftchat.errors import UsageError

# xterm's limit for one OSC 52 sequence, which other terminals adopted.
_MAX_BASE64_CHARS = 74_994


def copy(text: str, env: Mapping[str, str], write: Callable[[str], None]) -> None:
    """Copy a text to the user's clipboard; raise `UsageError` if there is none.

    Over SSH (`SSH_TTY` in `env`) send OSC 52 through `write`; terminals do not acknowledge it.
    """
    if env.get("SSH_TTY"):
        code = base64.b64encode(text.encode("utf-8", "replace")).decode()
        if len(code) > _MAX_BASE64_CHARS:
            raise UsageError(
                f"{len(text)} characters are too many for the clipboard over SSH",
                "copy a code block instead: /copy code N",
            )
        write(f"\x1b]52;c;{code}\x07")
        return
    # Imported here because it searches PATH for clipboard programs.
    import pyperclip

    try:
        pyperclip.copy(text)
    except (pyperclip.PyperclipException, OSError) as error:
        raise UsageError(
            "no clipboard program was found", "install wl-clipboard, xclip or xsel"
        ) from error
