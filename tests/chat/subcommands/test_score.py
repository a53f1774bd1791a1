"""`swiftchat score` with SmolLM2 in real processes."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = "Two households, both alike in dignity, in fair Verona, where we lay our scene. " * 6


@pytest.fixture(scope="module")
def command(smollm2_gguf: Path) -> list[str]:
    model = ["-m", str(smollm2_gguf), "--device", "cpu", "--no-attach"]
    return [sys.executable, "-m", "swiftchat.chat", "score", *model]


def run(command: list[str], *args: str, stdin: str = TEXT) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*command, *args], input=stdin.encode(), capture_output=True)


def test_json_and_text_have_the_same_figures(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    found = run(command, "-", "--json", "--logprobs", "2")
    report = json.loads(found.stdout)
    assert (found.returncode, found.stderr) == (0, b"")
    logprobs = [one["logprob"] for one in report["logprobs"]]
    assert report["tokens"] == len(logprobs) and report["bytes"] == len(TEXT)
    assert "".join(one["token"] for one in report["logprobs"]) == TEXT.removeprefix("Two")
    assert {len(one["alternatives"]) for one in report["logprobs"]} == {2}
    assert report["nats"] == pytest.approx(-sum(logprobs), abs=1e-3)
    assert report["perplexity"] == pytest.approx(math.exp(report["nats"] / report["tokens"]))
    assert 1 < report["perplexity"] < 20, "the sentence is known, and is repeated"
    lines = run(command, str(tmp_path / "text")).stdout.decode().splitlines()
    assert lines[0].split() == ["tokens", str(report["tokens"])]
    assert lines[2].split() == ["perplexity", f"{report['perplexity']:.4f}"]
    parts = json.loads(run(command, "-", "--json", "--context", "16", "--stride", "8").stdout)
    assert parts["tokens"] == report["tokens"]
    assert parts["nats"] > report["nats"], "a short context makes the text less probable"


@pytest.mark.parametrize(
    ("args", "stdin", "code", "message"),
    [
        (["-"], "", 2, "the text has 0 tokens"),
        (["-", "--logprobs"], TEXT, 2, "--logprobs needs JSON"),
        (["-", "--context", "9", "--stride", "9"], TEXT, 2, "the stride must be between 1 and 8"),
        (
            ["/nowhere/text"],
            TEXT,
            8,
            "cannot read /nowhere/text: No such file or directory\nhint: check the path\n",
        ),
    ],
)
def test_errors(command: list[str], args: list[str], stdin: str, code: int, message: str) -> None:
    found = run(command, *args, stdin=stdin)
    assert (found.returncode, found.stdout) == (code, b"")
    assert message in found.stderr.decode()
