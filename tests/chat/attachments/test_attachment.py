"""Messages with attachments, folded for the eye."""

import pytest

from swiftchat.chat.attachments.attachment import (
    Attachment,
    folded,
    message_with,
    parts_of,
    without_attachments,
)

FILE = Attachment("a.py", "x = 1\n```\ny\n")


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            message_with([FILE, Attachment("b", "one")], "why?\nnow"),
            "[a.py, 3 lines]\n\n[b, 1 line]\n\nwhy?\nnow",
        ),
        (f"before\n{FILE.fenced}", "before\n[a.py, 3 lines]"),
        ("a:\n```\ncode\n```", "a:\n```\ncode\n```"),
        ("a:\n```\n(end of a)", "a:\n```\n(end of a)"),
        ("\n", "\n"),
        ("", ""),
    ],
)
def test_each_attachment_is_one_label(message: str, shown: str) -> None:
    assert folded(message) == shown
    assert "".join(part for part, _ in parts_of(message)) == message


def test_the_text_of_a_message_without_its_attachments() -> None:
    assert without_attachments(message_with([FILE, FILE], "why?")) == "why?"
