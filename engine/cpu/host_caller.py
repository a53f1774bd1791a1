"""A thread that makes the calls which a GPU requests, without Python."""

import ctypes
import weakref
from collections.abc import Callable
from contextlib import suppress

from torch import Tensor

from swiftchat.engine.cpu import native


class HostCaller:
    """Makes the calls that are requested in `mailbox`, int64 [MAILBOX_WORDS], zeros at first.

    `finish` returns when no request will come any more; it is called before the thread ends, when
    this object goes or the process exits. Raises MemoryError.
    """

    def __init__(self, library: ctypes.CDLL, mailbox: Tensor, finish: Callable[[], None]) -> None:
        if len(mailbox) < native.MAILBOX_WORDS:
            raise ValueError(f"a mailbox has {native.MAILBOX_WORDS} words")
        handle = library.host_caller_create(mailbox.data_ptr())
        if not handle:
            raise MemoryError("The thread that a GPU calls could not be started")
        # The thread reads the mailbox until then.
        self.close = weakref.finalize(self, _end, library, handle, mailbox, finish)


def _end(library: ctypes.CDLL, handle: int, mailbox: Tensor, finish: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # a GPU that has failed requests nothing
        finish()
    library.host_caller_destroy(handle)
