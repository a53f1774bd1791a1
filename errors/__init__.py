"""Exceptions for errors that a user can cause: message, hint and exit code.

Every package may import this one. `swiftchat.chat` prints these errors and exits with their code.
"""

_CLASSES: dict[str, type["SwiftchatError"]] = {}  # subclasses of SwiftchatError by name


class SwiftchatError(Exception):
    """An error with a one-line message about the problem and a one-line hint about what to do."""

    exit_code = 1
    default_hint = "run again with --debug for a traceback"

    def __init_subclass__(cls) -> None:
        _CLASSES[cls.__name__] = cls

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint


class UsageError(SwiftchatError):
    """An invalid request: an empty prompt, contradictory options."""

    exit_code = 2
    default_hint = "see swiftchat --help"


class ModelNotFound(SwiftchatError):
    """No model has the given name or path; the hint names the command that downloads it."""

    exit_code = 3
    default_hint = "swiftchat list shows the installed models"


class DeviceError(SwiftchatError):
    """A missing or unsupported device, or the end of its worker process."""

    exit_code = 4
    default_hint = "swiftchat doctor shows this machine, swiftchat show NAME what a model needs"


class EngineStopped(DeviceError):
    """The intended end of an engine: by a signal, by `swiftchat stop`, or after its idle time."""


class OutOfMemory(DeviceError):
    """Weights or KV cache do not fit; the message has the needed and the free bytes."""


class KernelCompileError(DeviceError):
    """A CUDA kernel did not compile; the message has the architecture and the log."""


class ContextOverflow(SwiftchatError):
    """The prompt is longer than the context."""

    exit_code = 5
    default_hint = "shorten the prompt, or add --ctx-size N or --overflow drop-oldest"


class DownloadError(SwiftchatError):
    """A failure of the network or of the hub; the message names which."""

    exit_code = 6
    default_hint = "check the network, then run the same command again: it resumes the download"


class BadModelFile(SwiftchatError):
    """A model file that this program cannot use: an unknown format, or inconsistent files."""

    exit_code = 7
    default_hint = (
        "this version does not run the model in this form; swiftchat help models lists the forms "
        "that run"
    )


class DamagedModelFile(BadModelFile):
    """A model file that is incomplete, or not what its format says."""

    default_hint = (
        "the file may be damaged or incomplete; swiftchat download NAME downloads it again"
    )


class FileSystemError(SwiftchatError):
    """A file that cannot be read or written: disk full, no permission, read-only."""

    exit_code = 8
    default_hint = "check the path, its permissions (ls -l) and the free space (df -h)"

    @classmethod
    def reading(cls, name: object, error: OSError) -> "FileSystemError":
        """Return the error for a file that cannot be read."""
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        hint = "check the path" if is_missing else "check its permissions (ls -l)"
        return cls(f"cannot read {name}: {error.strerror or error}", hint)


def error_from_wire(kind: str, message: str, hint: str) -> SwiftchatError:
    """Return an error received from another process; an unknown kind becomes `SwiftchatError`."""
    return _CLASSES.get(kind, SwiftchatError)(message, hint)
