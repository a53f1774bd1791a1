"""Retired words and identifiers do not come back; docs/glossary.md has their replacements."""

import io
import re
import subprocess
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("chat", "cuda", "engine", "errors", "tokenizer", "weights")
# Identifiers of the first version, by what replaced them.
RETIRED_IDENTIFIERS = {
    "Lanes": "DecodeBatch",
    "DecodeStep": "GraphRunner",
    "DecodeAhead": "AsyncDecode",
    "DecodeInStages": "PipelineDecode",
    "Likelihood": "Logprob",
    "likelihood": "logprob",
    "likeliest": "argmax",
    "Seat": "RankPlacement",
    "seat": "placement",
    "Followers": "RankSupervisor",
    "Follower": "rank process",
    "LockstepEngine": "SpmdEngine",
    "FarEnd": "EngineConnection",
    "AttachedEngine": "RemoteEngine",
    "obituary": "exit_reason",
    "Inbox": "PeerBuffer",
    "inboxes": "peer buffers",
    "Stacked": "MergedWeight",
    "RoundedInputs": "W8A8Weight",
    "PackedWeight": "LinearWeight",
    "Kept": "QuantizedMatrix",
    "Keeping": "StoredTensor",
    "Share": "Shard",
    "share_of": "shard_of",
    "Compensation": "GPTQ",
    "Speaker": "ChatModel",
    "Elsewhere": "remote engine",
    "typing_unseen": "hidden echo",
    "ffn": "mlp",
    "lane": "row",
    "lanes": "rows",
    "factor": "scale",
    "for_kernels": "LinearWeight",
    "for_torch": "LinearWeight",
    "parts_of": "LinearWeight",
    "matrix_of": "LinearWeight",
}
# Fields of published config.json files: `rope_scaling.factor`, scaling factors of routers.
ALLOWED = {
    "factor": {
        "weights/architectures/parts/rope.py",
        "weights/gguf/rope.py",
        "engine/model/rope.py",
        "weights/architectures/families/moe.py",
        "weights/architectures/families/deepseek.py",
        "weights/gguf/config.py",
    }
}
RETIRED_WORDS = (
    r"quantis",
    r"colour",
    r"neighbour",
    r"normalis",
    r"behaviour",
    r"\bcatalogue",
    r"\blicence",
    r"\bFFN\b(?!\.\w)",
    r"\blikeliest\b",
    r"\bobituary\b",
    r"\brehears",
    r"\bnobody\b(?!/)",
    r"\bwhoever\b",
    r"\bfar end\b",
    r"\bcomes? apart\b",
    r"\babsurdly\b",
)


def _tracked(*patterns: str) -> list[Path]:
    command = ["git", "ls-files", *patterns]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return [ROOT / name for name in done.stdout.split()]
    return [
        file for pattern in patterns for file in ROOT.rglob(pattern) if ".venv" not in file.parts
    ]


@cache
def _names() -> dict[str, set[str]]:
    """The Python names of the packages, by name the files that use them."""
    found: dict[str, set[str]] = {}
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            for token in tokenize.generate_tokens(io.StringIO(text).readline):
                if token.type == tokenize.NAME:
                    path = file.relative_to(ROOT).as_posix()
                    found.setdefault(token.string, set()).add(path)
    return found


@pytest.mark.parametrize("name", RETIRED_IDENTIFIERS)
def test_identifier_is_not_used(name: str) -> None:
    used = _names().get(name, set()) - ALLOWED.get(name, set())
    assert not used, f"use {RETIRED_IDENTIFIERS[name]}: {sorted(used)}"


@pytest.mark.parametrize("word", RETIRED_WORDS)
def test_word_is_not_used(word: str) -> None:
    pattern = re.compile(word, re.IGNORECASE)
    found = []
    for file in _tracked("*.py", "*.cu", "*.cuh", "*.md", "*.toml"):
        if file.name in ("test_words.py", "CHANGELOG.md") or not file.is_file():
            continue
        lines = file.read_text(encoding="utf-8").splitlines()
        found += [
            f"{file.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
            for number, line in enumerate(lines, start=1)
            if pattern.search(line)
        ]
    assert not found, "\n".join(found)


def test_no_line_is_exempt_from_formatting() -> None:
    exempt = [f for f in _tracked("*.py") if f.is_file() and "# fmt: " + "skip" in f.read_text()]
    assert not exempt
