"""`swiftchat list` and `rm`: disk use, files made from models, what does not exist."""

import json
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from swiftchat.chat import cli
from swiftchat.chat.options.completion import complete_removable
from swiftchat.engine.api.kv_folder import KVFolder, user_kv_folder
from swiftchat.errors import ModelNotFound, SwiftchatError, UsageError
from swiftchat.weights.formats.safetensors import header_bytes
from swiftchat.weights.store import default_store
from tests.support import fake_engine
from tests.support.gguf import tiny as tiny_gguf
from tests.support.tiny_llama import tiny_llama


def run(*args: str) -> Result:
    return CliRunner().invoke(cli.swiftchat, list(args), standalone_mode=False)


def failure(*args: str) -> SwiftchatError:
    error = run(*args).exception
    assert isinstance(error, SwiftchatError), error
    return error


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A GGUF file that was used, with an escape sequence in its name, and an installed model."""
    path = tmp_path / "my\x1b[31m model.gguf"
    tiny_gguf.write(path, tiny_llama())
    default_store().resolve(str(path))
    folder = fake_engine.make_folder(default_store().root / "small-one")
    (folder / "model.safetensors").write_bytes(bytes(2_000_000))
    return path


def test_list_shows_disk_use(gguf: Path) -> None:
    *rows, last = run("list").stdout.splitlines()
    assert [row.split()[0] for row in rows] == ["NAME", "small-one"]
    assert "2.0 MB" in rows[1] and last.startswith("2.0 MB in models, ")
    assert last.endswith(" free") and "kB made from models (list --all); " in last


def test_list_all_shows_files_made_from_models(gguf: Path) -> None:
    shown = run("list", "--all").stdout
    assert "my␛[31m model.gguf" in shown and "\x1b" not in shown
    assert any("  cache   of " in row and row.endswith("model.gguf") for row in shown.splitlines())
    assert default_store().derived()[0].path.parent.name not in shown  # a digest
    rows = json.loads(run("list", "--all", "--json").stdout)
    assert [(row["name"], row["source"]) for row in rows] == [
        ("small-one", "local"),
        (gguf.name, "cache"),
    ]
    assert rows[1]["origin"] == str(gguf)
    gguf.unlink()
    assert "model.gguf (missing)" in run("list", "--all").stdout
    assert len(json.loads(run("list", "--json").stdout)) == 1


def test_list_shows_the_type_and_the_last_use(gguf: Path) -> None:
    weights = default_store().root / "small-one" / "model.safetensors"
    os.utime(weights, (1_700_000_000, 1_750_000_000))
    titles, row, _ = run("list").stdout.splitlines()
    assert titles.split()[:4] == ["NAME", "TYPE", "SIZE", "USED"] and " 2023-11-1" in row
    assert json.loads(run("list", "--json").stdout)[0]["used"] == 1_700_000_000
    config = weights.with_name("config.json")
    for settings, kind in (
        ({"torch_dtype": "bfloat16"}, "BF16"),
        ({"dtype": "float32"}, "F32"),
        ({"dtype": "float16", "quantization_config": {"quant_method": "gptq"}}, "GPTQ"),
        ({"dtype": 1, "quantization_config": []}, "1"),
        ({}, ""),
    ):
        config.write_text(json.dumps(settings))
        assert json.loads(run("list", "--json").stdout)[0]["type"] == kind
    config.write_text("{")
    assert "small-one  – " in run("list").stdout
    gguf.rename(weights.with_name("x-Q4_1.gguf"))
    assert "small-one  Q4_1 " in run("list").stdout


def test_rm_frees_the_kv_caches_of_the_model_only(gguf: Path) -> None:
    folder = KVFolder(user_kv_folder())
    model, other = default_store().root / "small-one", gguf
    for number, path in enumerate((model, other, Path("/not/there"))):
        file = folder.create(str(number)) / "a.safetensors"
        file.write_bytes(header_bytes([], {"model": str(path), "num_tokens": "64"}))
    assert " in KV caches (swiftchat cache); " in run("list").stdout
    assert run("rm", "-y", "small-one").exception is None
    assert {entry.model for entry in folder.entries()} == {str(other), "/not/there"}


def test_rm_deletes_the_files_made_from_a_gguf_file(gguf: Path) -> None:
    done = run("rm", "-y", str(gguf))
    assert "removed the files made from my␛[31m model.gguf" in done.stderr
    assert done.stderr.endswith("model.gguf itself stays\n") and gguf.exists()
    assert default_store().derived() == []
    assert "nothing is stored" in failure("rm", "-y", str(gguf)).message
    assert "made from" not in run("list").stdout


def test_rm_of_a_missing_model_raises_an_error_before_it_asks(gguf: Path) -> None:
    assert isinstance(failure("rm", "none"), ModelNotFound)
    assert isinstance(failure("rm", "small-one"), UsageError)  # stdin is not a terminal
    assert default_store().has("small-one")


def test_removable_names_are_completed(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "used.gguf", tiny_llama())
    default_store().resolve(str(tmp_path / "used.gguf"))
    fake_engine.make_folder(default_store().root / "used-model")
    context = click.Context(cli.swiftchat)
    found = complete_removable(context, cli.swiftchat.params[0], "used")
    assert [item.value for item in found] == ["used-model", "used.gguf"]
