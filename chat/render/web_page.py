"""A conversation as a web page of its own: no script, nothing from elsewhere, dark and light."""

import re
import time
from collections.abc import Iterator, Sequence
from html import escape

from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from swiftchat.chat.attachments.attachment import parts_of
from swiftchat.chat.history.conversation import Conversation, Message
from swiftchat.chat.history.transcript import author
from swiftchat.chat.render.math import formula
from swiftchat.chat.render.message_rows import STOPPED
from swiftchat.chat.render.parse import parser
from swiftchat.chat.terminal.sanitize import sanitize_prose

# As in the terminal: the parser takes quadratic time in the number of brackets, and the regular
# expressions of lexers can take very long on longer lines.
_MAX_BRACKETS, _MAX_LINE_CHARACTERS = 100, 500
_LINKED = re.compile(r"(?:https?://|mailto:)[!-~]+")
_CODE = HtmlFormatter[str](nowrap=True)
_STYLES = {"light": "xcode", "dark": "github-dark"}  # of pygments
_CSS = """
:root { color-scheme: light dark; --back: #fdfdfc; --text: #1d1f21; --soft: #66696d;
  --code: #f1f1ee; --line: #d8d8d4; --you: #0b6e75; --link: #0550ae; }
body { background: var(--back); color: var(--text); margin: 0 auto; padding: 1.5rem 1rem 4rem;
  max-width: 48rem; font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.4rem; margin: 0; } header p, .by, summary, .call { color: var(--soft); }
section { border-top: 1px solid var(--line); margin-top: 1.2rem; padding-top: .8rem; }
.by { font-size: .85rem; margin: 0; } .user .by { color: var(--you); font-weight: bold; }
.user .said { white-space: pre-wrap; font-weight: 600; margin: .3rem 0; }
pre { background: var(--code); padding: .7rem .9rem; border-radius: .4rem; overflow-x: auto; }
pre, code { font: .88rem/1.45 ui-monospace, monospace; } details pre { white-space: pre-wrap; }
:not(pre) > code { background: var(--code); padding: .1em .3em; border-radius: .25em; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border: 1px solid var(--line); padding: .3rem .6rem; } a { color: var(--link); }
blockquote { border-left: 3px solid var(--line); margin-left: 0; padding-left: 1rem; }
@media (prefers-color-scheme: dark) { :root { --back: #16181c; --text: #e3e4e6; --soft: #9a9da3;
  --code: #21242a; --line: #363a41; --you: #6cc7cf; --link: #7cb7ff; } }
"""
# No script runs, and nothing is loaded, whatever a model or a file has written.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"


def web_page(conversation: Conversation) -> str:
    """Return the current path as HTML; attachments, reasoning and results of tools are folded."""
    title = _text(conversation.name or conversation.title or "Conversation")
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(conversation.created))
    system = _folded("System prompt", conversation.system) if conversation.system else ""
    return f"""<!doctype html>
<html>
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_CSS}{_code_styles()}</style>
</head>
<body>
<header><h1>{title}</h1><p>{when}</p>{system}</header>
{"".join(map(_section, conversation.messages))}</body>
</html>
"""


def _code_styles() -> str:
    """Return the colors of code on a light and on a dark background."""
    rules = ""
    for scheme, style in _STYLES.items():
        lines = HtmlFormatter[str](style=style).get_token_style_defs("pre")
        colors = "\n".join(line for line in lines if "{" in line)
        rules += f"@media (prefers-color-scheme: {scheme}) {{\n{colors}\n}}\n"
    return rules


def _section(message: Message) -> str:
    parts: list[str]
    if message.role == "user":
        parts = ["<p class=by>You</p>", *_question(message.content)]
    elif message.role == "tool":
        names = ", ".join(call.name for call in message.tool_calls)
        parts = [_folded(f"Result of {names}", message.content)]
    else:
        parts = [f"<p class=by>{_text(author(message))}</p>"]
        parts += [_folded("Reasoning", message.reasoning)] if message.reasoning else []
        parts.append(_markdown(message.content))
        parts += [f"<p class=call>● {_text(call.text)}</p>" for call in message.tool_calls]
        parts += [f"<p class=call>{STOPPED}</p>"] if message.interrupted else []
    return f"<section class={message.role}>{''.join(parts)}</section>\n"


def _question(message: str) -> Iterator[str]:
    for part, label in parts_of(message):
        if label:
            yield _folded(label, part)
        elif part.strip():
            yield f"<p class=said>{_text(part.strip())}</p>"


def _folded(summary: str, text: str) -> str:
    return f"<details><summary>{_text(summary)}</summary><pre>{_text(text)}</pre></details>"


def _text(text: str) -> str:
    return escape(sanitize_prose(text))


def _markdown(text: str) -> str:
    """Return Markdown as HTML, parsed as for the terminal; HTML in it is text."""
    tokens = parser().parse(sanitize_prose(text))
    for token in tokens:
        if token.type == "inline":
            token.children = []
            if token.content.count("[") > _MAX_BRACKETS:
                token.children.append(Token("text", "", 0, content=token.content))
            else:
                parser().inline.parse(token.content, parser(), {}, token.children)
    return str(_Renderer().render(tokens, parser().options, {}))


class _Renderer(RendererHTML):
    """Renders the tokens of our parser; a method is called by the type of a token."""

    def fence(self, tokens: Sequence[Token], idx: int, *_: object) -> str:
        token = tokens[idx]
        language = token.info.strip().split(" ")[0]
        return f"<pre>{_highlighted(token.content, language)}</pre>\n"

    def math(self, tokens: Sequence[Token], idx: int, *_: object) -> str:
        return escape(formula(tokens[idx].content))

    def math_block(self, tokens: Sequence[Token], idx: int, *_: object) -> str:
        return f"<p>{escape(formula(tokens[idx].content))}</p>\n"

    def footnote(self, tokens: Sequence[Token], idx: int, *_: object) -> str:
        return escape(tokens[idx].content)

    def link_open(self, tokens: Sequence[Token], idx: int, *_: object) -> str:
        address = str(tokens[idx].attrs.get("href", ""))
        if _LINKED.fullmatch(address) is None:
            return "<a>"
        return f'<a href="{escape(address)}" rel="noreferrer">'

    def image(self, tokens: Sequence[Token], idx: int, *_: object) -> str:
        """Return the label of a picture: loading it would tell its host who reads the page."""
        return escape(f"[{tokens[idx].content or 'picture'}]")


def _highlighted(code: str, language: str) -> str:
    if max(map(len, code.split("\n"))) > _MAX_LINE_CHARACTERS:
        return escape(code)
    try:
        lexer = get_lexer_by_name(language, stripnl=False)
    except ClassNotFound:
        return escape(code)
    return str(highlight(code, lexer, _CODE))
