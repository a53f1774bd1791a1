"""An endpoint whose model thinks and calls tools, for the protocols beside the completions."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from swiftchat.chat.endpoint.fields import FieldTable
from tests.chat.endpoint.test_http import (
    CALL_TEXT,
    SERVING_PAGE,
    THINKING_TEMPLATE,
    Served,
    serving,
)
from tests.support.fake_engine import make_folder

THOUGHT = f"<think>\nhm\n</think>\n\nI look. {CALL_TEXT}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model", THINKING_TEMPLATE)


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    with serving(folder, *["an answer"] * 90) as served:
        yield served


def assert_documented(table: FieldTable) -> None:
    """Check that the page on serving has every field that a protocol refuses or ignores."""
    text = SERVING_PAGE.read_text("utf-8")
    for name in (*table.refused, *table.without_effect):
        assert f"`{name}`" in text, name
