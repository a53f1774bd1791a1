"""Hints that name a command: the command works, at once, against the hub."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.fake_hub import FakeHub, Fault, in_environment
from tests.support.gguf import tiny as tiny_gguf
from tests.support.tiny_llama import tiny_llama
from tests.support.zero_model import make_zero_model

REPO = "Owner/Model-GGUF"
# What explains a command in a hint follows it.
EXPLANATIONS = {"lists", "shows", "takes", "(needs"}
PLACEHOLDER = re.compile(r"\b(NAME|MODEL|DESTINATION|PATH)\b")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    tiny_gguf.write(tmp_path / "m.gguf", tiny_llama())
    content = (tmp_path / "m.gguf").read_bytes()
    files = {f"Model-{kind}.gguf": content for kind in ("Q4_K_M", "Q8_0")}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWIFTCHAT_MAX_TOKENS", "1")
    monkeypatch.setenv("SWIFTCHAT_DEVICE", "cpu")
    with in_environment(FakeHub({**files, "README.md": b"# x"}, REPO), monkeypatch) as hub:
        yield hub


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "swiftchat.chat", *args]
    return subprocess.run(command, input="hi", capture_output=True, text=True)


def hint_of(done: subprocess.CompletedProcess[str]) -> str:
    (hint,) = re.findall(r"^hint: (.*)$", done.stderr, re.MULTILINE)
    assert len(re.findall(r"^error: ", done.stderr, re.MULTILINE)) == 1
    return str(hint)


def commands_of(hint: str) -> list[list[str]]:
    """Return the arguments of the commands in a hint, without those that have placeholders."""
    found = []
    for text in re.findall(r"\bswiftchat ([^;]+)", hint):
        words = shlex.split(text.replace(", or", " takes"))
        end = next((i for i, word in enumerate(words) if word in EXPLANATIONS), len(words))
        if not PLACEHOLDER.search(" ".join(words[:end])):
            found.append([word.rstrip(",") for word in words[:end]])
    return found


def nothing(hub: FakeHub) -> None:
    """Leave everything as it is."""


def downloaded(*names: str) -> Callable[[FakeHub], None]:
    def prepare(hub: FakeHub) -> None:
        for name in names:
            assert run("download", name).returncode == 0

    return prepare


def lost_network(*names: str) -> Callable[[FakeHub], None]:
    def prepare(hub: FakeHub) -> None:
        downloaded(*names)(hub)
        hub.faults["api"] = Fault(status=503)

    return prepare


def gated(hub: FakeHub) -> None:
    downloaded(f"{REPO}:Q8_0")(hub)
    hub.faults["api"] = Fault(status=401, headers={"X-Error-Code": "GatedRepo"})


def safetensors(hub: FakeHub) -> None:
    folder = make_zero_model(Path("source"))
    hub.files = {path.name: path.read_bytes() for path in folder.iterdir()}


def broken_split(hub: FakeHub) -> None:
    hub.files["Model-BF16-00001-of-00002.gguf"] = b"GGUF"


def folder_of_that_name(hub: FakeHub) -> None:
    Path(REPO).mkdir(parents=True)


def folder_with_two_files(hub: FakeHub) -> None:
    folder_of_that_name(hub)
    for kind in ("Q4_0", "Q8_0"):
        Path(REPO, f"a-{kind}.gguf").write_bytes(Path("m.gguf").read_bytes())


CASES = {
    "a model that is not installed": (nothing, ["-m", f"{REPO}:Q4_K_M"], 3, 1),
    "one without a type": (nothing, ["-m", REPO], 3, 1),
    "an address": (nothing, ["show", f"https://huggingface.co/{REPO}"], 3, 1),
    "a file's address": (nothing, ["show", f"hf.co/{REPO}/blob/main/Model-Q8_0.gguf"], 3, 1),
    "offline": (nothing, ["-m", REPO, "--offline"], 3, 1),
    "a type that the repository lacks": (nothing, ["download", f"{REPO}:Q5_K_M"], 3, 1),
    "a broken split": (broken_split, ["download", f"{REPO}:BF16"], 3, 1),
    "safetensors only": (safetensors, ["download", f"{REPO}:Q4_K_M"], 3, 1),
    "a folder of that name": (folder_of_that_name, ["-m", REPO], 3, 1),
    "a folder with two files": (folder_with_two_files, ["-m", f"./{REPO}"], 3, 1),
    "another type is installed": (downloaded(f"{REPO}:Q8_0"), ["show", f"{REPO}:Q4_K_M"], 3, 1),
    "no network, a local copy": (lost_network(f"{REPO}:Q8_0"), ["download", REPO], 6, 1),
    "no network, two local copies": (
        lost_network(f"{REPO}:Q8_0", f"{REPO}:Q4_K_M"),
        ["download", REPO],
        6,
        1,
    ),
    "no network, no copy": (lost_network(), ["download", REPO], 6, 0),
    "a gated repository, a local copy": (gated, ["download", f"{REPO}:Q8_0"], 6, 1),
    "no such repository": (nothing, ["download", "owner/none"], 3, 0),
    "an unknown name": (nothing, ["-m", "nothing"], 3, 1),
    "a name that is none": (nothing, ["download", "zzz"], 3, 1),
    "a short name that is none": (nothing, ["download", "qwen3:9b"], 3, 0),
    "no model of the word": (nothing, ["models", "zzz"], 2, 1),
    "use in a pipe": (nothing, ["use"], 2, 1),
    "nothing to remove": (nothing, ["rm", "-y", "nothing"], 3, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_a_command_in_a_hint_works(hub: FakeHub, case: str) -> None:
    prepare, args, code, num_commands = CASES[case]
    prepare(hub)
    failed = run(*args)
    assert failed.returncode == code, failed.stderr
    commands = commands_of(hint_of(failed))
    assert len(commands) == num_commands, failed.stderr
    for command in commands:
        done = run(*command)
        assert done.returncode == 0, (command, done.stderr)
        if command[0] == "download" and "--offline" not in args:
            again = run(*(["show", *args[1:]] if args[0] == "-m" else args))
            assert again.returncode == 0 or args[0] == "download", again.stderr


def test_a_renamed_repository_is_found(hub: FakeHub) -> None:
    hub.former_repo = "Owner/Former"
    done = run("download", "Owner/Former:Q8_0")
    assert done.returncode == 0, done.stderr
    assert run("show", "Owner/Former:Q8_0").returncode == 0


def test_a_download_that_fills_the_disk_is_resumed_by_the_same_command(hub: FakeHub) -> None:
    hub.files["Model-Q8_0.gguf"] = bytes(4_000_000)
    script = "import resource, sys; size = 1_000_000; "
    script += "resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)); "
    script += "from swiftchat.chat.cli import main; sys.argv[0] = 'swiftchat'; main()"
    command = [sys.executable, "-c", script, "download", f"{REPO}:Q8_0"]
    failed = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    assert failed.returncode == 8 and "not enough disk space" in failed.stderr, failed.stderr
    assert run("download", f"{REPO}:Q8_0").returncode == 0
    assert hub.ranges("Model-Q8_0.gguf")[-1] == "bytes=1000000-"
