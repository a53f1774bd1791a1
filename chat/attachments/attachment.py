"""A text that precedes a message, fenced so that it cannot end early."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from swiftchat.chat.terminal.sanitize import sanitize


@dataclass(frozen=True)
class Attachment:
    """The text of a file, a page or a command; `notes` is what a user should know about it."""

    name: str
    text: str
    notes: Sequence[str] = ()

    @property
    def fenced(self) -> str:
        """The text as a part of a prompt: a code block between its name and its end mark."""
        name = sanitize(" ".join(self.name.split()))
        # Longer than all in the text, so that the text cannot close the block.
        longest = max(map(len, re.findall("`+", f"{name}\n{self.text}")), default=0)
        fence = "`" * max(3, longest + 1)
        end = "" if self.text.endswith("\n") else "\n"
        return f"{name}:\n{fence}\n{self.text}{end}{fence}\n(end of {name})"


def message_with(attachments: Iterable[Attachment], message: str) -> str:
    """Return the message with the attachments before it."""
    return "\n\n".join([*(attachment.fenced for attachment in attachments), message])
