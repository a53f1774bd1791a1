"""What a new process gets, and which commands can be forked."""

import os
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
# The end of code that `tests.support.program.patched` has the program run first.
MAIN = "from swiftchat.chat.cli import main\nmain()\n"
_OPTION = "-P"
PATCH = "sitecustomize"  # the module that Python imports when it starts
_LIMITED = "swiftchat.tokenizer.template.worker"
SCRIPTS = tuple(str(Path(sys.executable).parent / n) for n in ("swiftchat", "swiftchat-engine"))
_FOLDERS = (ROOT / "tests/chat", ROOT / "tests/engine", ROOT / "tests/support")
# Variables that Python and libraries written in C read when they are loaded, by their beginning.
_READ_WHEN_LOADED = (
    *("PYTHON", "LANG", "LC_", "LD_", "MALLOC_", "GLIBC_", "TZ"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "ATEN_", "ONEDNN_", "DNNL_"),
    *("CUDA_", "NVIDIA_", "TORCH_", "PYTORCH_"),
)
# The worker sets it before it imports torch, unless its user has; so does the image.
WORKER_VARIABLES = {"GOMP_SPINCOUNT": "10000"}


@dataclass(frozen=True)
class Start:
    """What a new process gets.

    It has no open files but `fds`, which are its numbers of files of the process that asks for it.
    `terminal`: its standard input becomes its terminal.
    """

    command: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    umask: int
    fds: tuple[int, ...] = (0, 1, 2)
    ignored_signals: tuple[int, ...] = ()
    new_session: bool = False
    terminal: bool = False


def current_umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def ignored_signals() -> tuple[int, ...]:
    """Return the signals that a child of this process would ignore."""
    restored = {signal.SIGPIPE, signal.SIGXFSZ}  # by `subprocess`
    numbers = signal.valid_signals() - restored
    return tuple(n for n in numbers if signal.getsignal(n) is signal.SIG_IGN)


def split(command: Sequence[str]) -> tuple[bool, str, tuple[str, ...]]:
    """Return whether a Python command has -P, what it runs (-m, -c or a file), and the rest."""
    arguments = tuple(command[1:])
    isolated = arguments[:1] == (_OPTION,)
    if isolated:
        arguments = arguments[1:]
    return isolated, arguments[0] if arguments else "", arguments[1:]


def can_be_forked(
    command: Sequence[str],
    environment: dict[str, str],
    image_environment: dict[str, str],
    image_variables: Collection[str],
) -> bool:
    """Return whether a fork of the image does what the command would do."""
    if not is_program(command):
        return False
    wanted, has = WORKER_VARIABLES | environment, WORKER_VARIABLES | image_environment
    for name in wanted.keys() | has.keys():
        is_read = name.startswith(_READ_WHEN_LOADED) or name in image_variables
        if is_read and wanted.get(name) != has.get(name):
            # Modules of other folders may replace those of the image.
            added = added_paths(environment, image_environment)
            if name != "PYTHONPATH" or not added or not all(map(_replaces_nothing, added)):
                return False
    return True


def added_paths(
    environment: Mapping[str, str], image_environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the folders of PYTHONPATH that the image did not have."""
    has = image_environment.get("PYTHONPATH", "").split(os.pathsep)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    return tuple(path for path in paths if path and path not in has)


def is_patch(path: str) -> bool:
    """Return whether a folder has nothing but code that Python runs when it starts."""
    folder = Path(path)
    names = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    return names - {"__pycache__"} == {f"{PATCH}.py"}


def _replaces_nothing(path: str) -> bool:
    return path == str(ROOT) or is_patch(path)


def is_limited(command: Sequence[str]) -> bool:
    """Return whether a program limits its address space, which its image must not fill."""
    return _LIMITED in command


def needs_torch(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether a program, or one that it starts, imports torch.

    A program that is not recognized imports it anew, which takes a second.
    """
    # Programs of the terminal whose engine is not a replaced one get a device from the tests.
    has_device = "--device" in command or "SWIFTCHAT_DEVICE" in environment
    _, runs, rest = split(command)
    is_engine = runs == "-m" and rest[0].startswith("swiftchat.engine.")
    is_test = runs == "-c" and "import torch" in rest[0]
    return is_engine or is_test or runs == SCRIPTS[1] or has_device or "doctor" in command


def is_program(command: Sequence[str]) -> bool:
    """Return whether a command runs swiftchat, as it is or with the tests' changes."""
    _, runs, rest = split(command)
    if command[0] != sys.executable:
        return False
    if runs == "-m":
        return rest[0].startswith("swiftchat.")
    if runs == "-c":
        return rest[0].endswith(MAIN)
    file = Path(runs)
    return runs in SCRIPTS or (
        file.suffix == ".py" and any(folder in file.parents for folder in _FOLDERS)
    )
