"""The console script: Ctrl-C ends the program quietly from its first moment on.

Importing the program takes so long that Ctrl-C often arrives meanwhile. Nothing has begun then, so
that the process may end at once. `cli.main` replaces the handler.
"""

import os

try:
    import signal

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
except KeyboardInterrupt:
    os._exit(130)


def main() -> None:
    """Run the program; its exit code after Ctrl-C is 130."""
    # Empty means unset; huggingface_hub would take it for the current folder.
    if os.environ.get("XDG_CACHE_HOME") == "":
        del os.environ["XDG_CACHE_HOME"]
    try:
        from swiftchat.chat.cli import main as run

        run()
    except KeyboardInterrupt:  # behind the end of `run`
        os._exit(130)
