"""A chat in a terminal of which a process is killed: the terminal, the worker or a rank.

The program is the real one with a tiny model of random weights. The driver types questions. A
question counts as answered when the prompt is back below it: from then on the answer must be in
the store, whatever happens.
"""

import os
import signal
import time
from itertools import pairwise
from pathlib import Path
from random import Random

from swiftchat.chat.history.store import SessionStore
from tests.kills.outcome import Outcome
from tests.kills.processes import (
    changed_settings,
    child_of,
    files_in,
    folders,
    fork_in_terminal,
    orphans,
    send,
)
from tests.support import fake_engine
from tests.support.terminal import EMULATED, Terminal

_NUM_QUESTIONS = 3
_LIMIT_S = 120.0  # for everything that ends by itself, on a busy machine
_START_S = 1.0  # about the time from a start to the first prompt
_MAX_STOPPED_S = 0.3
_PROMPT = ">>> "


class Chat:
    """A chat in a terminal, as its user sees it."""

    def __init__(self, model: Path, home: Path, num_ranks: int) -> None:
        options = ["-m", str(model), "--dummy", str(model / "config.json"), "--device", "cpu"]
        options += ["--tp", str(num_ranks), "--threads", "1", "--max-tokens", "8"]
        self.store = home / "data/swiftchat/sessions/sessions.db"
        self.pid, descriptor = fork_in_terminal(_main, options, folders(home) | EMULATED)
        self.terminal = Terminal.of(descriptor)
        self.exit_code: int | None = None
        self.asked = 0
        self.answered: list[str] = []
        self._num_sent = 0  # how often the current question was sent

    def work(self) -> None:
        """Read new output, and type what is to be typed next."""
        if not self.terminal.read():
            return
        row = self.terminal.screen.cursor.y
        *above, line = self.terminal.screen.display[: row + 1]
        if not line.startswith(_PROMPT.rstrip()):
            return
        if self.asked == len(self.answered):
            if self.asked < _NUM_QUESTIONS:
                self.asked += 1
                self._num_sent = 1
                self.terminal.type_now(f"{self._question}\r")
            return
        num_above = sum(map(self._is_question, above))
        if not self._is_question(line):
            if num_above:
                self.answered.append(self._question)
                self.work()
        elif num_above == self._num_sent:  # an error has returned it to the input line
            self._num_sent += 1
            self.terminal.type_now("\r")

    @property
    def _question(self) -> str:
        return f"question {self.asked}"

    def _is_question(self, line: str) -> bool:
        return line.startswith(_PROMPT) and self._question in line

    def leave(self, deadline: float) -> None:
        """Ask the rest of the questions, then leave."""
        while len(self.answered) < _NUM_QUESTIONS and self.is_running:
            if time.monotonic() > deadline:
                return
            self.work()
        if self.is_running:
            self.terminal.type_now("\x04")

    @property
    def is_running(self) -> bool:
        if self.exit_code is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self.exit_code = os.waitstatus_to_exitcode(status) if found else None
        return self.exit_code is None

    def wait(self, deadline: float) -> int:
        """Wait for the end of the program; return its exit code."""
        while self.is_running and time.monotonic() < deadline:
            self.terminal.read()
        if self.is_running:
            os.kill(self.pid, signal.SIGKILL)
            raise TimeoutError(f"the program did not end:\n{self.terminal.look()}")
        while self.terminal.read():
            pass
        assert self.exit_code is not None
        return self.exit_code

    def lost(self) -> list[str]:
        """Return the answered questions that are not in the store with their answers."""
        if not self.answered:
            return []
        with SessionStore(self.store, print) as store:
            (row,) = store.recent()
            path = store.load(row["id"]).messages
        found = {
            question.content
            for question, answer in pairwise(path)
            if question.role == "user" and answer.finish_reason is not None
        }
        return [question for question in self.answered if question not in found]


