"""Exported pages: what they show, that nothing in them runs or is loaded, hostile texts."""

import time
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st

from swiftchat.chat.attachments.attachment import Attachment, message_with
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.render.export import FORMATS, format_of
from swiftchat.chat.render.web_page import web_page
from tests.support.program import Program

TAGS = {
    *("html", "head", "meta", "title", "style", "body", "header", "section", "details", "summary"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "p", "a", "em", "strong", "s", "code", "pre", "span"),
    *("ul", "ol", "li", "blockquote", "table", "thead", "tbody", "tr", "th", "td", "hr", "br"),
}
HOSTILE = (
    "<script>alert(1)</script>",
    "</pre></style></title><img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "[x](smb://a.test/share)",
    "![x](https://tracker.test/x.png)",
    '[x](https://a.test/"onmouseover="alert(1))',
    "<https://a.test/'><script>>",
    '```"><script>alert(1)</script>\n</code></pre><script>x</script>\n```',
    "$</p><script>x</script>$",
    "$$\n</p><script>x</script>\n$$",
    "[^</sup><script>]: x",
    "| <b> | x |\n| --- | --- |\n| <i onclick=x> | y |",
    "&lt;script&gt; &#60;b&#62;",
    "\u202egnp.exe\x1b[31m",
)


def page_of(*answers: str, question: str = "Why?") -> BeautifulSoup:
    conversation = Conversation()
    for answer in answers:
        conversation.add("user", question)
        conversation.add("assistant", answer)
    return BeautifulSoup(web_page(conversation), "html.parser")


def assert_harmless(page: BeautifulSoup) -> None:
    for element in page.find_all(True):
        assert element.name in TAGS, element
        allowed = {"meta": {"charset", "http-equiv", "content", "name"}, "a": {"href", "rel"}}
        allowed |= {"td": {"style"}, "th": {"style"}, "ol": {"start"}, "code": {"class"}}
        assert set(element.attrs) <= allowed.get(element.name, set()) | {"class"}, element
        address = element.get("href", "https://")
        assert str(address).startswith(("http://", "https://", "mailto:")), element
    (policy,) = (one["content"] for one in page.find_all("meta") if one.get("http-equiv"))
    assert str(policy).startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert "url(" not in str(page.style) and "@import" not in str(page.style)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_texts_everywhere(text: str) -> None:
    conversation = Conversation(system=text, name=text)
    conversation.add("user", message_with([Attachment(text, text)], text))
    conversation.add("assistant", text, reasoning=text).tool_calls = [ToolCall(text, {text: text})]
    conversation.add_tool_result(conversation.messages[-1].tool_calls[0], text)
    conversation.add("assistant", f"- {text}\n- *{text}*\n\n> {text}").model = text
    page = BeautifulSoup(web_page(conversation), "html.parser")
    assert_harmless(page)
    assert not any(character in web_page(conversation) for character in "\u202e\x1b")


@given(
    st.lists(st.sampled_from([*HOSTILE, "a", "\n", "`", "*", "[", "](", "|", "<", '"']), max_size=9)
)
def test_any_answer_is_harmless(parts: list[str]) -> None:
    assert_harmless(page_of("".join(parts), question="".join(parts)))


def test_the_parts_of_a_conversation() -> None:
    conversation = Conversation(system="Be brief.", title="Sums & more")
    conversation.add("user", message_with([Attachment("src/a.py", "x < 1\n")], "What is\n  this?"))
    answer = conversation.add("assistant", "**Code**:\n\n```python\nif x < 1: pass\n```\n\n1. one")
    answer.reasoning, answer.model = "Hm <b>.", "models/tiny"
    conversation.add("user", "And $\\pi$?")
    conversation.add(
        "assistant", "About $\\pi \\leq 4$, [see](https://a.test/?a=1&b=2).", "interrupt"
    )
    text = web_page(conversation)
    page = BeautifulSoup(text, "html.parser")
    assert_harmless(page)
    assert page.title is not None and page.title.text == "Sums & more"
    folded = {one.summary.text: one.pre.text for one in page.find_all("details")}  # type: ignore[union-attr]
    assert folded["System prompt"] == "Be brief." and folded["Reasoning"] == "Hm <b>."
    assert "x < 1" in folded["a.py, 1 line"]
    assert [one.text for one in page.find_all("p", "said")] == ["What is\n  this?", "And $\\pi$?"]
    assert [one.text for one in page.find_all("p", "by")] == ["You", "tiny", "You", "Assistant"]
    (code,) = (one for one in page.find_all("pre") if one.span)
    assert code.text == "if x < 1: pass\n" and code.find("span", "k").text == "if"  # type: ignore[union-attr]
    assert "About π ≤ 4, see." in page.text and "⏹ stopped" in page.text
    assert page.a is not None and page.a["href"] == "https://a.test/?a=1&b=2"
    style = str(page.style)
    assert style.count("pre .k ") == 2, "the colors of code on a light and a dark background"
    assert style.count("prefers-color-scheme: dark") == 2


def test_long_answers_are_rendered_in_linear_time() -> None:
    began = time.process_time()
    page_of("[" * 100_000, "```python\n" + "'" * 200_000 + "\n```", "word " * 200_000)
    assert time.process_time() - began < 20


def test_formats_by_the_names_of_files(program: Program, tmp_path: Path) -> None:
    assert [format_of(f"a.{name}") for name in FORMATS] == list(FORMATS)
    assert (format_of("A.HTML"), format_of("a.pdf"), format_of("html")) == ("html", None, None)
    program.run("-p", "Why?", answers=("**So**.",))
    listing = Program(Path("-")).run("sessions", "list", "--all", "--json")
    session = listing.stdout.split(b'"id": "')[1][:8].decode()
    export = ("sessions", "export", session)
    done = Program(Path("-")).run(*export, str(tmp_path / "talk.html"))
    assert done.returncode == 0, done.stderr
    assert "<strong>So</strong>" in (tmp_path / "talk.html").read_text()
    done = Program(Path("-")).run(*export, "--format", "html")
    assert done.stdout.startswith(b"<!doctype html>")
