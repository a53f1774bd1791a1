"""The process that reads a document, which may be hostile, within limits of time and memory.

It reads the document from stdin and writes a line of JSON: `{text, notes}`, or `{reason, hint}` for
a document that cannot be read. A limit of the system ends it without a line.
"""

import io
import json
import resource
import signal
import sys
import zipfile
from collections.abc import Callable
from typing import BinaryIO

from swiftchat.chat.documents.content import INSTALL_HINT, Content, PageRange, Unreadable

MAX_CHARACTERS = 32_000_000
_MEMORY_BYTES = 2 << 30
_SECONDS = 120  # of processor time
_MAX_UNPACKED_BYTES = 512 << 20
_MAX_PARTS = 20_000
_TOO_MUCH = "attach a part of it, such as NAME#1"
_DAMAGED = "the file may be incomplete; a copy saved by its program may work"


def read(content: bytes, wanted: PageRange) -> dict[str, object]:
    """Return the answer about a document, see above."""
    try:
        document = _reader_of(content)(io.BytesIO(content), wanted)
        parts, size = [], 0
        for page in document.pages:
            parts.append(f"## {page.heading}\n\n{page.text}" if page.heading else page.text)
            size += len(parts[-1])
            if size > MAX_CHARACTERS:
                raise Unreadable(f"has more than {MAX_CHARACTERS} characters", _TOO_MUCH)
    except Unreadable as error:
        return {"reason": error.reason, "hint": error.hint}
    except ImportError as error:
        return {"reason": f"needs the package {error.name} to be read", "hint": INSTALL_HINT}
    except MemoryError:
        return {"reason": "needs too much memory to be read", "hint": _TOO_MUCH}
    except Exception as error:  # noqa: BLE001  (the libraries raise anything for damaged files)
        return {"reason": f"cannot be read: {_first_line(error)}", "hint": _DAMAGED}
    if not any(part.strip() for part in parts):
        return {"reason": "has no text", "hint": "attach another file"}
    text = "\n\n".join(part.strip("\n") for part in parts) + "\n"
    # Damaged fonts give surrogates, which no prompt can have.
    return {"text": text.encode("utf-8", "replace").decode(), "notes": list(document.notes)}


def _first_line(error: Exception) -> str:
    return f"{str(error).splitlines()[0] if str(error).strip() else type(error).__name__:.120}"


def _reader_of(content: bytes) -> Callable[[BinaryIO, PageRange], Content]:
    """Return the function that reads a document. Raises `Unreadable` for other archives."""
    # Imported here: each needs another library.
    if not content.startswith(b"PK"):
        from swiftchat.chat.documents.pdf import read_pdf

        return read_pdf
    from swiftchat.chat.documents.office import read_docx, read_pptx, read_xlsx

    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = archive.infolist()
        # A reader of the archive unpacks no part beyond the size that is announced here.
        if len(parts) > _MAX_PARTS or sum(one.file_size for one in parts) > _MAX_UNPACKED_BYTES:
            raise Unreadable(
                f"is larger than {_MAX_UNPACKED_BYTES >> 20} MiB when it is unpacked",
                "attach a part of it",
            )
        names = {one.filename for one in parts}
    readers = {
        "word/document.xml": read_docx,
        "ppt/presentation.xml": read_pptx,
        "xl/workbook.xml": read_xlsx,
    }
    reader = next((readers[name] for name in readers if name in names), None)
    if reader is None:
        raise Unreadable("is an archive, not a document", "attach the files in it")
    return reader


def main() -> None:
    """Read the document; the arguments are the first and the last page, or 0 for the end."""
    # Ctrl-C is for the parent, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    first, last = map(int, sys.argv[1:])
    answer = read(sys.stdin.buffer.read(), PageRange(first, last or None))
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
