"""Paste a megabyte of shell commands at random moments of a chat, and look for what ran.

`python -m tests.support.paste_trials [--count N] [--seed N] [--kib N]` runs N trials and prints a
line for each. A trial starts a chat from an interactive shell, pastes, ends the chat in one of
several ways, and fails if a pasted line was sent as a message, ran as a command of the chat, or
ran in the shell.
"""

import argparse
import os
import random
import shlex
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support import fake_engine
from tests.support.terminal import Terminal

_PATIENCE_S = 120.0
_SLOW = {"text": "A slow answer. " * 100, "delay_s": 0.01}
_MARK = "PASTED"
_FIRST_BYTES = 1 << 13  # of a paste, more than the queue of a terminal holds

# What the user does before the paste: at the start, at the prompt, and while the chat is busy.
MOMENTS = ("start", "prompt", "typing", "answer", "prefill", "stats", "shell")
# How the chat ends after the paste, or with SIGTERM and SIGHUP while it arrives.
ENDS = ("bye", "interrupt", "SIGTERM", "SIGHUP", "SIGKILL")


@dataclass(frozen=True)
class Trial:
    """One paste of `num_bytes`, `delay_s` after the chat has reached `moment`."""

    moment: str
    end: str
    delay_s: float
    num_bytes: int

    @classmethod
    def random(cls, source: random.Random, num_bytes: int) -> "Trial":
        return cls(source.choice(MOMENTS), source.choice(ENDS), source.uniform(0, 0.6), num_bytes)


def run_trial(trial: Trial) -> str:
    """Return what went wrong, "" if nothing."""
    folder = Path(tempfile.mkdtemp(prefix="paste-"))
    chat = _Chat(folder)
    try:
        chat.paste_and_end(trial)
        return chat.fault()
    except AssertionError as error:  # something has not appeared on the screen
        return f"{error}\n{chat.fault()}"
    finally:
        chat.terminal.process.close(force=True)
        shutil.rmtree(folder, ignore_errors=True)


def num_lines(num_bytes: int) -> int:
    """Return the number of lines in a paste of about `num_bytes`."""
    return num_bytes // 36


