"""`swiftchat embed` with a tiny model in real processes, against transformers."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner

from swiftchat.chat.subcommands.embed import embed
from swiftchat.errors import SwiftchatError
from tests.support.remote_engine import chat_model_folder

TEXTS = ("The sky is blue.", "Brot", "one two three " * 9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model_folder(tmp_path_factory.mktemp("model"))


def run(
    folder: Path, *args: str, stdin: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    options = ("-m", str(folder), "--device", "cpu", "--dtype", "float32", "--no-attach")
    command = [sys.executable, "-m", "swiftchat.chat", "embed", *options, "--threads", "1"]
    return subprocess.run([*command, *args], input=stdin, text=True, capture_output=True, cwd=cwd)


@torch.inference_mode()
def expected(folder: Path, text: str, pooling: str) -> torch.Tensor:
    """Our tokenizer has a token for each byte."""
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
    hidden = model(torch.tensor([list(text.encode())])).last_hidden_state[0]
    return hidden.mean(0) if pooling == "mean" else hidden[-1]


def assert_close(found: object, reference: torch.Tensor) -> None:
    assert (torch.as_tensor(found) - reference).abs().max() <= 1e-5 * reference.abs().max()


def test_texts_files_and_stdin_equal_transformers(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXTS[2])
    found = run(folder, TEXTS[0], "-", "text", "--json", stdin=TEXTS[1], cwd=tmp_path)
    assert (found.returncode, found.stderr) == (0, "")
    report = json.loads(found.stdout)
    sources = [(one["file"], one["tokens"]) for one in report["embeddings"]]
    assert sources == [(None, 16), ("stdin", 4), ("text", len(TEXTS[2]))]
    assert (report["pooling"], report["normalized"]) == ("mean", False)
    for one, text in zip(report["embeddings"], TEXTS, strict=True):
        assert len(one["embedding"]) == report["dimensions"]
        assert_close(one["embedding"], expected(folder, text, "mean"))


@pytest.mark.parametrize("flags", [{}, {"add_bos_token": False}])
def test_tokens_that_a_post_processor_adds(
    folder: Path, tmp_path: Path, flags: dict[str, bool]
) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    spec = json.loads((folder / "tokenizer.json").read_text())
    start, end = ([entry["content"], entry["id"]] for entry in spec["added_tokens"])
    offsets = {"trim_offsets": True, "add_prefix_space": False}
    spec["post_processor"] = {"type": "RobertaProcessing", "cls": start, "sep": end, **offsets}
    config = json.loads((folder / "tokenizer_config.json").read_text()) | flags
    for name, value in (("tokenizer.json", spec), ("tokenizer_config.json", config)):
        (tmp_path / name).unlink()
        (tmp_path / name).write_text(json.dumps(value))
    report = json.loads(run(tmp_path, "Brot", "--json").stdout)
    model = transformers.AutoModel.from_pretrained(tmp_path, dtype=torch.float32)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    with torch.inference_mode():
        hidden = model(torch.tensor([theirs("Brot").input_ids])).last_hidden_state[0]
    (found,) = report["embeddings"]
    assert found["tokens"] == 6
    assert_close(found["embedding"], hidden.mean(0))


def test_lines_as_an_array_and_as_normalized_text(folder: Path, tmp_path: Path) -> None:
    lines = f"{TEXTS[0]}\n\n{TEXTS[1]}\n"
    output = tmp_path / "new" / "out.npy"
    options = ("-", "--lines", "--pooling", "last")
    found = run(folder, *options, "-o", str(output), stdin=lines)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    array = np.load(output)
    assert array.dtype == np.float32 and list(output.parent.iterdir()) == [output]
    found = run(folder, *options, "--normalize", stdin=lines)
    rows = np.array([line.split() for line in found.stdout.splitlines()], dtype=np.float64)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    for values, row, text in zip(array, rows, TEXTS[:2], strict=True):
        reference = expected(folder, text, "last")
        assert_close(values, reference)
        assert_close(row, reference / reference.norm())


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["notes.txt"], 8, "cannot read notes.txt: no such file\nhint: name a file; for a"),
        (["some/words"], 8, "cannot read some/words: no such file"),
        (["."], 8, ". is a folder\nhint: name a file"),
        (["", "a"], 2, "the text '' is empty"),
        (["-"], 2, "stdin is empty"),
        (["-", "-"], 2, "- was given twice"),
        (["a", "--json", "-o", "a.npy"], 2, "--json and -o were both given"),
        (["a", "-o", "a.txt"], 2, "a.txt does not end with .npy"),
        (["a", "-o", "/dev/null/x/a.npy"], 8, "cannot write /dev/null/x/a.npy: Not a directory"),
        (["a", "--text", "--lines"], 2, "--text and --lines were both given"),
    ],
)
def test_errors(
    args: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(embed, args, input="")
    assert isinstance(result.exception, SwiftchatError) and result.exception.exit_code == code
    assert message in f"{result.exception.message}\nhint: {result.exception.hint}"
    assert not result.stdout


def test_a_text_longer_than_the_context(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.npy"
    found = run(folder, "x" * 65, "--text", "--ctx-size", "64", "-o", str(output))
    assert (found.returncode, found.stdout) == (5, "") and not output.exists()
    assert "has 65 tokens, the context 64\nhint: shorten or divide it" in found.stderr
