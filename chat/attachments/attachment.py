"""A text that precedes a message, fenced so that it cannot end early."""

import bisect
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
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


_FENCE = re.compile("`{3,}")


def parts_of(message: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a message in order, with a label for an attachment: `a.py, 40 lines`.

    The label of the text between attachments is empty. The parts together are the message.
    """
    lines = message.split("\n")
    ends: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number in range(1, len(lines)):
        if lines[number].startswith("(end of "):
            ends[lines[number - 1], lines[number]].append(number)
    number = begin = 0
    while number + 1 < len(lines):
        name, fence = lines[number].removesuffix(":"), lines[number + 1]
        known = ends[fence, f"(end of {name})"] if _FENCE.fullmatch(fence) else []
        end = known[i] if (i := bisect.bisect(known, number + 2)) < len(known) else 0
        if end:
            if begin < number:
                yield "\n".join(lines[begin:number]) + "\n", ""
            num_lines = end - number - 3
            is_file = "://" not in name and not name.startswith("$ ")
            short = name.rpartition("/")[2] if is_file else name
            label = f"{short}, {num_lines} line{'' if num_lines == 1 else 's'}"
            yield "\n".join(lines[number : end + 1]), label
            # The line end behind an attachment belongs to the text.
            lines[end] = ""
            begin = number = end
        number += 1
    if begin or number + 1 >= len(lines):
        yield "\n".join(lines[begin:]), ""


def folded(message: str) -> str:
    """Return a message for the eye: of each attachment only the label, in brackets."""
    return "".join(f"[{label}]" if label else part for part, label in parts_of(message))


def without_attachments(message: str) -> str:
    return "".join(part for part, label in parts_of(message) if not label).strip("\n")


def message_with(attachments: Iterable[Attachment], message: str) -> str:
    """Return the message with the attachments before it."""
    return "\n\n".join([*(attachment.fenced for attachment in attachments), message])
