"""The program with streams as it gets them: non-blocking, full, closed, unreadable, in a job."""

import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import fake_engine
from tests.support.program import Program, assert_error
from tests.support.worker_processes import wait_until

LONG = " ".join(f"Sentence {number} of many." for number in range(600))
_LIMIT_S = 60.0
_F_SETPIPE_SZ = 1031


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(fake_engine.make_folder(tmp_path / "model"))


def read_all(descriptor: int) -> bytes:
    content = b""
    while data := os.read(descriptor, 1 << 16):
        content += data
    return content


@pytest.mark.parametrize("options", [("-p", "x"), ("-p", "x", "--json"), ("--help",)])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_all_of_the_output_arrives(
    program: Program, options: tuple[str, ...], unbuffered: str
) -> None:
    """Also at a pipe that takes little at a time, does not block and is read late."""
    command = program.command({"text": LONG}, options=options)
    reader, writer = os.pipe()
    if sys.platform == "linux":
        fcntl.fcntl(writer, _F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )
    os.close(writer)
    select.select([reader], [], [], _LIMIT_S)
    content = read_all(reader)
    os.close(reader)
    assert process.stderr is not None
    errors = process.stderr.read()
    assert process.wait(_LIMIT_S) == 0, errors
    if options == ("-p", "x"):
        assert content.decode() == f"{LONG}\n"
    elif "--json" in options:
        assert json.loads(content)["content"] == LONG
    else:
        assert content.rstrip().endswith(b"swiftchat help.")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
@pytest.mark.parametrize(
    "options", [("-p", "x"), ("-p", "x", "--json"), ("--help",), ("help", "models")]
)
def test_a_full_disk_is_one_error(program: Program, options: tuple[str, ...]) -> None:
    command = program.command("An answer.", options=options)
    if options[0] in ("--help", "help"):
        command = [*command[:2], "-", *command[3:]]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=full, stderr=-1)
    done.stdout = b""
    assert_error(done, 8, "cannot write the output", "No space left")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_an_answer_does_not_fail_because_notices_cannot_be_shown(program: Program) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            program.command("An answer.", options=("-p", "x", "--stats")),
            stdin=subprocess.DEVNULL,
            stdout=-1,
            stderr=full,
        )
    assert (done.returncode, done.stdout) == (0, b"An answer.\n")


def test_an_unreadable_stdin_is_empty_if_there_is_a_prompt(program: Program) -> None:
    """As `nohup` leaves it: open for writing only."""
    with open(os.devnull, "wb") as stdin:  # noqa: PTH123  (not to be read)
        command = program.command("An answer.", options=("-p", "x"))
        done = subprocess.run(command, stdin=stdin, capture_output=True)
        assert (done.returncode, done.stdout) == (0, b"An answer.\n"), done.stderr
        command = program.command("An answer.", options=("-p", "-"))
        assert_error(subprocess.run(command, stdin=stdin, capture_output=True), 8, "stdin")


def test_a_stdin_that_does_not_block_is_read_to_its_end(program: Program, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    answer = {"text": "An answer.", "records": str(tmp_path / "ids")}
    with subprocess.Popen(
        program.command(answer, options=("-p", "x")), stdin=reader, stdout=-1
    ) as process:
        os.close(reader)
        os.write(writer, b"first ")
        wait_until(lambda: unread(writer) == 0)
        os.write(writer, b"second")
        os.close(writer)
        assert process.stdout is not None and process.stdout.read() == b"An answer.\n"
    assert b"first second" in bytes(
        i for i in json.loads((tmp_path / "ids").read_text()) if i < 256
    )


def unread(pipe: int) -> int:
    import array
    import termios

    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def test_a_silent_stdin_is_named_while_the_program_waits_for_it(program: Program) -> None:
    with subprocess.Popen(
        program.command("An answer.", options=("-p", "x")), stdin=-1, stdout=-1, stderr=-1
    ) as process:
        assert process.stderr is not None and process.stdin is not None
        assert b"reading stdin" in process.stderr.readline()
        process.stdin.close()
        assert process.stdout is not None and process.stdout.read() == b"An answer.\n"


class Job:
    """A program in the background of a terminal, whose foreground is another process group."""

    def __init__(self, command: list[str], tmp_path: Path) -> None:
        self.output = tmp_path / "output"
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:  # the shell: it leads the session and stays in the foreground
            os.environ["TERM"] = "xterm"
            job = subprocess.Popen(command, stderr=self.output.open("wb"), process_group=0)
            code = job.wait()
            os.write(1, f"\r\nended with {code}\r\n".encode())
            os._exit(0)

    def shown(self) -> bytes:
        content = b""
        deadline = time.monotonic() + _LIMIT_S
        while b"ended with" not in content:
            left_s = deadline - time.monotonic()
            assert left_s > 0 and select.select([self.terminal], [], [], left_s)[0], content
            content += os.read(self.terminal, 1 << 16)
        return content

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.terminal)


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    started: list[Job] = []
    yield started
    for job in started:
        job.close()


@pytest.mark.parametrize("options", [(), ("--samples", "2")])
def test_a_background_job_answers(
    program: Program, tmp_path: Path, jobs: list[Job], options: tuple[str, ...]
) -> None:
    """`swiftchat -p … &`, `timeout 20 swiftchat -p …`: changing the terminal would stop it."""
    command = program.command(
        {"text": "An answer."}, {"text": "Another."}, options=("-p", "x", *options)
    )
    jobs.append(Job(command, tmp_path))
    text = jobs[-1].shown()
    assert b"An answer." in text and b"ended with 0" in text, jobs[-1].output.read_bytes()
