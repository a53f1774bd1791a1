"""Questions to the user before something is run or changed, and changes of what will be run."""

from collections.abc import Mapping

from swiftchat.chat.terminal.editor import edit_text
from swiftchat.chat.terminal.keyboard import Keyboard
from swiftchat.chat.terminal.output import write

_WORDS = {"y": "yes", "n": "no", "a": "always", "e": "edit", "s": "show"}


def ask_consent(keyboard: Keyboard, question: str, choices: Mapping[str, str]) -> str:
    """Return the letter that the user chooses; an empty line and the end of the input mean `n`.

    `choices` says what each letter means, which is told after another answer. Their words, such as
    `yes`, are taken as well. Raises `KeyboardInterrupt` at Ctrl-C.
    """
    letters = "/".join("N" if letter == "n" else letter for letter in choices)
    while True:
        try:
            reply = keyboard.ask(f"{question} [{letters}] ")
        except KeyboardInterrupt:
            write("\n")  # the question is left without an answer
            raise
        word = "n" if reply is None else reply.strip().lower() or "n"
        for letter in choices:
            if word in (letter, _WORDS[letter]):
                return letter
        write(", ".join(f"{letter} = {meaning}" for letter, meaning in choices.items()) + "\n")


def changed_by_user(keyboard: Keyboard, text: str, extension: str = ".txt") -> str | None:
    """Return a text as the user has changed it; None at Ctrl-D and if nothing was saved.

    One line is changed in place, several in the user's editor. Raises `UsageError` if that cannot
    be started, and `KeyboardInterrupt` at Ctrl-C.
    """
    with keyboard.lent():
        if "\n" in text:
            return edit_text(text, extension)
        # Imported here, because it would delay the prompt of a chat.
        from prompt_toolkit import prompt

        try:
            return prompt("$ ", default=text).strip()
        except EOFError:
            return None
