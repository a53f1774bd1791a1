"""`swiftchat models` and `use`; the question for a type of GGUF files."""

import json
import os
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from click.testing import CliRunner, Result
from huggingface_hub import constants

from swiftchat.chat import cli
from swiftchat.chat.model import bandwidth, fit
from swiftchat.chat.model.default_model import set_default_model
from swiftchat.chat.model.memory import DeviceMemory
from swiftchat.chat.options.user_files import config_path
from swiftchat.errors import FileSystemError, ModelNotFound, SwiftchatError, UsageError
from swiftchat.weights.store import default_store
from tests.support import fake_engine
from tests.support.fake_hub import FakeHub, in_environment, in_use
from tests.support.gguf import tiny as tiny_gguf
from tests.support.terminal import Terminal
from tests.support.tiny_llama import tiny_llama
from tests.support.zero_model import make_zero_model

PROGRAM = ["-m", "swiftchat.chat"]
REPO = "unsloth/gemma-3-270m-it-GGUF"  # of gemma3:270m


def run(*args: str) -> Result:
    return CliRunner().invoke(cli.swiftchat, list(args), standalone_mode=False)


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop without a GPU, and an empty cache of the hub."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    memory = DeviceMemory("CPU", 16 * 10**9, 10 * 10**9)
    monkeypatch.setattr(fit, "usable_devices", lambda: [memory])
    monkeypatch.setattr(bandwidth, "bandwidth_bytes_per_s", lambda device: 40e9)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    tiny_gguf.write(tmp_path / "m.gguf", tiny_llama())
    content = (tmp_path / "m.gguf").read_bytes()
    files = {f"gemma-3-270m-it-{kind}.gguf": content for kind in ("Q4_K_M", "Q8_0", "IQ2_M")}
    files["gemma-3-270m-it-Q8_0.gguf"] += b"\0"
    with in_environment(FakeHub({**files, "README.md": b"# x"}, REPO), monkeypatch) as hub:
        yield hub


# models


def test_models_lists_the_best_and_counts_the_others() -> None:
    lines = run("models").stdout.splitlines()
    titles, *rows = lines[:-4]
    columns = ["NAME", "SIZE", "MEMORY", "HERE", "ABILITIES", "LICENSE", "DATE"]
    assert titles.split() == columns and len(rows) == 15
    assert all("tokens/s" in row and "needs" not in row for row in rows)
    assert lines[-4] == "CPU: 8.5 GB of 10.0 GB free memory can be used, 40 GB/s"
    assert lines[-3].endswith(" need more memory: swiftchat models --all")
    everything = run("models", "--all").stdout
    assert "qwen3:235b-a22b " in everything and "needs 137.1 GB more" in everything
    less = run("models", "--all", "--fits", "2GiB").stdout
    assert less.count("needs") > everything.count("needs")
    assert "1.8 GB of 2.1 GB free" in less


def test_models_of_a_word_lists_all_forms_and_marks_installed_ones() -> None:
    folder = default_store().hub_folder() / "models--Qwen--Qwen3-8B" / "snapshots" / ("a" * 40)
    fake_engine.make_folder(folder)
    (folder / "model.safetensors").write_bytes(b"x")
    names = [line[:18].rstrip() for line in run("models", "qwen3:8b").stdout.splitlines()[1:4]]
    assert names == ["qwen3:8b", "qwen3:8b-8bit", "qwen3:8b-16bit *"]
    error = run("models", "zzz").exception
    assert isinstance(error, UsageError) and error.hint == "swiftchat models --all"


def test_models_as_json() -> None:
    rows = json.loads(run("models", "--json").stdout)
    by_name = {row["name"]: row for row in rows}
    assert by_name["qwen3:8b"]["source"] == "Qwen/Qwen3-8B-GGUF:Q4_K_M"
    assert by_name["qwen3:8b"]["fits"] and by_name["qwen3:8b"]["thinking"]
    large = by_name["qwen3:32b"]
    assert not large["fits"] and large["missing_bytes"] == large["memory_bytes"] - int(8.5e9)


