"""Errors on stderr, and the report files of internal errors."""

import contextlib
import os
import time
from pathlib import Path

from swiftchat.chat.terminal.output import print_notice
from swiftchat.errors import FileSystemError, SwiftchatError
from swiftchat.errors.addresses import without_passwords
from swiftchat.errors.interpreter import has_working_folder
from swiftchat.weights.files.private import create_private_folder, open_private

_MAX_REPORTS = 20  # older ones are removed


def print_error(error: BaseException, *, debug: bool, hint: str = "") -> int:
    """Print an exception as one line `error:` and one line `hint:`; return its exit code.

    Any exception but `SwiftchatError` is an internal error and also written to a report file,
    unless the system refused the use of a file or folder. `hint` replaces the error's own hint.
    With `debug` the traceback is printed first.
    """
    if isinstance(error, OSError):
        error = _refusal(error) or error
    if isinstance(error, SwiftchatError):
        message, hint, code = error.message, hint or error.hint, error.exit_code
    else:
        message = f"internal error: {type(error).__name__}: {error}"
        hint, code = _report_hint(error), SwiftchatError.exit_code
    if debug:
        import traceback

        with contextlib.suppress(OSError, ValueError):
            traceback.print_exception(error)
    print_lines(message, hint)
    return code


def _refusal(error: OSError) -> FileSystemError | None:
    """Return what the system has refused, None if the error does not say that."""
    refusal = None
    if error.filename is not None and error.strerror:
        refusal = FileSystemError(f"cannot use {error.filename}: {error.strerror}")
    elif isinstance(error, FileNotFoundError) and not has_working_folder():
        refusal = FileSystemError("the working folder was deleted", "cd to another folder")
    return refusal and refusal.with_traceback(error.__traceback__)


def print_lines(message: str, hint: str) -> None:
    """Print the lines `error:` and `hint:` on stderr, sanitized; a closed stderr is ignored."""
    with contextlib.suppress(OSError, ValueError):
        print_notice(" ".join(message.split()), "error", label="error: ")
        if hint:
            print_notice(f"hint: {' '.join(hint.split())}", "hint")


def reports_folder() -> Path:
    import platformdirs

    return platformdirs.user_state_path("swiftchat") / "errors"


def _report_hint(error: BaseException) -> str:
    try:
        return f"please report it with the file {write_report(error, reports_folder())}"
    except OSError:
        return "--debug prints the traceback"


def write_report(error: BaseException, folder: Path) -> Path:
    """Write versions and the traceback to a new file that only the user can read; return it.

    The report has neither the command line nor values of variables: they may contain prompts.
    Raises `OSError`.
    """
    import platform
    import traceback
    from importlib.metadata import version

    create_private_folder(folder)
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    moment = time.strftime("%Y-%m-%d-%H%M%S", time.localtime(seconds))
    path = folder / f"{moment}-{nanoseconds:09}-{os.getpid()}.txt"
    head = f"swiftchat {version('swiftchat')}, Python {platform.python_version()}"
    text = without_passwords("".join(traceback.format_exception(error)))
    with os.fdopen(open_private(path, os.O_EXCL | os.O_WRONLY), "wb") as file:
        file.write(f"{head}, {platform.platform()}\n\n{text}".encode("utf-8", "replace"))
    # In the order of time, unless the clock was set back.
    others = sorted(other for other in folder.glob("*.txt") if other != path)
    for old in others[: 1 - _MAX_REPORTS]:
        old.unlink(missing_ok=True)
    return path
