"""Fault 47: a file of the KV cache on disk is damaged, of another model, or half written.

Required: it is removed with one warning, the prompt is computed as usual, and the answer is the
same.

Provoked by: a bit flipped in a file that the program has written for a prompt, and what a writer
that was killed leaves, before the program gets the same prompt again. Other damages, and writers
killed while they write: `tests/engine/kv_store/`.
"""

import json
from pathlib import Path

from swiftchat.engine.api.kv_folder import user_kv_folder
from tests.support.remote_engine import chat_model_folder
from tests.support.serve_processes import swiftchat

PROMPT = "one two three four five six " * 5


def answer(folder: Path) -> dict[str, object]:
    """Answer the prompt; return the object that `--json` prints."""
    options = ("--temp", "0", "-n", "8", "--json", "-p", PROMPT)
    done = swiftchat("-m", str(folder), *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def warnings_of(found: dict[str, object]) -> list[str]:
    """Return the warnings but that of the token limit."""
    warnings = found["warnings"]
    assert isinstance(warnings, list)
    return [text for text in warnings if "token limit" not in text]


def test_a_damaged_file_is_removed_and_the_prompt_computed(tmp_path: Path) -> None:
    folder = chat_model_folder(tmp_path / "model")
    first = answer(folder)
    (file,) = user_kv_folder().glob("*/*.safetensors")
    whole = file.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 4
    file.write_bytes(damaged)
    (file.parent / f"{file.name}.1.partial").write_bytes(whole[:-50])
    second = answer(folder)
    (warning,) = warnings_of(second)
    assert "removed" in warning and "checksum" in warning
    assert second["content"] == first["content"]
    usage = second["usage"]
    assert isinstance(usage, dict) and usage["restored_tokens"] == 0
    # Written again, unless the program ended before it was idle for long enough.
    assert not file.exists() or file.read_bytes() == whole
    assert not list(file.parent.glob("*.partial"))
