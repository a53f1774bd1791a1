"""Text in the user's editor."""

import click

from swiftchat.errors import UsageError


def edit_text(text: str, extension: str = ".md") -> str | None:
    """Open a text in $VISUAL or $EDITOR; return the saved text, None if nothing was saved.

    `extension` is that of the file which the editor opens.

    Raises `UsageError` if the editor cannot be started or ends with an error (vim's `:cq`).
    """
    try:
        return click.edit(text.encode("utf-8", "replace").decode(), extension=extension)
    except (click.ClickException, ValueError) as error:  # ValueError: open quotes, invalid UTF-8
        reason = error.format_message() if isinstance(error, click.ClickException) else str(error)
        raise UsageError(
            f"{reason}; the text is not changed", "set EDITOR to an editor, such as EDITOR=nano"
        ) from error
