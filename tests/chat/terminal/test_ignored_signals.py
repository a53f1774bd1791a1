"""Ctrl-C takes effect wherever its exception is raised."""

import subprocess
import sys

PROGRAM = """
import signal, time, weakref
from swiftchat.chat.terminal.ignored_signals import retry_ignored_signals

class Target:
    pass

retry_ignored_signals()
target = Target()
reference = weakref.ref(target, lambda _: signal.raise_signal(signal.SIGINT))
try:
    del target  # the callback ignores the exception
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_ignored_interrupt_is_repeated() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)
