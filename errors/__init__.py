"""The errors a user can meet: each carries a message, a hint and the program's exit code.

This package is the one thing every other package may import. Only `swiftchat.chat` turns
these errors into text and an exit status.
"""

__all__ = [
    "BadModelFile",
    "ContextOverflow",
    "DeviceError",
    "DownloadError",
    "FileSystemError",
    "KernelCompileError",
    "ModelNotFound",
    "OutOfMemory",
    "SwiftchatError",
    "UsageError",
    "error_from_wire",
]


class SwiftchatError(Exception):
    """A failure with one line that says what happened and one that says what to do next."""

    exit_code = 1
    default_hint = "--debug shows where it happened"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint


class UsageError(SwiftchatError):
    """The request itself makes no sense: an empty prompt, a contradictory option."""

    exit_code = 2
    default_hint = "swiftchat --help"


class ModelNotFound(SwiftchatError):
    """No model of that name or path; the hint is the `download` line that would bring it."""

    exit_code = 3
    default_hint = "swiftchat list shows what is here"


class DeviceError(SwiftchatError):
    """The device is missing, too old, or its worker process died."""

    exit_code = 4
    default_hint = "swiftchat doctor tells what is here, swiftchat show NAME what a model needs"


class OutOfMemory(DeviceError):
    """Weights or cache do not fit; the message says how much is needed and how much is free."""


class KernelCompileError(DeviceError):
    """A CUDA kernel did not compile; the message carries the architecture and the log."""


class ContextOverflow(SwiftchatError):
    """The prompt is longer than the context; nothing was cut silently."""

    exit_code = 5
    default_hint = "shorten the prompt, or add --ctx-size N or --overflow drop-oldest"


class DownloadError(SwiftchatError):
    """The network or the hub refused; the message tells which."""

    exit_code = 6
    default_hint = "check the network, then run the same command again: it goes on where it was"


class BadModelFile(SwiftchatError):
    """A model file is damaged, lies about its contents, or is of an unknown kind."""

    exit_code = 7
    default_hint = (
        "it may be damaged or of an unsupported kind; swiftchat download NAME brings it again"
    )


class FileSystemError(SwiftchatError):
    """A file could not be written or read: disk full, permission, read-only."""

    exit_code = 8
    default_hint = "check the path, its permissions (ls -l) and the free space (df -h)"


_KINDS: dict[str, type[SwiftchatError]] = {
    kind.__name__: kind
    for kind in (
        SwiftchatError,
        UsageError,
        ModelNotFound,
        DeviceError,
        OutOfMemory,
        KernelCompileError,
        ContextOverflow,
        DownloadError,
        BadModelFile,
        FileSystemError,
    )
}


def error_from_wire(kind: str, message: str, hint: str) -> SwiftchatError:
    """Rebuild an error that crossed the pipe; an unknown kind becomes a `SwiftchatError`."""
    return _KINDS.get(kind, SwiftchatError)(message, hint)
