"""The program as a process: exit codes, errors, pipes, locales, imports at start-up."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import fake_engine
from tests.support.program import Program, assert_error
from tests.support.worker_processes import running_programs

SWIFTCHAT = [sys.executable, "-m", "swiftchat.chat"]


def run(
    *args: str, env: dict[str, str] | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*SWIFTCHAT, *args], input=stdin, capture_output=True, env={**os.environ, **(env or {})}
    )


def test_help_shows_commands_and_examples() -> None:
    result = run("--help")
    assert result.returncode == 0 and result.stderr == b""
    for word in (b"--prompt", b"download", b"convert", b"Examples"):
        assert word in result.stdout


@pytest.mark.parametrize("args", [("--help",), ("list", "--help"), ("config", "path")])
def test_light_commands_import_nothing_heavy(args: tuple[str, ...]) -> None:
    script = (
        f"import sys; sys.argv = ['swiftchat', *{args!r}]\n"
        "from swiftchat.chat.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'rich', 'prompt_toolkit', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("--nonsense",), 2),
        (("frobnicate",), 2),
        (("-p", "", "-m", "x"), 2),
        (("-p", "x", "--temp", "-1", "-m", "."), 2),
        (("-p", "x", "--stop", "", "-m", "."), 2),
        (("-p", "x", "--threads", "0", "-m", "."), 2),
        (("-p", "x", "-m", "."), 7),
        (("-p", "x", "-m", "no/such", "--offline"), 3),
        (("-p", "x", "-m", "/no/such/dir"), 3),
        (("show", "nobody/nothing"), 3),
        (("convert", "missing.gguf", "out"), 3),
        (("rm", "nothing"), 3),
    ],
)
def test_errors_are_one_line_and_a_hint(args: tuple[str, ...], code: int, tmp_path: Path) -> None:
    result = subprocess.run([*SWIFTCHAT, *args], input=b"", capture_output=True, cwd=tmp_path)
    lines = result.stderr.decode().splitlines()
    assert result.returncode == code, lines
    assert lines[0].startswith("error: ") and result.stdout == b""
    assert len(lines) <= 2 and (len(lines) == 1 or lines[1].startswith("hint: "))


@pytest.mark.fault(8)
def test_an_invalid_gguf_is_an_error_and_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "fake.gguf").write_bytes(b"GGUF" + b"\xff" * 45)
    result = run("-m", str(tmp_path / "fake.gguf"), "-p", "x")
    assert result.returncode == 7
    assert result.stderr.decode().splitlines()[-2:][0].startswith("error: ")
    cache = Path(os.environ["XDG_CACHE_HOME"])
    assert not [p for p in cache.rglob("*") if p.is_file() and not p.name.endswith(".lock")]


@pytest.mark.fault(3)
def test_escape_sequences_in_a_name_are_sanitized() -> None:
    result = run("-m", "evil\x1b]52;c;eA==\x07", "-p", "x", "--offline")
    assert result.returncode == 3 and b"\x1b" not in result.stderr


@pytest.mark.fault(9, 10)
@pytest.mark.parametrize(
    "source", ["{{ 10**(10**8) }}", "{{ cycler.__init__.__globals__.os.system('touch ran') }}"]
)
def test_a_hostile_template_is_refused_and_its_process_ends(
    program: Program, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_engine.make_folder(program.folder, template=source)
    monkeypatch.chdir(tmp_path)
    assert_error(program.run("-p", "x"), 7, "the chat template cannot be used")
    assert not (tmp_path / "ran").exists() and running_programs() == []


def test_config_show_prints_the_origin(tmp_path: Path) -> None:
    folder = Path(os.environ["XDG_CONFIG_HOME"]) / "swiftchat"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("top_k = 11\ntemp = 0.5\n")
    lines = run("config", "show", env={"SWIFTCHAT_TEMP": "0.25"}).stdout.decode().splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert rows["top_k"] == ["11", "config", "file"]
    assert rows["temperature"] == ["0.25", "environment"]
    assert rows["seed"] == ["–", "default"]


def test_completion_scripts() -> None:
    for shell in ("bash", "zsh", "fish"):
        assert b"_SWIFTCHAT_COMPLETE" in run("completion", shell).stdout


@pytest.mark.fault(37)
def test_errors_in_the_c_locale() -> None:
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = run("-m", "größe–名", "-p", "x", "--offline", env=env)
    assert result.returncode == 3 and result.stderr.startswith(b"error: ")


@pytest.mark.usefixtures("smollm2")
class TestRealModel:
    @pytest.fixture(autouse=True)
    def _model(self, smollm2: Path) -> None:
        self.model = str(smollm2)
        self.options = ("-m", self.model, "--device", "cpu")

    def test_it_answers(self) -> None:
        result = run(*self.options, "-p", "What is the capital of France?", "--temp", "0")
        assert result.returncode == 0 and b"Paris" in result.stdout
        assert b"\x1b" not in result.stdout and result.stdout.endswith(b"\n")

    def test_a_seed_repeats(self) -> None:
        args = (*self.options, "-p", "A random word", "--seed", "5", "--temp", "1", "-n", "12")
        assert run(*args).stdout == run(*args).stdout != b""

    def test_json(self) -> None:
        result = run(*self.options, "-p", "Hi", "--json", "-n", "3", "--temp", "0")
        report = json.loads(result.stdout)
        assert report["finish_reason"] == "length"
        assert report["usage"]["completion_tokens"] == 3
        assert report["model"]["dtype"] == "bfloat16"

    def test_a_prompt_longer_than_the_context(self) -> None:
        result = run(*self.options, "--ctx-size", "64", "-p", "word " * 200)
        assert result.returncode == 5 and b"64" in result.stderr

    @pytest.mark.fault(22)
    def test_a_missing_gpu(self) -> None:
        result = run("-m", self.model, "--device", "cuda:77", "-p", "x")
        assert result.returncode == 4 and result.stderr.startswith(b"error: ")

    @pytest.mark.fault(35)
    def test_a_closed_pipe_exits_silently_with_141(self) -> None:
        command = [*SWIFTCHAT, *self.options, "-p", "Write a very long story", "--temp", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stderr is not None
            assert os.read(process.stdout.fileno(), 1)
            process.stdout.close()
            assert process.wait() == 141 and process.stderr.read() == b""

    def test_ctrl_c_keeps_the_partial_answer(self) -> None:
        process = subprocess.Popen(
            [*SWIFTCHAT, *self.options, "-p", "Write a very long story", "--temp", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        rest, stderr = process.communicate(timeout=60)
        assert process.returncode == 130 and first and rest.endswith(b"\n") and stderr == b""

    @pytest.mark.fault(36)
    def test_sigterm_is_143(self) -> None:
        process = subprocess.Popen(
            [*SWIFTCHAT, *self.options, "-p", "Write a very long story"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 1)
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == 143

    def test_show_and_list(self) -> None:
        facts = json.loads(run("show", self.model, "--json").stdout)
        assert facts["family"] == "llama" and facts["context_tokens"] == 8192
        assert facts["parameters"] == 134_515_008 and facts["chat_template"] == "yes"
        assert run("list").returncode == 0

    def test_a_gguf_file_runs_directly(self, smollm2_gguf: Path) -> None:
        options = ("-m", str(smollm2_gguf), "--device", "cpu", "--temp", "0", "-n", "8", "-q")
        result = run(*options, "-p", "What is 2+2?")
        assert result.returncode == 0 and result.stdout.strip()
