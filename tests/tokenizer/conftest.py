"""Fixtures of the tokenizer tests."""

import pytest

from swiftchat.tokenizer.template import template


@pytest.fixture
def ample_template_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the real-time limit of templates, which a busy machine could exceed."""
    monkeypatch.setattr(template, "_SECONDS", 60.0)
