"""The slash commands of the conversation."""

import contextlib
import difflib
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from swiftchat.chat.commands.answer import ANSWER_ARGUMENTS, ANSWER_COMMANDS, AnswerCommands
from swiftchat.chat.commands.attach import ATTACH_COMMANDS, run_shell
from swiftchat.chat.commands.branches import BRANCH_COMMANDS
from swiftchat.chat.commands.models import MODEL_COMMANDS, known_models
from swiftchat.chat.commands.sessions import SESSION_COMMANDS, change_to, known_sessions
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.render.logprobs import as_terminal_text
from swiftchat.chat.render.stats import memory_line, stats_line
from swiftchat.chat.terminal.output import write
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import SwiftchatError, UsageError

if TYPE_CHECKING:
    from swiftchat.chat.repl.loop import Repl

COMMANDS: dict[str, tuple[str, str]] = {
    "/help": ("", "this list"),
    "/?": ("", ""),
    "/bye": ("", "leave (also /exit, /quit, Ctrl-D)"),
    "/exit": ("", ""),
    "/quit": ("", ""),
    "/clear": ("", "begin a new conversation (also /new)"),
    "/new": ("", ""),
    "/system": ("[TEXT]", 'show or change the system prompt; "" removes it'),
    "/set": ("NAME VALUE", "change a parameter: temperature, top_k, …"),
    "/show": ("[WHAT]", "info, system, template, parameters or alternatives"),
    "/stats": ("", "speed of the last answer, state of the cache"),
    **ANSWER_COMMANDS,
}
_GROUPS = {**BRANCH_COMMANDS, **SESSION_COMMANDS, **MODEL_COMMANDS, **ATTACH_COMMANDS}
COMMANDS |= {name: (arguments, text) for name, (arguments, text, _) in _GROUPS.items()}
COMMANDS["!CMD"] = ("", "run a command in the shell")
KEYS = (
    ("Enter", "send"),
    ("Alt-Enter, Ctrl-J", "new line"),
    ("\\ at a line's end", 'go on in the next; or """ around a block'),
    ("Ctrl-C", "stop the answer; clear the line; twice: leave"),
    ("Up, Down, Ctrl-R", "earlier messages, searching"),
    ("Ctrl-X Ctrl-E", "write in $EDITOR"),
    ("Ctrl-L, Ctrl-Z", "clear the screen, suspend"),
)
_PARAMETERS: dict[str, Callable[[str], Any]] = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repeat_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "seed": int,
    "max_tokens": int,
    "logprobs": lambda text: None if text == "off" else int(text),
}
_SHOWN = ("alternatives", "info", "parameters", "system", "template")
# What Tab offers after a command.
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "/set": (*_PARAMETERS, "stop", "system"),
    "/show": _SHOWN,
    **ANSWER_ARGUMENTS,
}


# What it offers that is looked up when it is pressed.
_FINDERS: dict[str, Callable[["Repl"], Mapping[str, str]]] = {
    "/resume": known_sessions,
    "/model": known_models,
}


def _exists(path: str) -> bool:
    # Not Path.exists: that raises for a name that is too long.
    return len(path) > 1 and os.path.exists(path)  # noqa: PTH110


