"""Fault 32: `config.json` has absurd values.

Required: exit code 7 with the name of the field and the value, before anything is loaded.

Provoked by: 10^9 layers, no heads, NaN, a text, a list, and an integer of 4000 digits.
"""

import json
from pathlib import Path

import pytest

from tests.support.program import assert_error
from tests.support.serve_processes import swiftchat
from tests.support.zero_model import make_zero_model


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("num_hidden_layers", 10**9, "1000000000"),
        ("num_attention_heads", 0, "0"),
        ("rms_norm_eps", float("nan"), "nan"),
        ("hidden_size", "many", "many"),
        ("vocab_size", [258], "list"),
        ("intermediate_size", 10**3999, "huge"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_the_field_is_named(tmp_path: Path, field: str, value: object, shown: str) -> None:
    folder = make_zero_model(tmp_path / "model")
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    error, _ = assert_error(swiftchat("-m", str(folder), "-p", "x"), 7, field)
    assert shown in error.casefold() and len(error) < 1000
