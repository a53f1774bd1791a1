"""Pages at http and https addresses as attachments."""

from collections.abc import Callable
from urllib.parse import urljoin, urlsplit, urlunsplit

import requests

from swiftchat.chat.attachments.attachment import Attachment
from swiftchat.chat.attachments.document import (
    DOCUMENT_TYPES,
    is_document,
    read_document,
    split_pages,
    with_pages,
)
from swiftchat.chat.attachments.hidden_text import hidden_text_notes
from swiftchat.chat.attachments.user_text import TEXT_ONLY, decode_text
from swiftchat.chat.documents.markup import markdown_of_html
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import DownloadError, UsageError
from swiftchat.errors.deadline import within

_MAX_BYTES = 4 * 1024 * 1024
_MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
_MAX_REDIRECTS = 5
_CONNECT_TIMEOUT_S, _STALL_S, _TOTAL_S = 10.0, 20.0, 60.0
_CHUNK_BYTES = 1 << 16
_HTML = ("text/html", "application/xhtml+xml")
# Besides text/*; the parts after a + as in application/problem+json count too.
_TEXT_TYPES = ("json", "xml", "yaml", "x-yaml", "toml", "javascript", "x-sh", "x-ndjson", "sql")
_HINT = "check the address and the network"


def fetch_page(
    url: str, *, offline: bool = False, check: Callable[[str], None] | None = None
) -> Attachment:
    """Fetch a page; HTML becomes Markdown without links and images, a document its text.

    At most 4 MiB, of a document 32 MiB, five redirects, and a minute for all of it. Control
    characters are replaced by visible glyphs. `check` gets the address of each redirect before it
    is followed, and may raise an error. Raises `UsageError` with `offline` and for a page that is
    not text, `DownloadError` if it cannot be fetched.
    """
    name = _public_address(url)
    if offline:
        raise UsageError(f"{name} needs network access", "leave out --offline, or save the page")
    try:
        kind, charset, content = within(_TOTAL_S, lambda: _fetch(url, name, check))
    except TimeoutError as error:
        message = f"{name} took longer than {_TOTAL_S:.0f} s"
        raise DownloadError(message, "try again later") from error
    except requests.TooManyRedirects as error:
        raise DownloadError(f"{name}: more than {_MAX_REDIRECTS} redirects", _HINT) from error
    except (requests.RequestException, ValueError) as error:
        # The library's message may contain the user name and password of the address.
        raise DownloadError(f"{name} cannot be fetched: {_cause(error)}", _HINT) from error
    pages = split_pages(url)
    return _page(name, content, kind, charset, pages[1] if pages else (1, 0))


def _fetch(
    url: str, name: str, check: Callable[[str], None] | None
) -> tuple[str, str | None, bytes]:
    """Return the type, the charset and the content of a page."""

    def check_redirect(response: requests.Response, **_: object) -> None:
        if check is not None and response.is_redirect:
            check(urljoin(response.url, response.headers["Location"]))

    with requests.Session() as session:
        session.max_redirects = _MAX_REDIRECTS
        session.headers["User-Agent"] = "swiftchat"
        session.hooks["response"] = [check_redirect]
        timeout = (_CONNECT_TIMEOUT_S, _STALL_S)
        with session.get(url, stream=True, timeout=timeout) as response:
            if not response.ok:
                raise DownloadError(f"{name}: HTTP status {response.status_code}", _HINT)
            kind, charset = _content_type(name, response)
            is_document = kind in DOCUMENT_TYPES
            max_bytes = _MAX_DOCUMENT_BYTES if is_document else _MAX_BYTES
            return kind, charset, _read(name, response, max_bytes)


def _public_address(url: str) -> str:
    """Return the address without user name, password and fragment."""
    try:
        parts = urlsplit(url)
        if not parts.hostname:
            raise ValueError
    except ValueError:
        raise UsageError(f"{url} is not an address", "https://HOST/PATH") from None
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))


def _content_type(name: str, response: requests.Response) -> tuple[str, str | None]:
    """Return the type and the charset in the header; raises `UsageError` for other than text."""
    kind, _, rest = response.headers.get("Content-Type", "text/plain").partition(";")
    kind = kind.strip().lower()
    main, _, sub = kind.partition("/")
    is_read = main == "text" or kind in (*_HTML, *DOCUMENT_TYPES)
    if not is_read and sub.rpartition("+")[2] not in _TEXT_TYPES:
        raise UsageError(f"{name} is of the type {kind}", TEXT_ONLY)
    charset = requests.utils.get_encoding_from_headers(response.headers) if rest else None
    return kind, charset


def _read(name: str, response: requests.Response, max_bytes: int) -> bytes:
    content = bytearray()
    for chunk in response.iter_content(_CHUNK_BYTES):
        content += chunk
        if len(content) > max_bytes:
            raise UsageError(f"{name} is larger than {max_bytes >> 20} MiB", "save a part of it")
    return bytes(content)


def _page(
    name: str, content: bytes, kind: str, charset: str | None, pages: tuple[int, int]
) -> Attachment:
    if kind in DOCUMENT_TYPES and is_document(name, content):
        read = read_document(name, content, pages)
        return Attachment(with_pages(name, pages), read.text, read.notes)
    if kind in _HTML:
        text = markdown_of_html(content, charset)
        return Attachment(name, sanitize(text), hidden_text_notes(name, text))
    if charset:
        try:
            content = content.decode(charset, "replace").encode()
        except LookupError:
            charset = None
    decoded = decode_text(content)
    if decoded is None:
        raise UsageError(f"{name} is not a text", TEXT_ONLY)
    text, num_invalid = decoded
    notes = [f"{name} is not valid UTF-8; bytes replaced: {num_invalid}"] if num_invalid else []
    return Attachment(name, sanitize(text), [*notes, *hidden_text_notes(name, text)])


def _cause(error: Exception) -> str:
    match error:
        case requests.ConnectTimeout() | requests.ReadTimeout():
            return "no answer in time"
        case requests.exceptions.SSLError():
            return "the certificate is not valid"
        case requests.ConnectionError():
            return "no connection"
        case requests.exceptions.InvalidURL() | requests.exceptions.InvalidSchema() | ValueError():
            return "the address is not valid"
    return type(error).__name__
