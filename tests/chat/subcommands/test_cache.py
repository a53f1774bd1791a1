"""`swiftchat cache`, and what `sessions rm` says about it."""

import json
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from swiftchat.chat.cli import swiftchat
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.store import open_store
from swiftchat.chat.knowledge.index import index_files
from swiftchat.chat.knowledge.knowledge import Knowledge
from swiftchat.chat.options.size import Size
from swiftchat.chat.terminal.amounts import format_bytes
from swiftchat.engine.api.kv_folder import KVFolder, user_kv_folder
from swiftchat.weights.formats.safetensors import header_bytes


def add_file(model: str, name: str, num_tokens: int = 64) -> Path:
    folder = KVFolder(user_kv_folder()).create(model)
    metadata = {"model": f"/models/{model}", "dtype": "bfloat16", "num_tokens": str(num_tokens)}
    file = folder / f"{name}.safetensors"
    file.write_bytes(header_bytes([], metadata))
    return file


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(swiftchat, arguments)
    return result.exit_code, result.stdout, result.stderr


def test_list_and_clear() -> None:
    assert run("cache")[1] == "" and "no KV cache" in run("cache", "list")[2]
    files = [add_file("smol", "a"), add_file("smol", "b", 128), add_file("large", "c")]
    (files[0].parent / "damaged.safetensors").write_bytes(b"xyz")
    entries = {one["model"]: one for one in json.loads(run("cache", "list", "--json")[1])}
    assert (
        entries["/models/smol"]["num_tokens"] == 192 and entries["/models/smol"]["num_files"] == 3
    )
    assert entries["/models/large"]["size_bytes"] == files[2].stat().st_size
    code, out, err = run("cache", "list")
    assert code == 0 and "smol\tbfloat16\t" in out and "swiftchat cache clear" in err
    code, _, err = run("cache", "clear")
    assert code == 0 and "removed 4 files" in err
    assert not any(file.exists() for file in files) and run("cache")[1] == ""


def test_indexes_of_knowledge_are_listed_and_removed(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("some words")
    with Knowledge(str(tmp_path)) as knowledge:
        knowledge.update(lambda label, done, total: None)
    (file, *others) = index_files()
    size = format_bytes(sum(one.stat().st_size for one in (file, *others)))
    assert f"indexes of --knowledge: {size}" in run("cache", "list")[2]
    assert f"removed {1 + len(others)} files, {size}" in run("cache", "clear")[2]
    assert index_files() == [] and "indexes" not in run("cache", "list")[2]


def test_damaged_metadata_does_not_count() -> None:
    file = add_file("smol", "a")
    file.write_bytes(file.read_bytes().replace(b'"64"', b'"6x"'))
    add_file("smol", "b", 128)
    (entry,) = json.loads(run("cache", "list", "--json")[1])
    assert entry["num_tokens"] == 128 and entry["num_files"] == 2


def test_files_that_vanish_while_they_are_removed_are_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_file("smol", "a")
    unlink = os.unlink

    def remove_twice(path: str, **options: int) -> None:
        unlink(path, **options)
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", remove_twice)
    assert run("cache", "clear")[0] == 0 and run("cache")[1] == ""


def test_removing_a_conversation_mentions_the_cache() -> None:
    with open_store() as store:
        for question in ("one", "two"):
            conversation = Conversation(title=question, is_one_shot=True)
            conversation.add("user", question)
            store.save(conversation)
    assert "cache clear" not in run("sessions", "prune", "--older-than", "90d", "-y")[2]
    add_file("smol", "a")
    _, _, err = run("sessions", "prune", "--one-shots", "-y")
    assert "swiftchat cache clear removes their keys and values" in err


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("500M", 500_000_000),
        ("8GiB", 8 << 30),
        ("1.5 kb", 1500),
        ("2T", 2 * 10**12),
        ("5GiB", 5 << 30),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["0", "5 apples", "-1GB", "GB", "1e9", ""])
def test_texts_that_are_no_sizes_above_0(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a size such as 500M, 8G or 8GiB"):
        Size(is_positive=True).convert(text, None, None)


def test_a_bad_size_is_one_line() -> None:
    code, _, err = run("chat", "--cache-max-bytes", "many", "-p", "x")
    assert code == 2 and "'many' is not a size such as 0, 500M, 8G or 8GiB" in err
