"""Code in list items that are longer than what is parsed at once."""

import pytest

from swiftchat.chat.render.blocks import BlockStream
from swiftchat.chat.render.parse import code_blocks
from tests.chat.render.test_markdown import joined

NUM_STEPS = 100  # of four lines or more: 300 lines are parsed at once
STEP = "step {i}\n\n{indent}```python\n{indent}print({i})\n{indent}```\n"
ITEMS = {  # by their first line: the marks and the indentation of steps inside
    "1. Do this:\n\n": ("    - ", 8),
    "- Do this:\n": ("  ", 2),
    "10) Do this:\n\n": ("    * ", 6),
    "> 1. Do this:\n>\n": ("> ", 0),
    "-\n  Do this:\n\n": ("  1. ", 5),
    "- > Do this:\n": ("  > ", 0),
    "- 1. Do this:\n\n": ("     ", 5),
    "- ```\n  first\n  ```\n": ("  ", 2),
}


@pytest.mark.parametrize("first", ITEMS)
def test_code_in_a_long_item_has_the_numbers_of_copy(first: str) -> None:
    mark, num_blanks = ITEMS[first]
    quote = "  > " if mark == "  > " else "> " + "   " if mark == "> " else ""
    indent = quote or " " * num_blanks
    start = indent if quote else mark
    text = first + "".join(
        f"{start}{STEP.format(i=i, indent=indent)}" + (f"{indent}\n" if quote else "\n")
        for i in range(NUM_STEPS)
    ).replace("\n\n", f"\n{indent.rstrip()}\n" if quote else "\n\n")
    text += "\nEnd.\n\n```\nlast\n```\n"
    stream = BlockStream()
    streamed = joined([*stream.push(text), *stream.finish()])
    fences = [(path, content) for kind, path, content, _ in streamed if kind == "fence"]
    copied = code_blocks(text)
    assert [content for _, content in fences] == [block.code.rstrip() for block in copied]
    assert len(copied) == NUM_STEPS + 1 + ("first" in first) and copied[-1].code == "last\n"
    assert fences[-1][0] == [] and all(path for path, _ in fences[:-1])