class _Chat:
    """A chat in an interactive shell."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._num_written = 0  # bytes of the paste
        model = fake_engine.make_folder(folder / "model", max_position_embeddings=1 << 22)
        answers = [{"load_s": 0.3, "stats_s": 1.0}, _SLOW, _SLOW, _SLOW]
        command = [sys.executable, fake_engine.__file__, str(model), _json(answers)]
        script = folder / "chat"
        script.write_text(f"#!/bin/sh\necho $$ > {folder}/pid\nexec {shlex.join(command)}\n")
        script.chmod(0o700)
        homes = {f"XDG_{name}_HOME": str(folder / name) for name in ("DATA", "STATE", "CONFIG")}
        self.terminal = Terminal(
            "bash",
            ["--norc", "--noprofile", "-i"],
            PS1="$ ",
            IGNOREEOF="1000",
            HOME=str(folder),
            **homes,
        )
        self.terminal.wait_for("$")
        self.terminal.type(f"clear; cd {folder}; ./chat\r")

    def paste_and_end(self, trial: Trial) -> None:
        terminal = self.terminal
        self._reach(trial.moment)
        self._look_for(trial.delay_s)
        is_cut_short = trial.end in ("SIGTERM", "SIGHUP") and trial.moment != "start"
        writer = threading.Thread(target=self._paste, args=(trial.num_bytes,))
        writer.start()
        if is_cut_short:
            # The queue of the terminal holds 4 KiB: the chat has begun to read the paste.
            while self._num_written < _FIRST_BYTES and writer.is_alive():
                terminal.look()
            self._look_for(trial.delay_s / 10)
            self._kill(trial.end)
        while writer.is_alive():
            terminal.look()
        if not is_cut_short:
            if trial.moment in ("answer", "prefill"):
                terminal.type_now("\x03")
            size = num_lines(trial.num_bytes)
            # What comes before the chat can ask for marks, or during !CMD, arrives in pieces.
            is_whole = trial.moment not in ("start", "shell")
            self._wait_for_draft(f"[pasted {size} lines]" if is_whole else "[pasted ")
            if trial.end.startswith("SIG"):
                self._kill(trial.end)
            else:
                self._type_until_ended("\x03" if trial.end == "interrupt" else "\x04")
        terminal.wait_for(lambda text: text.rstrip().endswith("$"), _PATIENCE_S)
        terminal.type_now("echo $((41+1)) ends\r")
        terminal.wait_for("42 ends", _PATIENCE_S)

    def fault(self) -> str:
        """Return the first trace that a pasted line has left."""
        if (self._folder / "ran").exists():
            return "a pasted line ran in a shell: " + (self._folder / "ran").read_text()[:80]
        for file in (self._folder / "DATA").rglob("*.db"):
            rows = sqlite3.connect(file).execute("SELECT content FROM messages").fetchall()
            sent = [content for (content,) in rows if _MARK in content]
            if sent:
                return f"{len(sent)} messages have pasted text: {sent[0][:80]!r}"
        return ""

    def _reach(self, moment: str) -> None:
        terminal = self.terminal
        if moment == "start":
            return
        terminal.wait_for(">>>", _PATIENCE_S)
        terminal.type("hello\r")
        if moment in ("prefill", "answer"):
            terminal.wait_for("A slow" if moment == "answer" else "hello", _PATIENCE_S)
            return
        terminal.wait_for("A slow", _PATIENCE_S)
        terminal.type_now("\x03")
        terminal.wait_for("stopped", _PATIENCE_S)
        lines = {"typing": "half a line", "stats": "/stats all\r", "shell": "!sleep 0.5\r"}
        if moment in lines:
            terminal.wait_for(lambda text: terminal.is_at_prompt, _PATIENCE_S)
            terminal.type_now(lines[moment])

    def _paste(self, num_bytes: int) -> None:
        """Write to the terminal as a terminal emulator does: with marks if they are switched on."""
        raw = self.terminal.raw
        is_marked = raw.rfind(b"\x1b[?2004h") > raw.rfind(b"\x1b[?2004l")
        text = "".join(f"{self._line(i)}\r" for i in range(num_lines(num_bytes))).encode()
        if is_marked:
            text = b"\x1b[200~" + text + b"\x1b[201~"
        descriptor = self.terminal.process.child_fd
        try:
            while self._num_written < len(text):
                rest = text[self._num_written :]
                self._num_written += os.write(descriptor, rest[:_FIRST_BYTES])
        except OSError:  # the terminal is closed
            return

    def _line(self, number: int) -> str:
        """Return a line that leaves a trace wherever it runs."""
        trace = f"echo {_MARK} {number} >> {self._folder}/ran"
        message = f"a message of {_MARK} {number} words"
        return (trace, f"!{trace}", "/undo", message)[number % 4]

    def _wait_for_draft(self, draft: str) -> None:
        terminal = self.terminal
        terminal.wait_for(lambda text: draft in text and terminal.is_at_prompt, _PATIENCE_S)

    def _type_until_ended(self, key: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not self.terminal.look().rstrip().endswith("$"):
            assert time.monotonic() < deadline, self.terminal.look()
            self.terminal.type_now("\x03")
            self.terminal.type_now(key)
            self._look_for(0.2)

    def _kill(self, name: str) -> None:
        os.kill(int((self._folder / "pid").read_text()), getattr(signal, name))

    def _look_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.terminal.look()


def _json(value: object) -> str:
    import json

    return json.dumps(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kib", type=int, default=1024)
    arguments = parser.parse_args()
    source, num_faults = random.Random(arguments.seed), 0
    for number in range(arguments.count):
        trial = Trial.random(source, arguments.kib << 10)
        started = time.monotonic()
        fault = run_trial(trial)
        num_faults += bool(fault)
        seconds = time.monotonic() - started
        result = fault or "ok"
        print(f"{number:4} {trial.moment:8} {trial.end:10} {seconds:5.1f} s  {result}", flush=True)
    print(f"{num_faults} of {arguments.count} trials failed")
    sys.exit(num_faults > 0)


if __name__ == "__main__":
    main()
