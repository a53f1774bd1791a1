"""The pages of `swiftchat help TOPIC`: plain text, and what the program itself knows put in.

A word in double braces, such as {{keys}}, stands on a line of its own and becomes that table.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple


class Page(NamedTuple):
    summary: str
    text: str


_KEYS = """\
{{keys}}

A message of several lines: Alt-Enter or Ctrl-J for each new line, a backslash
at a line's end, or a block:

  >>> \"\"\"
  ... two
  ... lines\"\"\"

Pasting never sends. What you type while an answer comes is kept for the next
message. A line that begins with / is a command; // is a literal slash.
"""

_COMMANDS = """\
Type these at the prompt; Tab completes them.

{{commands}}

  >>> /set temperature 0
  >>> /read src/*.py
  >>> /edit 1
  >>> !git diff
  >>> /attach
"""

_SESSIONS = """\
Every conversation is kept while you talk, in one file that only you can read.

  swiftchat -c                        go on with the last one
  swiftchat sessions                  list them
  swiftchat sessions search tides     find words in them
  swiftchat --session 3f2a            go on with the one whose ID begins so
  swiftchat sessions export 3f2a talk.md
  swiftchat sessions import conversations.json
  swiftchat sessions rm 3f2a          remove it for good
  swiftchat --no-save                 keep nothing this time

At the prompt: /undo, /edit, /regen and /switch make and change branches, and
lose nothing; /save NAME gives a name that --session takes too.
"""

_ROLES = """\
A role is a Markdown file in {{roles_folder}}: options between two lines of
---, then the system prompt. The options are those of `swiftchat help config`.

  ---
  model: qwen3:8b
  temp: 0.2
  ---
  You review Python code. Be brief.

Saved as reviewer.md, it is there by its name:

  swiftchat --role reviewer
  git diff | swiftchat --role reviewer -p "Review this:"

A flag on the command line wins over the role.
"""

_TEMPLATES = """\
A chat template turns messages into the text that a model was trained on.
Models bring their own; nothing needs to be chosen then. For those that bring
none it is that of their family where it is certain, otherwise you say:

  swiftchat -m old-model --template vicuna
  swiftchat -m old-model --template ./mine.jinja
  swiftchat -m base-model --no-template -p "Once upon a time"

Built in: {{templates}}.

/show template prints the one in use. Templates run in a sandbox, and what you
type never becomes a control token.
"""

_SAMPLING = """\
How the next token is chosen, in this order; at the prompt /set changes the
same things.

  --repeat-penalty, --presence-penalty, --frequency-penalty
                       discourage what was said already
  --temp 0.7           0 takes the likeliest; more than 1 is wild
  --top-k 40           only the 40 likeliest
  --min-p 0.05         only those at least 0.05 times as likely as the first
  --top-p 0.95         only the likeliest that together have 95 %
  --seed 7             the same answer again, on the same device
  -n, --max-tokens     longest answer;  --stop TEXT  ends before this text

Where nobody says anything, the model's own generation_config.json does.

How sure the model was of each token, before all of the above:

  swiftchat -p "Heads or tails?" --logprobs 3 --json
  >>> /set logprobs 5
  >>> /show alternatives
"""

_GPU = """\
An NVIDIA GPU of compute capability 8.0 or newer runs our own kernels, compiled
when they are first needed. Others run torch's operators; without a GPU it is
the CPU.

  pip install 'swiftchat[cuda]'       compiler, headers and driver's bindings
  swiftchat doctor                    what is here and what is missing
  swiftchat show NAME                 what a model needs, and where it fits
  swiftchat -m NAME --device cuda:1   this GPU and no other
  swiftchat -m NAME --tp 2            divided among two GPUs; or --tp auto
  swiftchat -m NAME --ctx-size 8192   a smaller cache, where memory is short
  swiftchat bench -m NAME             how fast it is here
"""

_HOSTS = """\
An engine that runs by itself, on this machine or elsewhere, on one GPU or on
all GPUs of several hosts. Terminals attach to it and leave it; it stays.

Where the GPUs are:

  python -m swiftchat.engine.worker NAME
  torchrun ... -m swiftchat.engine.worker NAME     (docs/several-gpus.md)

It tells where it listens and where its token is. Where you are:

  swiftchat --connect 127.0.0.1:4000
  swiftchat --connect 127.0.0.1:4000 --token-file FILE
  swiftchat --connect ./engine.sock

From another machine the port is forwarded, and the token's file brought once:

  ssh -N -L 4000:127.0.0.1:4000 HOST
  scp HOST:.local/state/swiftchat/engine-4000.token FILE

The model, its device and the context are the engine's; all else is as usual,
and conversations are kept where you are. The tokenizer comes from the engine.
Up to 16 terminals are answered at the same time.
"""

_EXIT_CODES = """\
{{exit_codes}}

Errors are one line `error:` and one line `hint:` on stderr; stdout has the
answer and nothing else.

  swiftchat -p "Hi" -m qwen3:8b --offline || echo "exit code $?"
"""

_CONFIG = """\
Options can stand in {{config_path}}:

  model = "qwen3:8b"
  temp = 0.5
  accessible = true

or in a variable: SWIFTCHAT_TEMP=0.5 swiftchat. A flag wins over the variable,
that over a role, a role over the conversation gone on with, that over the
file, and the file over the model's own generation_config.json.

  swiftchat config show               every setting and where it comes from
  swiftchat config path               where the file is

Also read: HF_TOKEN (downloads), NO_COLOR, FORCE_COLOR, ACCESSIBLE, EDITOR.
"""

PAGES = {
    "keys": Page("Keys while you type and while it answers", _KEYS),
    "commands": Page("What begins with / at the prompt", _COMMANDS),
    "sessions": Page("Conversations that are kept", _SESSIONS),
    "roles": Page("A system prompt and options under a name", _ROLES),
    "templates": Page("How messages become text for a model", _TEMPLATES),
    "sampling": Page("Temperature and the rest, and how sure it was", _SAMPLING),
    "gpu": Page("What a GPU needs", _GPU),
    "hosts": Page("Engines elsewhere, and on several hosts", _HOSTS),
    "exit-codes": Page("What scripts can tell", _EXIT_CODES),
    "config": Page("The configuration file and variables", _CONFIG),
}


def page(topic: str) -> str:
    """The text of a page, everything put in; `KeyError` for no topic."""
    text = PAGES[topic].text
    for name, fill in _FILLED.items():
        mark = f"{{{{{name}}}}}"
        if mark in text:
            text = text.replace(mark, fill())
    return text


def two_columns(rows: Iterable[tuple[str, str]]) -> str:
    """Rows under each other, indented by two; a long left side gets a line of its own."""
    rows = list(rows)
    width = max(len(left) for left, _ in rows if len(left) <= 28)
    lines = []
    for left, right in rows:
        lines += [f"  {left}"] if len(left) > width else []
        lines.append(f"  {'' if len(left) > width else left:{width}}  {right}".rstrip())
    return "\n".join(lines)


def _commands() -> str:
    from swiftchat.chat.commands.registry import COMMANDS

    return two_columns(command.help_row for command in COMMANDS)


def _keys() -> str:
    from swiftchat.chat.commands.registry import KEYS

    return two_columns(KEYS)


def exit_codes() -> list[tuple[int, str]]:
    """Every exit code and what it says."""
    return [
        (0, "done"),
        (1, "internal error"),
        (2, "usage"),
        (3, "model not found"),
        (4, "device or memory"),
        (5, "context overflow"),
        (6, "network"),
        (7, "bad model data"),
        (8, "file system"),
        (130, "interrupted (Ctrl-C)"),
        (141, "who read the answer has gone"),
    ]


def _exit_codes() -> str:
    return "\n".join(f"{code:5}  {meaning}" for code, meaning in exit_codes())


def _templates() -> str:
    from swiftchat.tokenizer.template.builtin import BUILT_IN

    return ", ".join(BUILT_IN)


def _roles_folder() -> str:
    from swiftchat.chat.options.roles import roles_folder

    return str(roles_folder())


def _config_path() -> str:
    from swiftchat.chat.options.config import config_path

    return str(config_path())


_FILLED: dict[str, Callable[[], str]] = {
    "commands": _commands,
    "keys": _keys,
    "exit_codes": _exit_codes,
    "templates": _templates,
    "roles_folder": _roles_folder,
    "config_path": _config_path,
}