def test_models_counts_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [DeviceMemory(f"GPU {i} (A)", 10**11, 8 * 10**10) for i in range(2)]
    monkeypatch.setattr(fit, "usable_devices", lambda: gpus)
    _, small, middle, large, *about = run("models", "llama3.3:70b").stdout.splitlines()
    assert "--tp" not in small and "--tp 2" in middle and "needs" in large
    assert about[:2] == [
        f"GPU {i} (A): 68.0 GB of 80.0 GB free memory can be used, 40 GB/s" for i in range(2)
    ]
    assert about[2].endswith("swiftchat -m NAME --tp auto")
    rows = {row["name"]: row for row in json.loads(run("models", "llama3", "--json").stdout)}
    assert [rows[name]["tp"] for name in ("llama3.3:70b", "llama3.3:70b-8bit")] == [1, 2]
    assert "--tp" not in run("models", "llama3.3:70b", "--fits", "100GB").stdout


def test_models_asks_the_hub_for_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known, does not run or cannot be read is left out; the rest stays without a hub."""
    folder = make_zero_model(tmp_path / "source")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub = FakeHub(files, "Owner/New-Model")
    names = ("Qwen/Qwen3-8B", "Owner/New-Model", "owner/gated")
    hub.popular = [{"id": name, "createdAt": "2026-11-02T00:00:00.000Z"} for name in names]
    hub.popular += [{"id": "../x", "createdAt": "2026-11-02"}, {"id": "a/b"}, 1]
    with in_use(hub, monkeypatch):
        assert "1 popular models" in run("models", "--refresh").stderr
        asked = {request.path for request in hub.log if "/api/models/" in request.path}
        assert asked == {
            f"/api/models/{name}/revision/main" for name in ("Owner/New-Model", "owner/gated")
        }
        (row,) = json.loads(run("models", "new-model", "--json").stdout)
        size_bytes = len(files["model.safetensors"])
        assert (row["source"], row["date"]) == ("Owner/New-Model", "2026-11")
        assert row["size_bytes"] == size_bytes and row["fits"]
        assert row["active_parameters"] == row["parameters"]
        assert row["memory_bytes"] == size_bytes + 256 * 128  # the keys and values of a token
        hub.files = {**files, "config.json": b"{}"}
        assert "0 popular models" in run("models", "--refresh").stderr
        assert isinstance(run("models", "new-model").exception, UsageError)
        hub.files = files
        run("models", "--refresh")
    for setting, problem in (("HF_HUB_OFFLINE", "offline mode"), ("", "refused the connection")):
        if setting:
            monkeypatch.setattr(constants, setting, True)
        else:
            monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
            monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
        done = run("models", "--refresh", "new")
        assert problem in done.stderr and done.stderr.count("\n") == 1
        assert "Owner/New-Model" in done.stdout
    assert "models of the hub of 20" in run("models").stdout
    (kept,) = (tmp_path / "xdg" / "cache" / "swiftchat").glob("new-models.csv")
    for damage in ("name,size_bytes\nx/new,1\n", "name\n", "\0"):
        kept.write_text(damage)
        assert isinstance(run("models", "new").exception, UsageError)


# use


def default_model() -> object:
    return tomllib.loads(config_path().read_text())["model"]


def test_use_sets_the_default_and_keeps_the_other_lines(tmp_path: Path) -> None:
    small = fake_engine.make_folder(default_store().root / "small-one")
    assert run("use", "small-one").exception is None and default_model() == "small-one"
    config_path().write_text('# mine\ntheme = "dark"\n  model="x" # old\nseed = 1\n')
    done = run("use", str(small))
    assert "is the default model now" in done.stderr
    assert config_path().read_text() == f'# mine\ntheme = "dark"\nmodel = "{small}"\nseed = 1\n'


def test_use_does_not_damage_a_file_that_it_cannot_change() -> None:
    config_path().parent.mkdir(parents=True)
    for text in ('system = """\nmodel = 1\n"""\n', '"model" = "x"\n', 'model = """\nx"""\n', "["):
        config_path().write_text(text)
        with pytest.raises(UsageError) as caught:
            set_default_model('a"b')
        assert caught.value.hint == 'edit the file: model = "a\\"b"'
        assert config_path().read_text() == text


def test_use_follows_a_link(tmp_path: Path) -> None:
    config_path().parent.mkdir(parents=True)
    config_path().symlink_to(tmp_path / "dotfiles.toml")
    set_default_model("é")
    assert config_path().is_symlink() and default_model() == "é"


def test_use_downloads_what_is_missing(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", os.environ["HF_ENDPOINT"])
    assert run("use", "gemma3:270m").exception is None
    assert default_model() == "gemma3:270m"
    assert [model.name for model in default_store().list()] == [f"{REPO}:Q4_K_M"]
    assert run("use", REPO).exception is None and default_model() == REPO
    for name in ("owner/other", "nothing"):
        error = run("use", name).exception
        assert isinstance(error, ModelNotFound) and default_model() == REPO


def test_use_takes_the_installed_model_rather_than_a_folder_of_its_name(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", os.environ["HF_ENDPOINT"])
    run("use", REPO)
    monkeypatch.chdir(tmp_path)
    Path(REPO).mkdir(parents=True)
    assert run("use", REPO).exception is None and default_model() == REPO
    tiny_gguf.write(Path(REPO) / "other.gguf", tiny_llama())
    assert run("use", REPO).exception is None and default_model() == str(tmp_path / REPO)


def test_use_without_a_name_needs_a_terminal() -> None:
    error = run("use").exception
    assert isinstance(error, SwiftchatError) and "swiftchat models" in error.hint


# The type of files


def test_a_terminal_is_asked_once_for_the_type(hub: FakeHub) -> None:
    terminal = pexpect.spawn(sys.executable, [*PROGRAM, "download", REPO], timeout=60)
    terminal.expect_exact(f"{REPO} has 3 types of files:")
    terminal.expect(r"IQ2_M +\S+ kB  does not run")
    terminal.expect(r"Q8_0 +\S+ kB  the largest that fits this machine")
    terminal.expect_exact("type [Q4_K_M]: ")
    terminal.sendline("Q5_0")
    terminal.expect_exact("one of ")
    terminal.expect_exact("type [Q4_K_M]: ")
    terminal.sendline("q8_0")
    terminal.expect_exact(f"{REPO} is {REPO}:Q8_0")
    terminal.expect("gemma-3-270m-it-Q8_0.gguf\r\n")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
    assert default_store().names() == [f"{REPO}:Q8_0"]


def test_a_type_that_does_not_run_has_a_warning(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", os.environ["HF_ENDPOINT"])
    assert "type IQ2_M do not run here" in run("download", f"{REPO}:IQ2_M").stderr
    assert "warning" not in run("download", f"{REPO}:Q8_0").stderr


def test_a_full_disk_is_told_before_the_question(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", os.environ["HF_ENDPOINT"])
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(9000, 8000, 1000))
    error = run("download", REPO).exception
    assert isinstance(error, FileSystemError) and "0.00 MB free" in error.message
    assert "swiftchat list" in error.hint and not hub.ranges("README.md")


# The first start


def test_the_first_chat_in_a_terminal_offers_models(hub: FakeHub) -> None:
    terminal = Terminal(sys.executable, PROGRAM, columns=100)
    terminal.wait_for("Which model?")
    terminal.type_now("270m")
    terminal.wait_for("filter: 270m")
    terminal.type_now("\r")
    terminal.wait_for("gemma3:270m is the default model now")
    terminal.wait_for(lambda screen: terminal.is_at_prompt)
    assert default_model() == "gemma3:270m"
    assert default_store().names() == [f"{REPO}:Q4_K_M"]
    terminal.type_now("\x04")
    assert terminal.wait_end() == 0
    terminal = Terminal(sys.executable, PROGRAM)  # the second start asks nothing
    terminal.wait_for(lambda screen: terminal.is_at_prompt)
    assert "Which model?" not in terminal.look()
    terminal.kill()


@pytest.mark.parametrize(("key", "code"), [("\x1b", 0), ("\x03", 130)])
def test_escape_keeps_the_default_model_and_ctrl_c_ends_the_program(key: str, code: int) -> None:
    terminal = Terminal(sys.executable, [*PROGRAM, "use"])
    terminal.wait_for("Which model?")
    terminal.type_now(key)
    assert terminal.wait_end() == code
    assert not config_path().exists()


def test_use_in_a_terminal_picks_by_number_if_rows_cannot_be_redrawn(hub: FakeHub) -> None:
    folder = fake_engine.make_folder(default_store().root / "small-one")
    (folder / "model.safetensors").write_bytes(b"x")
    terminal = pexpect.spawn(
        sys.executable, [*PROGRAM, "use"], timeout=60, env={**os.environ, "TERM": "dumb"}
    )
    terminal.expect(r"  1  small-one .*installed")
    terminal.expect_exact("number, or 0 for none [1]: ")
    terminal.sendline("1")
    terminal.expect_exact("small-one is the default model now")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0 and default_model() == "small-one" and hub.log == []