def kill_in_conversation(
    target: str, name: str, random: Random, model: Path, home: Path
) -> Outcome:
    """Send the signal `name` to the target at a random moment, then check what is left."""
    chat = Chat(model, home, num_ranks=2 if target == "rank" else 1)
    deadline = time.monotonic() + _LIMIT_S
    outcome = Outcome()
    try:
        pid = _wait_for(target, chat, deadline)
        _work_until_random_moment(chat, random, deadline)
        outcome.num_completed = len(chat.answered)
        _signal(pid, target, name, random, chat)
        if target != "terminal" or name == "SIGSTOP":
            chat.leave(deadline)
        outcome.exit_code = chat.wait(deadline)
        if outcome.exit_code != -signal.SIGKILL:
            descriptor = chat.terminal.process.child_fd
            outcome.broken = changed_settings(descriptor, chat.terminal.raw)
        outcome.failures = _failures(target, name, chat)
    except TimeoutError as error:
        outcome.failures.append(str(error))
    outcome.orphans = orphans(_LIMIT_S)
    outcome.lost = chat.lost()
    outcome.left = _left(model, home)
    return outcome


def _wait_for(target: str, chat: Chat, deadline: float) -> int:
    """Return the process to kill, once it has started."""
    if target == "terminal":
        return chat.pid
    while time.monotonic() < deadline:
        chat.work()
        worker = child_of(chat.pid)
        if worker is not None:
            pid = worker if target == "worker" else child_of(worker)
            if pid is not None:
                return pid
    raise TimeoutError(f"the {target} did not start:\n{chat.terminal.look()}")


def _work_until_random_moment(chat: Chat, random: Random, deadline: float) -> None:
    """Drive the chat up to a number of answers, then for up to 1.5 times as long as one takes.

    Not for a time from the start: on a busy machine the kill would always come before a prompt.
    """
    num_answers = random.randrange(_NUM_QUESTIONS)
    began, answer_s = time.monotonic(), _START_S
    while len(chat.answered) < num_answers and chat.is_running:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer came:\n{chat.terminal.look()}")
        num_before = len(chat.answered)
        chat.work()
        if len(chat.answered) > num_before:
            answer_s, began = time.monotonic() - began, time.monotonic()
    moment = time.monotonic() + random.uniform(0, 1.5 * answer_s)
    while time.monotonic() < moment and chat.is_running:
        chat.work()


def _signal(pid: int, target: str, name: str, random: Random, chat: Chat) -> None:
    """Send the signal; a stopped terminal is continued or killed a little later."""
    send(pid, signal.Signals[name])
    if target == "terminal" and name == "SIGSTOP":
        moment = time.monotonic() + random.uniform(0, _MAX_STOPPED_S)
        while time.monotonic() < moment:
            chat.terminal.read()
        send(pid, random.choice((signal.SIGCONT, signal.SIGKILL)))


def _failures(target: str, name: str, chat: Chat) -> list[str]:
    """Return what the program should have done after the signal and has not."""
    number = signal.Signals[name]
    if target != "terminal":
        expected = {0}
    elif name == "SIGSTOP":
        expected = {0, -signal.SIGKILL}
    elif name == "SIGKILL":
        expected = {-number}
    else:  # before the program handles signals, they end it
        expected = {128 + number} if chat.asked else {128 + number, -number}
    failures = []
    if chat.exit_code not in expected:
        failures.append(f"exit code {chat.exit_code}:\n{chat.terminal.look()}")
    if chat.exit_code == 0 and len(chat.answered) < _NUM_QUESTIONS:
        failures.append(f"only {chat.answered} were answered:\n{chat.terminal.look()}")
    return failures


def _left(model: Path, home: Path) -> list[str]:
    """Return the temporary files that the next chat neither uses nor removes."""
    if not _temporary(home):
        return []
    deadline = time.monotonic() + _LIMIT_S
    chat = Chat(model, home, num_ranks=1)
    chat.leave(deadline)
    chat.wait(deadline)
    orphans(_LIMIT_S)
    return _temporary(home)


def _temporary(home: Path) -> list[str]:
    """Return the files that are not the store, the history, a setting or a finished KV cache."""
    kept = ("data/swiftchat/sessions/sessions.db", "state/swiftchat/", "config/swiftchat/")
    return sorted(
        name
        for name in files_in(home)
        if not name.startswith(kept)
        and not (name.startswith("cache/swiftchat/kv/") and name.endswith(".safetensors"))
    )


def make_model(folder: Path) -> Path:
    """Write the model directory that all rounds share."""
    return fake_engine.make_folder(folder, max_position_embeddings=2048)


def _main() -> None:
    from swiftchat.chat.cli import main
    from swiftchat.chat.options.config import ChatConfig

    # The command line refuses several ranks on a CPU, which only tests use.
    ChatConfig.check = lambda self: None  # type: ignore[method-assign]
    main()
