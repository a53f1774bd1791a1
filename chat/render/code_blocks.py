"""The code in an answer."""

from typing import NamedTuple


class CodeBlock(NamedTuple):
    language: str
    code: str


def code_blocks(text: str) -> list[CodeBlock]:
    """The fenced blocks of a text in their order, numbered from 1 where they are shown."""
    # Here, not at the top: the prompt must not wait for the parser.
    from swiftchat.chat.render.parse import parse_blocks

    lines = text.removesuffix("\n").split("\n")
    fences = [block for block in parse_blocks(lines) if block.kind == "fence"]
    return [CodeBlock(block.info.strip().split(" ")[0], block.content) for block in fences]
