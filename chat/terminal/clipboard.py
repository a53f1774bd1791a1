"""Copy text to the clipboard: the desktop's, tmux's, or that of the terminal."""

import base64
import subprocess
from collections.abc import Callable, Mapping

from swiftchat.chat.terminal.sanitize import sanitize_prose
from swiftchat.errors import UsageError

# xterm's limit for one OSC 52 sequence, which other terminals adopted.
_MAX_BASE64_CHARS = 74_994
_SCREEN_CHUNK_CHARS = 512  # GNU screen cuts a longer device control string
_TMUX_LIMIT_S = 5


def copy(text: str, env: Mapping[str, str], write: Callable[[str], None]) -> str:
    """Copy a text, sanitized, to the user's clipboard; return where it went, as words for the user.

    Over SSH, and where the desktop has no clipboard, tmux gets it, or the terminal as OSC 52
    through `write`; terminals do not acknowledge that. Raises `UsageError` if there is no way.
    """
    text = sanitize_prose(text)
    is_remote = bool(env.get("SSH_TTY") or env.get("SSH_CONNECTION"))
    if not is_remote and _copy_to_desktop(text):
        return "copied"
    if env.get("TMUX") and _copy_to_tmux(text):
        return "copied to tmux, which passes it on if the terminal takes it:"
    if env.get("TERM") in ("dumb", "unknown"):
        raise UsageError("no clipboard program was found", "install wl-clipboard, xclip or xsel")
    code = base64.b64encode(text.encode("utf-8", "replace")).decode()
    if len(code) > _MAX_BASE64_CHARS:
        raise UsageError(
            f"{len(text)} characters are too many for the clipboard of the terminal",
            "copy a code block instead: /copy code N",
        )
    write(_passed_through(f"\x1b]52;c;{code}\x07", env))
    return "sent to the clipboard of the terminal, which may refuse it:"


def _copy_to_desktop(text: str) -> bool:
    """Return whether the clipboard has the text: a program that fails may not say so."""
    # Imported here because it searches PATH for clipboard programs.
    import pyperclip

    try:
        pyperclip.copy(text)
        return str(pyperclip.paste()).split() == text.split()  # line ends may differ
    except (pyperclip.PyperclipException, OSError, ValueError):
        return False


def _copy_to_tmux(text: str) -> bool:
    """Set the buffer of tmux, which passes it on to the terminal (since tmux 3.2)."""
    try:
        done = subprocess.run(
            ["tmux", "load-buffer", "-w", "-"],
            input=text.encode("utf-8", "replace"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TMUX_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _passed_through(sequence: str, env: Mapping[str, str]) -> str:
    """Wrap a sequence so that tmux and GNU screen pass it on to the terminal outside."""
    if env.get("TMUX"):
        return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"
    if env.get("STY"):
        size = _SCREEN_CHUNK_CHARS
        chunks = [sequence[i : i + size] for i in range(0, len(sequence), size)]
        return "".join(f"\x1bP{chunk}\x1b\\" for chunk in chunks)
    return sequence