class Commands:
    """Runs commands on a conversation at the prompt."""

    def __init__(self, repl: "Repl") -> None:
        self._repl = repl
        self._run: dict[str, Callable[[str], None]] = {
            "/help": self._help,
            "/?": self._help,
            "/clear": self._clear,
            "/new": self._clear,
            "/system": self._system,
            "/set": self._set,
            "/show": self._show,
            "/stats": self._stats,
            **AnswerCommands(repl).run,
        }
        self._run |= {name: partial(run, repl) for name, (_, _, run) in _GROUPS.items()}

    def words(self, name: str) -> Mapping[str, str]:
        """What Tab offers after a command, and what each of it is."""
        if name in _FINDERS:
            # In the middle of typing nobody wants to hear of a damaged store.
            with contextlib.suppress(SwiftchatError):
                return _FINDERS[name](self._repl)
        return dict.fromkeys(ARGUMENTS.get(name, ()), "")

    def is_command(self, text: str) -> bool:
        """Whether a line is for the program: `//` is a literal slash, an existing path is text."""
        if text.startswith("!") and "\n" not in text.strip():
            return True
        if not text.startswith("/") or text.startswith("//"):
            return False
        word = text.split(maxsplit=1)[0]
        if word in COMMANDS:
            return True
        # Several lines that begin with a slash are pasted text, such as a comment in C.
        return "\n" not in text.strip() and not (_exists(text.strip()) or _exists(word))

    def run(self, text: str) -> bool:
        """Carry out a line that `is_command`; False to leave. `UsageError` for a wrong one."""
        if text.startswith("!"):
            run_shell(self._repl, text[1:].strip())
            return True
        name, *rest = text.strip().split(maxsplit=1)
        argument = "".join(rest)
        if name in ("/bye", "/exit", "/quit"):
            return False
        if name not in self._run:
            near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"unknown command {name}", f"{hint}/help lists them")
        self._run[name](argument)
        return True

    def _help(self, argument: str) -> None:
        rows = [(f"{name} {args}".strip(), text) for name, (args, text) in COMMANDS.items() if text]
        width = max(len(left) for left, _ in (*rows, *KEYS))
        for left, right in (*rows, ("", ""), *KEYS):
            print(f"  {left:{width}}  {right}".rstrip())

    def _clear(self, argument: str) -> None:
        repl = self._repl
        goes_back = repl.conversation.tree and repl.autosave.keeps
        change_to(repl, Conversation(repl.conversation.system))
        print("a new conversation" + ("; /resume goes back" if goes_back else ""))

    def _system(self, argument: str) -> None:
        if argument:
            self._repl.conversation.system = "" if argument == '""' else argument
            print("the system prompt is changed")
        else:
            print(sanitize(self._repl.conversation.system or "no system prompt is set"))

    def _set(self, argument: str) -> None:
        words = argument.removeprefix("parameter ").split(maxsplit=1)
        known = ", ".join((*_PARAMETERS, "stop", "system"))
        if len(words) != 2:
            raise UsageError("/set needs a name and a value", f"names: {known}")
        name, text = words
        name = {"temp": "temperature", "num_predict": "max_tokens"}.get(name, name)
        if name == "system":
            self._system(text)
            return
        if name == "stop":
            self._repl.speaker.stops = [*self._repl.speaker.stops, text]
        elif name in _PARAMETERS:
            try:
                value = _PARAMETERS[name](text)
            except ValueError:
                kind = "a number" if _PARAMETERS[name] is float else "a whole number"
                hint = f"as /set {name} {_PARAMETERS[name]('1')}; /show parameters says what is set"
                raise UsageError(f"{name} must be {kind}, not {text!r}", hint) from None
            self._repl.speaker.set(name, value)
        else:
            raise UsageError(f"no parameter {name!r}", f"names: {known}")
        print(f"{name} = {sanitize(text)}")

    def _show(self, argument: str) -> None:
        match argument or "info":
            case "info":
                from swiftchat.chat.model.description import describe, fact_text, label

                facts = describe(
                    self._repl.speaker.model,
                    self._repl.speaker.tokenizer,
                    self._repl.config.kv_dtype,
                )
                for key, value in facts.items():
                    print(f"{label(key):22}  {fact_text(key, value)}")
            case "system":
                self._system("")
            case "template":
                choice = self._repl.speaker.template
                source = choice.source or self._repl.speaker.tokenizer.template
                print(sanitize(source or "no template"))
            case "parameters":
                params = self._repl.speaker.params
                for name in _PARAMETERS:
                    value = getattr(params, name)
                    print(f"{name:18} {'–' if value is None else value}")
                print(f"{'stop':18} {sanitize(repr(self._repl.speaker.stops))}")
            case "alternatives":
                self._alternatives()
            case other:
                raise UsageError(f"/show has no {other!r}", f"it has {', '.join(_SHOWN)}")

    def _alternatives(self) -> None:
        answer, speaker = self._repl.last_answer, self._repl.speaker
        if answer is None or not answer.likelihoods:
            raise UsageError(
                "nobody asked how likely the last answer's tokens are",
                "/set logprobs 5, then /regen",
            )
        write(as_terminal_text(answer, speaker.tokenizer, self._repl.style))

    def _stats(self, argument: str) -> None:
        engine = self._repl.speaker.engine
        if self._repl.last_answer is not None and engine.info is not None:
            print(stats_line(self._repl.last_answer, engine.info.load_s))
        else:
            print("no answer yet")
        if engine.info is not None:
            print(sanitize(memory_line(engine.info)))
            for name, value in engine.stats().items():
                print(f"{name.replace('_', ' '):16} {value}")
