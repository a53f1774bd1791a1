"""Whether this machine has native CPU kernels, as an engine would choose them."""

import json
import subprocess
from dataclasses import dataclass
from functools import cache

from swiftchat.engine.api.protocol import error_from
from swiftchat.errors import DeviceError
from swiftchat.errors.interpreter import child_folder, python_module

_TIMEOUT_S = 30


@dataclass(frozen=True)
class CpuKernels:
    """The variant of the kernels, None if torch's operators compute; `reason` says why."""

    variant: str | None
    reason: str


@cache
def cpu_kernels() -> CpuKernels:
    """Return the kernels that an engine on the CPU would compute with.

    A child process loads them: a library that crashes when it is loaded ends that process only.
    Raises `UsageError` and `DeviceError` as the engine does, `DeviceError` if the process fails.
    """
    try:
        done = subprocess.run(
            python_module("swiftchat.engine.cpu"),
            cwd=child_folder(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except subprocess.SubprocessError as error:
        raise DeviceError(
            f"the CPU kernels cannot be chosen: {error}", "see swiftchat doctor"
        ) from None
    choice = json.loads(done.stdout)
    if choice.get("type") == "error":
        raise error_from(choice)
    return CpuKernels(choice["variant"], choice["reason"])
