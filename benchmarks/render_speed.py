"""CPU time to render each piece of an answer, for ordinary and for hostile texts.

    python benchmarks/render_speed.py [--columns 80]

Prints for each text the number of pieces and the CPU time in milliseconds: in total, of the median
piece and of the slowest. A piece is a token of about four characters; they arrive at a simulated
100 a second, so every fifth is drawn. Limits: 16 ms for ordinary text, 100 ms for hostile text.
"""

import argparse
import statistics
import time

from swiftchat.chat.render.markdown_view import MarkdownView
from swiftchat.chat.render.style import Style
from swiftchat.chat.render.view import preload

PROSE = (
    "## A heading\n\nSome *emphasized* words, a [link](https://example.org/page), `code`, and a "
    "formula $x_i^2$ in a paragraph that goes on for as long as paragraphs do. "
    * 3
    + "\n\n1. first item\n2. second item, with **strong** words\n   - nested\n   - list\n\n"
    "```python\ndef double(numbers: list[int]) -> list[int]:\n"
    '    """Each number twice."""\n    return [2 * n for n in numbers]  # twice\n```\n\n'
    "| name | value |\n|---|---:|\n| one | 1 |\n| two | 2 |\n\n> a quote\n> of two lines\n\n"
)
TEXTS = {
    "9k tokens of prose": PROSE * 36,
    "code of 1000 lines": "```python\n" + "    x = f(a, 'text', 1)  # comment\n" * 1000 + "```\n",
    "fence of 20000 lines": "```\n" + "some line of code\n" * 20_000,
    "table of 20000 rows": "| a | b | c |\n|---|---|---|\n"
    + "| one | two `x` | three |\n" * 20_000,
    "a megabyte in a line": "word " * 200_000,
    "a megabyte without a blank": "x" * 1_000_000,
    "list of 5000 items": "- an item of it\n" * 5000,
    "one item of 2000 lines": "- item\n" + "  - part of it\n" * 2000,
    "paragraph of 2000 lines": "a line of a paragraph\n" * 2000,
    "brackets": "[" * 4000 + "\n" + "![" * 4000 + "\n\n",
    "stars": "*a **b " * 1000 + "\n\n",
    "quotes": "> " * 2000 + "deep\n" * 50,
    "deep lists": "\n".join("  " * i + "- x" for i in range(200)),
    "wide table": "|" + "a|" * 1000 + "\n|" + "-|" * 1000 + "\n" + ("|" + "b|" * 1000 + "\n") * 50,
    "string without an end": '```python\nx = """\n' + "text of a string\n" * 2000,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--columns", type=int, default=80)
    columns = parser.parse_args().columns
    preload(Style("markdown"))  # as the chat does while the engine loads
    print(f"{'':28} {'pieces':>8} {'all ms':>9} {'median':>8} {'slowest':>8}")
    for name, text in TEXTS.items():
        times = measure(text, columns)
        print(
            f"{name:28} {len(times):8} {sum(times):9.0f} {statistics.median(times):8.3f} "
            f"{max(times):8.1f}"
        )


def measure(text: str, columns: int, piece_chars: int = 4) -> list[float]:
    """Return the milliseconds of each piece and, last, of the end of the answer."""
    view = MarkdownView(
        Style("markdown", True, True),
        None,
        "model",
        write=lambda text: None,
        size=lambda: (columns, 40),
        clock=lambda: clock_s,
    )
    clock_s = 0.0
    times = []
    for start in range(0, len(text), piece_chars):
        clock_s += 0.01
        began = time.thread_time()
        view.push(text[start : start + piece_chars])
        times.append(1e3 * (time.thread_time() - began))
    began = time.thread_time()
    view.close()
    times.append(1e3 * (time.thread_time() - began))
    return times


if __name__ == "__main__":
    main()
