"""Emphasis beside Chinese, Japanese and Korean text, and direction marks."""

import pytest

from swiftchat.chat.render.blocks import BlockStream
from swiftchat.chat.render.inline import Inline
from swiftchat.chat.render.rows import MarkdownRows
from swiftchat.chat.render.style import Style


def marked(text: str) -> list[str]:
    """Return the parts of a text that have a style."""
    shown = Inline().styled(text)
    return [shown.plain[span.start : span.end] for span in shown.spans]


@pytest.mark.parametrize(
    ("text", "bold"),
    [
        ("**重要：**请注意", ["重要："]),
        ("含**「重点」**内容", ["「重点」"]),
        ("**不变。**源码", ["不变。"]),
        ("これは**「強調」**です", ["「強調」"]),
        ("**“重点”**内容", ["“重点”"]),
        ("价格**（含税）**和*（运费）*。", ["（含税）", "（运费）"]),
        ("**이것(this)**은", ["이것(this)"]),
        ("~~（旧）~~新", ["（旧）"]),
        ("**a：**b", ["a："]),
        # As CommonMark has it.
        ("**bold**text", ["bold"]),
        ("a * b * c", []),
        ("中 ** 文 ** 字", []),
        ('a**"b"**c', []),
        ("snake_case_name", []),
        ("中_文_字", []),
    ],
)
def test_emphasis(text: str, bold: list[str]) -> None:
    assert marked(text) == bold


def test_direction_marks_stay_in_prose_and_are_visible_in_code() -> None:
    text = "שלום\u200f! `a\u2067b` \u2068C++\u2069 \u202eevil\n\n"
    text += "```\nif x:\u2066\n```\n\n    y\u2067\n"
    rows, stream = MarkdownRows(Style("markdown")), BlockStream()
    blocks = [*stream.push(text), *stream.finish()]
    shown = "\n".join(row.plain for block in blocks for row in rows.render(block, 80))
    assert "שלום\u200f! a�b \u2068C++\u2069 �evil" in shown
    assert "if x:�" in shown and "y�" in shown


def test_marks_behind_a_link_that_close_nothing() -> None:
    """A link has no text of its own before the marks."""
    assert (
        Inline().styled("[see](https://a.test/)*, or not").plain == "see (https://a.test/)*, or not"
    )
