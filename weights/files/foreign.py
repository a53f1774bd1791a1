"""Files that are not what their name says: git-lfs pointers and web pages."""

from pathlib import Path

from swiftchat.errors import BadModelFile

__all__ = ["reject_foreign_file"]


def reject_foreign_file(path: Path, start: bytes) -> None:
    """Tell apart what servers and version control leave in the place of a model file."""
    if start.startswith(b"version https://git-lfs"):
        raise BadModelFile(
            f"{path}: a git-lfs pointer, not the file itself", "fetch it with: git lfs pull"
        )
    if start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        raise BadModelFile(f"{path}: a web page, not a model file", "download the file again")
