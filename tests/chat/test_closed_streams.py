"""A reader of the output that ends early, and standard streams that are closed."""

import os
import subprocess

import pytest

from tests.support.program import Program

SLOW = {"text": "A slow answer that goes on. " * 40, "delay_s": 0.01}


@pytest.mark.fault(35)
def test_a_pipe_closed_in_mid_answer(program: Program) -> None:
    writer = subprocess.Popen(
        program.command(SLOW, options=("-p", "x")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert writer.stdout is not None and writer.stderr is not None
    os.read(writer.stdout.fileno(), 1)
    writer.stdout.close()
    assert writer.stderr.read() == b"" and writer.wait(60) == 141


@pytest.mark.fault(35)
@pytest.mark.parametrize(("closed", "code"), [(">&-", 141), ("2>&-", 0), ("<&-", 0)])
def test_closed_standard_streams(program: Program, closed: str, code: int) -> None:
    command = program.command("An answer.", options=("-p", "x"))
    script = f'exec "$@" {closed}'
    result = subprocess.run(["bash", "-c", script, "bash", *command], capture_output=True)
    assert (result.returncode, result.stderr) == (code, b"")
    assert result.stdout == (b"" if code else b"An answer.\n")
