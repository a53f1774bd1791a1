"""The tools for files: read and list them, write and edit them after a diff."""

import stat
from typing import Annotated

from swiftchat.chat.attachments.files import text_of
from swiftchat.chat.builtin.diff import Row, counts, diff_rows
from swiftchat.chat.builtin.place import Place, place_of
from swiftchat.chat.tools.tool import Action
from swiftchat.errors import UsageError

_MAX_ENTRIES = 1000
_KINDS = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}

Path = Annotated[str, "Relative to the working folder."]


def read(
    top: str,
    path: Annotated[str, "Relative to the working folder. Also PDF, docx, pptx and xlsx."],
    first_line: Annotated[int, "Begin with this line (1)."] = 1,
    num_lines: Annotated[int, "Return at most so many lines (2000)."] = 2000,
) -> Action:
    """Return the text of a file."""
    place = place_of(path, top)

    def run() -> str:
        lines = text_of(place.name, place.read()).text.removesuffix("\n").split("\n")
        begin = max(0, first_line - 1)
        shown = lines[begin : begin + max(0, num_lines)]
        rest = len(lines) - begin - len(shown)
        note = f"\n… ({rest} more lines; first_line={begin + len(shown) + 1} continues)"
        return "\n".join(shown) + (note if rest > 0 else "")

    return Action(run, "read", warning=place.warning)


def list_folder(top: str, path: Path = ".") -> Action:
    """List the files and folders in a folder, with the sizes of files in bytes."""
    place = place_of(path, top)

    def run() -> str:
        entries = place.entries()
        lines = [_entry(name, status.st_mode, status.st_size) for name, status in entries]
        num_more = len(lines) - _MAX_ENTRIES
        note = [f"… ({num_more} more)"] if num_more > 0 else []
        return "\n".join([*lines[:_MAX_ENTRIES], *note]) or "(empty)"

    return Action(run, "list", warning=place.warning)


def _entry(name: str, mode: int, size: int) -> str:
    if stat.S_ISDIR(mode):
        return f"{name}/"
    if stat.S_ISREG(mode):
        return f"{name}  {size}"
    return f"{name}  ({_KINDS.get(stat.S_IFMT(mode), 'a device')})"


def write(top: str, path: Path, content: Annotated[str, "All of the new text."]) -> Action:
    """Write a text to a file, which is replaced if it exists."""
    place = place_of(path, top)
    old = place.content()
    return _change("write", place, old, content.encode("utf-8", "replace"))


def edit(
    top: str,
    path: Path,
    old_text: Annotated[str, "A part of the file, exactly as it stands there, which occurs once."],
    new_text: Annotated[str, "What stands there afterwards."],
) -> Action:
    """Replace a part of a text file by another text."""
    place = place_of(path, top)
    old = place.read()
    try:
        text = old.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{place.name} is no text in UTF-8", "edit another file") from None
    if "\r\n" in text and "\r\n" not in old_text:
        old_text, new_text = (one.replace("\n", "\r\n") for one in (old_text, new_text))
    count = text.count(old_text) if old_text else 0
    if count != 1:
        raise UsageError(
            f"old_text occurs {count} times in {place.name}, and must occur once",
            "give more of the lines around it" if count else "copy it from the file",
        )
    return _change("edit", place, old, text.replace(old_text, new_text).encode("utf-8", "replace"))


def _change(kind: str, place: Place, old: bytes | None, new: bytes) -> Action:
    """Return the action that changes a file, whose rows are the diff."""
    before, after = ((one or b"").decode("utf-8", "replace") for one in (old, new))
    diff = diff_rows(before, after)
    about = "a new file" if old is None else "changes nothing" if old == new else counts(diff)
    rows: list[Row] = [("tool", f"{kind} {place.shown} ({about})"), *diff]

    def run() -> str:
        place.write(new, old)
        return f"{place.name}: {about}"

    return Action(run, kind, rows, place.warning)
