"""What is typed while no prompt reads it: whole lines, which wait to be sent, and a draft.

The keys have the meaning that they have at the prompt. A draft with pasted text never becomes a
line: the user sends it from the prompt.
"""

import codecs
import re
from dataclasses import dataclass, replace

from swiftchat.chat.repl.message import continued
from swiftchat.chat.repl.pastes import Pastes
from swiftchat.chat.terminal.input_scanner import InputEvent

_KEY = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)?|.", re.DOTALL)
_LEFT, _RIGHT = ("\x1b[D", "\x02"), ("\x1b[C", "\x06")
_HOME, _END = ("\x1b[H", "\x1b[1~", "\x01"), ("\x1b[F", "\x1b[4~", "\x05")
_UP = ("\x1b[A", "\x10")
_NEW_LINE = ("\n", "\x1b\r", "\x1b\n")
_LAST_WORD = re.compile(r"\S*\s*\Z")


@dataclass(frozen=True)
class Typed:
    """Lines that wait, the first one first, and the draft behind them with its cursor.

    Long pastes in the draft are placeholders. `rest` is the beginning of a character.
    """

    lines: tuple[str, ...] = ()
    draft: str = ""
    cursor: int = 0
    has_paste: bool = False
    rest: bytes = b""

    def after(self, event: InputEvent, pastes: Pastes) -> "Typed":
        """Return what an event makes of it."""
        if event.is_paste:
            pasted = pastes.fold_paste(event.data.decode("utf-8", "replace"))
            return replace(self._inserted(pasted), has_paste=True)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(self.rest + event.data)
        typed = replace(self, rest=decoder.getstate()[0])
        for key in _KEY.findall(text):
            typed = typed._pressed(key)
        return typed if typed.draft else replace(typed, has_paste=False)

    def held(self) -> "Typed":
        """Return the same with the lines in the draft, which nothing sends."""
        draft = "\n".join((*self.lines, self.draft))
        return replace(self, lines=(), draft=draft, cursor=len(draft))

    def _pressed(self, key: str) -> "Typed":
        before, behind = self.draft[: self.cursor], self.draft[self.cursor :]
        if key == "\r":
            return self._entered()
        if key in _NEW_LINE:
            return self._inserted("\n")
        if key in _UP:
            return self._taken_back()
        if key in _LEFT:
            return replace(self, cursor=max(0, self.cursor - 1))
        if key in _RIGHT:
            return replace(self, cursor=min(len(self.draft), self.cursor + 1))
        if key in _HOME:
            return replace(self, cursor=before.rfind("\n") + 1)
        if key in _END:
            return replace(self, cursor=len(before) + len(behind.split("\n")[0]))
        if key in ("\x7f", "\b"):
            return self._with(before[:-1], behind)
        if key == "\x1b[3~":
            return self._with(before, behind[1:])
        if key == "\x15":  # Ctrl-U
            return self._with(before[: before.rfind("\n") + 1], behind)
        if key == "\x0b":  # Ctrl-K
            return self._with(before, behind.removeprefix(behind.split("\n")[0]))
        if key == "\x17":  # Ctrl-W
            return self._with(_LAST_WORD.sub("", before), behind)
        is_text = len(key) == 1 and key >= " " and not "\x7f" <= key < "\xa0"
        return self._inserted(key) if is_text else self

    def _with(self, before: str, behind: str) -> "Typed":
        return replace(self, draft=before + behind, cursor=len(before))

    def _inserted(self, text: str) -> "Typed":
        return self._with(self.draft[: self.cursor] + text, self.draft[self.cursor :])

    def _entered(self) -> "Typed":
        if self.has_paste:
            return self._inserted("\n")
        longer = continued(self.draft, self.cursor)
        if longer is not None:
            return replace(self, draft=longer[0], cursor=longer[1])
        lines = (*self.lines, self.draft) if self.draft.strip() else self.lines
        return replace(self, lines=lines, draft="", cursor=0)

    def _taken_back(self) -> "Typed":
        """Move the last line to the beginning of the draft."""
        if not self.lines:
            return self
        *lines, last = self.lines
        draft = f"{last}\n{self.draft}" if self.draft else last
        return replace(self, lines=tuple(lines), draft=draft, cursor=len(draft))
