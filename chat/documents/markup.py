"""HTML as Markdown."""

from bs4 import BeautifulSoup
from markdownify import MarkdownConverter

_WITHOUT_TEXT = ["script", "style", "noscript", "template", "svg", "iframe", "head"]


def markdown_of_html(content: bytes | str, charset: str | None = None) -> str:
    """Return a page as Markdown without links and images; its title comes first."""
    soup = BeautifulSoup(content, "html.parser", from_encoding=charset)
    title = " ".join(soup.title.get_text().split()) if soup.title else ""
    for element in soup(_WITHOUT_TEXT):
        element.decompose()
    try:
        converter = MarkdownConverter(heading_style="ATX", strip=["a", "img"])
        text: str = converter.convert_soup(soup)
    except RecursionError:  # thousands of nested elements
        text = soup.get_text("\n", strip=True)
    lines = [line.rstrip() for line in text.strip().splitlines()]
    body = "\n".join(
        line for i, line in enumerate(lines) if line or (i and lines[i - 1])
    )  # one blank line at most
    return f"{title}\n\n{body}\n" if title else f"{body}\n"
