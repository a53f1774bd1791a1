"""A chat in a terminal with a real engine: tiny, with random weights, of one or several ranks."""

from pathlib import Path
from types import TracebackType

import psutil

from tests.support import fake_engine
from tests.support.program import patched
from tests.support.sessions import stored_messages
from tests.support.terminal import Terminal
from tests.support.worker_processes import (
    command_line,
    rank_processes,
    running_programs,
    wait_until,
)

# For several engines to start on a busy machine.
START_S = 120.0
# The command line refuses several ranks on a CPU, which only tests use.
_SEVERAL_RANKS = """
from swiftchat.chat.options.config import ChatConfig
ChatConfig.check = lambda self: None
"""


def command(folder: Path, *options: str, tp: int = 1) -> list[str]:
    """Return the command line of a chat that answers "aaa…"; makes the model's folder."""
    model = fake_engine.make_folder(folder, max_position_embeddings=50_000)
    dummy = ("--dummy", model / "config.json", "--device", "cpu", "--tp", tp)
    # Without the bias the text could be anything, also only control tokens.
    greedy = ("--temp", "0", "--logit-bias", "a=100", "--loop-stop", "off")
    return patched(_SEVERAL_RANKS, "-m", model, *dummy, *greedy, *options)


class RealChat:
    """A chat in a terminal; at the end of the context its processes must be gone."""

    def __init__(self, folder: Path, *options: str, tp: int = 1) -> None:
        executable, *args = command(folder, *options, tp=tp)
        self.terminal = Terminal(executable, args)

    def __enter__(self) -> "RealChat":
        self.terminal.wait_for(">>>", START_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.terminal.kill()
        if error is None:
            wait_until(lambda: not running_programs(), 60)

    @property
    def worker(self) -> psutil.Process:
        """The engine's process, rank 0."""
        (worker,) = (
            child
            for child in psutil.Process(self.terminal.process.pid).children()
            if "swiftchat.engine.worker" in command_line(child)
        )
        return worker

    def ranks(self, size: int) -> dict[int, int]:
        """Wait until all ranks have started; return their process ids."""

        def has_started() -> bool:
            try:
                return len(rank_processes(self.worker.pid)) == size - 1
            except (ValueError, psutil.Error):  # no worker yet, or one that has ended
                return False

        wait_until(has_started, START_S)
        return {0: self.worker.pid, **rank_processes(self.worker.pid)}

    def wait_for_prompt(self) -> None:
        self.terminal.wait_for(lambda _: self.terminal.is_at_prompt, START_S)

    def ask(self, question: str) -> None:
        """Send a question and wait until its answer is saved and the prompt is back."""
        self.terminal.type(f"{question}\r")
        self.wait_answered(question)

    def wait_answered(self, question: str) -> None:
        def is_answered() -> bool:
            self.terminal.look()
            asked, answer = [("", "", None), ("", "", None), *stored_messages()][-2:]
            return asked[1] == question and answer[2] in ("stop", "length")

        wait_until(is_answered, START_S)
        self.wait_for_prompt()

    def wait_decoding(self, question: str) -> None:
        """Wait until the beginning of a question's answer is saved."""

        def has_begun() -> bool:
            self.terminal.look()
            asked, answer = [("", "", None), ("", "", None), *stored_messages()][-2:]
            return asked[1] == question and bool(answer[1])

        wait_until(has_begun, START_S)

    def stop(self) -> None:
        """Stop the answer with Ctrl-C."""
        self.terminal.type_now("\x03")
        self.terminal.wait_for("stopped", START_S)
        self.wait_for_prompt()

    def leave(self) -> int:
        self.terminal.type_now("\x04")
        return self.terminal.wait_end()
