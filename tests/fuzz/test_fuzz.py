"""The kept inputs of the past, and what counts as a failure."""

import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from tests.fuzz.formats.conversations import EXPORTS, SESSIONS
from tests.fuzz.formats.frames import FRAMES
from tests.fuzz.formats.sentencepiece_files import SENTENCEPIECE
from tests.fuzz.formats.settings import SETTINGS
from tests.fuzz.formats.tokenizer_json import TOKENIZER_JSON
from tests.fuzz.target import case

ROOT = Path(__file__).parents[2]
REPEATED = (EXPORTS, SESSIONS, *FRAMES, SENTENCEPIECE, *SETTINGS, TOKENIZER_JSON)
# A worker is forked, and must not inherit the threads of a test's process.
FAULTS = """
import os, time
from tests.fuzz.target import Difference, Target
from tests.fuzz.worker import Limits, run_cases
from swiftchat.errors import UsageError

def load(data, folder):
    if data == b"refused":
        raise UsageError("no")
    if data == b"exception":
        return {}[data]
    if data == b"crash":
        os.abort()
    if data == b"loop":
        while True:
            pass
    if data == b"wait":
        time.sleep(600)
    if data == b"memory":
        return len(bytearray(b"x") * (200 << 20))
    return data

def compare(data, folder, loaded):
    if loaded == b"difference":
        raise Difference("another value")
    if loaded == b"bad reference":
        os.abort()

cases = CASES
target = Target("x", lambda: [], None, load, 1, compare)
limits = Limits(cpu_s=0.5, memory_bytes=100 << 20, wait_s=3.0)
result = run_cases(target, range(len(cases)), cases.__getitem__, limits)
for failure in result.failures:
    print(failure.index, failure.reason)
print(dict(result.counts))
"""


def run(*command: str) -> str:
    found = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, (found.stdout + found.stderr)[-10_000:]
    return found.stdout


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_case_fails() -> None:
    """Valid inputs, those that failed once, and the first of each format's cases.

    They are the same ones at every run. All 20,000 take a minute of processor time:
    `python -m tests.fuzz`.
    """
    run("-m", "tests.fuzz", "--regressions", "--cases", "2500")


def test_faults_of_a_reader_are_found() -> None:
    cases = [b"good", b"refused", b"exception", b"crash", b"good", b"loop", b"wait", b"memory"]
    cases += [b"difference", b"bad reference", b"good"]
    *failures, counts = run("-c", FAULTS.replace("CASES", repr(cases))).splitlines()
    found = dict(line.split(" ", 1) for line in failures)
    assert found.keys() == {"2", "3", "5", "6", "7", "8"}
    assert found["2"].startswith("KeyError")
    assert found["3"] == "ended by signal 6"
    assert found["5"] == "more than 0.5 s of processor time"
    assert found["6"] == "waits for more than 3 s"
    assert found["7"] == "more than 100 MiB of memory"
    assert found["8"] == "difference: another value"
    expected = {"accepted": 6, "compared": 4, "refused": 1, "cases": 11, "failures": 6}
    assert {name: eval(counts)[name] for name in expected} == expected


def test_the_same_seed_gives_the_same_cases() -> None:
    """Of two processes, whose hashes of strings differ, and formats without slow references."""
    code = """
from hashlib import sha256
from tests.fuzz.target import case
from tests.fuzz.test_fuzz import REPEATED
for target in REPEATED:
    print(target.name, sha256(b"".join(case(target, 5, i) for i in range(50))).hexdigest())
"""
    found = [
        f"{target.name} {sha256(b''.join(case(target, 5, i) for i in range(50))).hexdigest()}"
        for target in REPEATED
    ]
    assert run("-c", code).splitlines() == found
