"""Fault 34: `tokenizer.json` is made to hang the program.

Required: exit code 7 with the reason, or the right ids, after a few seconds of processor time and
within 2 GiB of address space.

Provoked by: split patterns that take exponential time or that repeat themselves to a program of
gigabytes, merges in a cycle, and an id that would need a table of 2^60 entries.
"""

import json
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import fake_engine
from tests.support.program import assert_error
from tests.support.serve_processes import SWIFTCHAT

TEXT = "a" * 4000 + "d"


def tokens_of(tmp_path: Path, changes: dict[str, Any]) -> subprocess.CompletedProcess[bytes]:
    """Count the tokens of a text with a changed tokenizer, with limits of time and memory."""
    folder = fake_engine.make_folder(tmp_path / "model")
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))

    command = [*SWIFTCHAT, "tokens", "-", "-m", str(folder)]
    return subprocess.run(command, input=TEXT.encode(), capture_output=True, preexec_fn=limit)


@pytest.mark.parametrize("pattern", ["(a|aa)+$", "(?:(?:(?:a?){500}){500}){500}b"])
def test_a_pattern_without_end_is_refused(tmp_path: Path, pattern: str) -> None:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    assert_error(tokens_of(tmp_path, {"pre_tokenizer": split}), 7, "pattern")


def model_with(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    folder = fake_engine.make_folder(tmp_path / "plain")
    return {"model": json.loads((folder / "tokenizer.json").read_text())["model"] | changes}


def test_an_enormous_id_is_refused(tmp_path: Path) -> None:
    vocab = model_with(tmp_path)["model"]["vocab"] | {"zz": 1 << 60}
    assert_error(tokens_of(tmp_path, model_with(tmp_path, vocab=vocab)), 7, "model.vocab")


def test_merges_in_a_cycle_end(tmp_path: Path) -> None:
    merges = ["a a", "aa a", "a aa", "aa aa"]
    vocab = model_with(tmp_path)["model"]["vocab"] | {"aa": 256, "aaa": 257, "aaaa": 258}
    file = fake_engine.make_folder(tmp_path / "added") / "tokenizer.json"
    added = json.loads(file.read_text())["added_tokens"]
    changes = model_with(tmp_path, vocab=vocab, merges=merges * 3)
    changes["added_tokens"] = [{**token, "id": 259 + i} for i, token in enumerate(added)]
    done = tokens_of(tmp_path, changes)
    # Pairs first, then pairs of pairs: the 4000 letters are 1000 tokens, and d is one more.
    assert (done.returncode, done.stdout) == (0, b"1001\n"), done.stderr
