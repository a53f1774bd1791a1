"""Completion in real shells: a line is typed with Tab, then run, and shows its arguments."""

import os
import shutil
import sys
from pathlib import Path

import pexpect
import pytest

from swiftchat.weights.store import default_store
from tests.support.fake_engine import make_folder

_SHELLS = {
    "bash": (["--norc", "--noprofile", "-i"], 'eval "$(swiftchat completion bash)"'),
    "zsh": (
        ["-f", "-i"],
        'autoload -Uz compinit && compinit -u -D && eval "$(swiftchat completion zsh)"',
    ),
    "fish": (["--no-config", "-i"], "swiftchat completion fish | source"),
}
_PROGRAM = """#!/bin/sh
if [ -n "$_SWIFTCHAT_COMPLETE" ] || [ "$1" = completion ]; then
    exec "{python}" -m swiftchat.chat "$@"
fi
printf 'arguments:'
for word in "$@"; do printf '<%s>' "$word"; done
echo
"""
_WAIT_S = 100


def installed(shell: str) -> object:
    reason = f"{shell} is not installed"
    return pytest.param(shell, marks=pytest.mark.skipif(not shutil.which(shell), reason=reason))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder, and models in the store."""
    for name in ("SmolLM2-135M-Instruct", "owner/Large-7B", "My Model"):
        make_folder(default_store().root / name)
    program = tmp_path / "bin" / "swiftchat"
    program.parent.mkdir()
    program.write_text(_PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    work = tmp_path / "work"
    (work / "sub").mkdir(parents=True)
    (work / "sub" / "x.gguf").touch()
    (work / "a file.txt").touch()
    return work


class Shell:
    """An interactive shell with the completion script, in a pty."""

    def __init__(self, shell: str, folder: Path) -> None:
        args, script = _SHELLS[shell]
        path = f"{folder.parent / 'bin'}:{os.environ['PATH']}"
        # Without escape sequences; a width at which no line is broken.
        env = {**os.environ, "PATH": path, "TERM": "dumb", "PS1": "$ "}
        self._process = pexpect.spawn(
            shell,
            args,
            env=env,
            cwd=folder,
            encoding="utf-8",
            timeout=_WAIT_S,
            dimensions=(24, 200),
        )
        self._process.send(f"{script}; echo rea''dy\r")
        self._process.expect("ready\r?\n")

    def run(self, line: str) -> str:
        """Type a line, in which \\t is the Tab key, and return the arguments of the program."""
        self._process.send(f"swiftchat {line}\r")
        self._process.expect(r"arguments:([^\r\n]*)\r?\n")
        found: str = self._process.match.group(1)
        return found

    def close(self) -> None:
        self._process.close(force=True)


@pytest.mark.parametrize("shell", [installed(name) for name in _SHELLS])
def test_names_and_files_are_completed(shell: str, folder: Path) -> None:
    program = Shell(shell, folder)
    try:
        for line, arguments in (
            ("-m Smol\t", "<-m><SmolLM2-135M-Instruct>"),
            ("show Smol\t", "<show><SmolLM2-135M-Instruct>"),
            ("-m smol\t", "<-m><SmolLM2-135M-Instruct>"),
            ("--model=Smol\t", "<--model=SmolLM2-135M-Instruct>"),
            ("-m Larg\t", "<-m><owner/Large-7B>"),
            ("-m My\t", "<-m><My Model>"),
            ('show "My M\t', "<show><My Model>"),
            ("-m sub/\t", "<-m><sub/x.gguf>"),
            ("--model=sub/\t", "<--model=sub/x.gguf>"),
            ("-f a\t", "<-f><a file.txt>"),
            ("download qwen3:8\t", "<download><qwen3:8b>"),
            ("--acc\t", "<--accessible>"),
        ):
            assert program.run(line) == arguments, line
    finally:
        program.close()
