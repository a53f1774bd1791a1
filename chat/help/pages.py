"""Pages of `swiftchat help TOPIC`: plain text with generated tables and values.

A word in double braces, such as {{keys}}, is replaced by the result of its function in `FILLED`.
"""

from collections.abc import Callable
from typing import NamedTuple

from swiftchat.chat.help.columns import two_columns
from swiftchat.chat.options.parameters import ALL_PARAMETERS


class Page(NamedTuple):
    summary: str
    text: str


_KEYS = """\
{{keys}}

To write a message of several lines, press Alt-Enter or Ctrl-J for each new
line, end a line with a backslash, or use a block:

  >>> \"\"\"
  ... two
  ... lines\"\"\"

Pasted text is never sent by itself. Text that is typed while the model
answers or a command runs waits in the input line; Enter sends it there. A line
that begins with / is a command; begin it with // for a literal slash.
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

_TOOLS = """\
MCP servers offer tools that a model may call: read files, search, compute. Needs
pip install 'swiftchat[mcp]', and a model whose chat template takes tools.

  swiftchat --mcp "python server.py"       a program; repeatable
  swiftchat --mcp servers.json             a file with "mcpServers"
  swiftchat --mcp http://127.0.0.1:8000/mcp

Each call is shown with its arguments and asked for: y, n, or a for always in
this conversation. With -p and in pipes there is no question: a call is refused
unless --allow-tool NAME (or all) allows it. NAME is that of the server, or
SERVER.NAME as /tools lists it. Ctrl-C cancels a call.

In the configuration file:

  mcp = ["npx -y @modelcontextprotocol/server-filesystem /home/me/notes"]
  allow_tool = ["server-filesystem.read_text_file"]

--mcp none starts no servers. --max-tool-rounds limits the rounds of one answer.
Descriptions and results of tools are data: text in them never becomes a control
token, and control characters in them never reach the terminal. But a model may
do what a result asks for, so allow only tools whose calls cannot do harm.
"""

_SESSIONS = """\
Every conversation is saved while you chat, in one file that only you can read.

  swiftchat -c                        continue the last conversation
  swiftchat sessions                  list conversations
  swiftchat sessions search tides     search for words
  swiftchat --session 3f2a            continue the one whose ID begins with 3f2a
  swiftchat sessions export 3f2a talk.md
  swiftchat sessions import conversations.json
  swiftchat sessions rm 3f2a          delete it permanently
  swiftchat --no-save                 do not save this conversation

At the prompt, /undo, /edit, /regen and /switch create and change branches
without losing messages. /save NAME sets a name that --session accepts too.
"""

_ROLES = """\
A role is a Markdown file in {{roles_folder}}: options between two lines of
---, then the system prompt. The options are those of `swiftchat help config`.

  ---
  model: qwen3:8b
  temperature: 0.2
  ---
  You review Python code. Be brief.

If the file is named reviewer.md, use the role as follows:

  swiftchat --role reviewer
  git diff | swiftchat --role reviewer -p "Review this:"

A flag on the command line overrides the role.

A role may also have a prompt, and variables, {{name}}, in both texts. A
variable without a default must be given. \\{{name}} is plain text.

  ---
  prompt: "Review this {{lang}} code:"
  variables:
    lang: python
    focus:
  ---
  You review {{lang}} code. You look for {{focus}}.

  git diff | swiftchat --role review -v focus="memory leaks"
  >>> /role review lang=c focus=races

A value is plain text: it contains no variables and never becomes a control
token. Without -p, the prompt is the message, or the beginning of the first
message at the prompt. /role lists the roles, /role show review prints one.
"""

_COMPARE = """\
Several models answer one prompt, one after the other, under headings:

  swiftchat -m A -m B -p "Why is the sky blue?"
  >>> /compare B                      answer the last question with B too

-m loads each model after the one before it is closed. /compare keeps the
current model loaded if there is memory for both. A model that fails prints its
error, and the others answer; the exit code is that of the first failure.

The answers are branches of one conversation. It continues with the first model
and its answer; /switch takes another answer.

--json prints {"schema": 1, "answers": […]}: for each model the object of a
single answer, and "error", which is null or has message, hint and exit_code.
--stream-json prints the lines of a single answer, each with "index", the number
of the model from 0; a model that fails ends with the event "error".
"""

_TEMPLATES = """\
A chat template turns messages into the text format that a model was trained
on. Most models contain their template. A model without one gets the template
of its family if the family is certain; otherwise choose a template:

  swiftchat -m old-model --template vicuna
  swiftchat -m old-model --template ./mine.jinja
  swiftchat -m base-model --no-template -p "Once upon a time"

Built in: {{templates}}.

/show template prints the template in use. Templates run in a sandbox, and text
that you type never becomes a control token.
"""

_FORMATS = """\
An answer can be limited to a format. Tokens that would leave it are never
chosen, so the answer always matches, whatever the model and the temperature.

  swiftchat -p "Describe Bob." --schema person.json   a JSON schema
  swiftchat -p "Describe Bob." --schema '{"type": …}'  the schema itself
  swiftchat -p "Describe Bob." --json-object          any JSON object
  swiftchat -p "When?" --regex '[0-9]{4}-[0-9]{2}'    a regular expression
  swiftchat -p "Yes or no?" --grammar answer.lark     a grammar, Lark or GBNF
  >>> /schema person.json

The schema is also added to the system prompt, unless --no-schema-prompt is
given. A model that thinks does so freely; the format applies to its answer.

With a schema or --json-object, stdout receives exactly one JSON document. If
the context or -n ends the answer before, stdout stays empty, the incomplete
answer is on stderr, and the exit code is 5.

A schema with a keyword that cannot be enforced, such as "not", is an error
that names its place.
"""

_SAMPLING = """\
Each token is chosen in this order:

  1  logit_bias is added to the logits
  2  repeat_penalty, presence_penalty and frequency_penalty, of the last
     repeat_last_n tokens; then dry
  3  bans: no_repeat_ngram, ban, and end tokens before min_tokens
  4  temperature; 0 takes the most probable token and ends here
  5  filters: top_k, typical_p, min_p, top_p

A parameter is a flag (--top-k 40), a variable (SWIFTCHAT_TOP_K=40), a line of
the configuration file or of a role (top_k = 40), or is set at the prompt:

  >>> /set top_k 40
  >>> /set stop "\\n\\n"
  >>> /set ban delve
  >>> /set logit_bias yes=5
  >>> /set top_k off

ban bans the usual tokens of a text, with and without a space before it; other
spellings stay possible. logit_bias changes single tokens that write the text,
with and without a space. In files, several texts are a list: ban = ["a", "b"].

Parameters that you do not set come from the model's generation_config.json;
off returns to them. Print the probability of each token, before all steps:

  swiftchat -p "Heads or tails?" --logprobs 3 --json
  >>> /set logprobs 5
  >>> /show alternatives

swiftchat help parameters lists all of them.
"""

_PARAMETERS = """\
Names for flags, variables, files and /set; swiftchat help sampling says how
they work together.

{{parameters}}
"""

_GPU = """\
NVIDIA GPUs of compute capability 8.0 or newer run swiftchat's own kernels,
compiled on first use. Older GPUs run torch's operators. Without a GPU, models
run on the CPU.

  pip install 'swiftchat[cuda]'       install compiler, headers and bindings
  swiftchat doctor                    check the installation
  swiftchat doctor -m NAME            show what computes each part of a model
  swiftchat show NAME                 show the memory that a model needs
  swiftchat -m NAME --device cuda:1   use only this GPU
  swiftchat -m NAME --tp 2            use two GPUs; --tp auto: as few as needed
  swiftchat -m NAME --ctx-size 8192   use a smaller KV cache to save memory
  swiftchat bench -m NAME             measure the speed
"""

_HOSTS = """\
An engine can run as a server, on this machine or on another, on one GPU or on
all GPUs of several hosts. It keeps running while terminals connect and leave.

On the machine with the GPUs:

  python -m swiftchat.engine.worker NAME --listen 127.0.0.1:4000
  torchrun ... -m swiftchat.engine.worker NAME     (docs/several-gpus.md)

It prints its address and the path of its token file. On the same machine:

  swiftchat --connect 127.0.0.1:4000

From another machine, copy the token file once and forward the port:

  scp HOST:.local/state/swiftchat/engine-4000.token FILE
  ssh -f -N -L 4000:127.0.0.1:4000 HOST
  swiftchat --connect 127.0.0.1:4000 --token-file FILE

With --listen ./engine.sock the engine needs no port and no token:

  swiftchat --connect ./engine.sock

The engine determines the model, tokenizer, device and context. Conversations
are saved on your machine. An engine serves up to 16 terminals at once.
"""

_SERVE = """\
swiftchat serve keeps a model loaded. Chats and one-shots with the same model
and the same engine options use it instead of loading the model.

  swiftchat serve qwen3:8b            keep it loaded until Ctrl-C
  swiftchat serve --keep-alive 10m    end after 10 minutes without use
  swiftchat -m qwen3:8b -p "Hi"       answers at once
  swiftchat --no-attach               load the model in any case
  swiftchat ps                        list running engines
  swiftchat stop qwen3:8b             end one; --all: end all

Clients of OpenAI's HTTP API can use the model too:

  pip install 'swiftchat[serve]'
  swiftchat serve --openai 127.0.0.1:8080

They must send the token that is printed at the start, or that of --token-file
or SWIFTCHAT_API_TOKEN. Other machines can connect only with --allow-remote.
docs/serving.md lists what the API can do.
"""

_EXIT_CODES = """\
{{exit_codes}}

An error prints one line `error:` and one line `hint:` to stderr. stdout
contains the answer only.

  swiftchat -p "Hi" -m qwen3:8b --offline || echo "exit code $?"
"""

_CONFIG = """\
Set options in {{config_path}}:

  model = "qwen3:8b"
  temperature = 0.5
  accessible = true

or in a variable: SWIFTCHAT_TEMPERATURE=0.5 swiftchat. A flag overrides the
variable, the variable a role, the role overrides the continued conversation,
the conversation overrides the project file, that overrides this file, and
this file overrides the model's own generation_config.json.

A project file is .swiftchat.toml in the working folder, or the nearest one
above it up to your home folder. It sets only model (a name, or a path inside
the project), role and sampling parameters. Other keys, and the file of another
user, are ignored with a warning.

  swiftchat config show               print every setting and its origin
  swiftchat config path               print the path of the file

Colors: theme is auto, dark, light or none; auto asks the terminal for its
background, or uses COLORFGBG. colors changes parts of a theme:

  colors = "code=bright_blue,keyword=bold red"

The parts are {{colors}}.

Other variables: HF_TOKEN (downloads), NO_COLOR, FORCE_COLOR, ACCESSIBLE,
EDITOR.
"""

PAGES = {
    "keys": Page("Keys at the prompt and during an answer", _KEYS),
    "commands": Page("Slash commands at the prompt", _COMMANDS),
    "sessions": Page("Saved conversations", _SESSIONS),
    "roles": Page("Named system prompts with options", _ROLES),
    "compare": Page("Answers of several models", _COMPARE),
    "tools": Page("Tools of MCP servers", _TOOLS),
    "templates": Page("Chat templates", _TEMPLATES),
    "formats": Page("JSON schemas, regular expressions and grammars", _FORMATS),
    "sampling": Page("Temperature and other sampling options, logprobs", _SAMPLING),
    "parameters": Page("All sampling parameters", _PARAMETERS),
    "gpu": Page("Running models on GPUs", _GPU),
    "serve": Page("Keeping a model loaded, and the HTTP API", _SERVE),
    "hosts": Page("Remote engines, and engines on several hosts", _HOSTS),
    "exit-codes": Page("Exit codes for scripts", _EXIT_CODES),
    "config": Page("Configuration file and environment variables", _CONFIG),
}
KEYS = (
    ("Enter", "send"),
    ("Alt-Enter, Ctrl-J", "new line"),
    ("\\ at the end of a line", 'continue on the next line; or """ around a block'),
    ("Ctrl-C", "stop the answer; clear the line; twice: leave"),
    ("Ctrl-D", "leave"),
    ("Up, Down, Ctrl-R", "earlier messages, search"),
    ("Ctrl-X Ctrl-E", "write in $EDITOR"),
    ("Ctrl-L, Ctrl-Z", "clear the screen, suspend"),
)
EXIT_CODES = (
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
    (141, "the reader of stdout closed the pipe"),
)


def page(topic: str, commands: str) -> str:
    """Return the text of a page; raise `KeyError` for an unknown topic.

    `commands` is the table of slash commands.
    """
    text = PAGES[topic].text
    for name, fill in {"commands": lambda: commands, **FILLED}.items():
        mark = f"{{{{{name}}}}}"
        if mark in text:
            text = text.replace(mark, fill())
    return text


def _keys() -> str:
    return two_columns(KEYS)


def _parameters() -> str:
    rows = []
    for one in ALL_PARAMETERS:
        also = f" Also {', '.join(one.aliases)}." if one.aliases else ""
        rows.append((one.name, f"{one.help}{also}"))
    return two_columns(rows)


def _exit_codes() -> str:
    return "\n".join(f"{code:5}  {meaning}" for code, meaning in EXIT_CODES)


def _templates() -> str:
    from swiftchat.tokenizer.template.builtin import BUILT_IN

    return ", ".join(BUILT_IN)


def _roles_folder() -> str:
    from swiftchat.chat.options.roles import roles_folder

    return str(roles_folder())


def _config_path() -> str:
    from swiftchat.chat.options.config import config_path

    return str(config_path())


def _colors() -> str:
    import textwrap
    from dataclasses import fields

    from swiftchat.chat.terminal.theme import Theme

    names = "The parts are " + ", ".join(field.name for field in fields(Theme))
    return textwrap.fill(names, 78).removeprefix("The parts are ")


FILLED: dict[str, Callable[[], str]] = {
    "keys": _keys,
    "parameters": _parameters,
    "exit_codes": _exit_codes,
    "templates": _templates,
    "roles_folder": _roles_folder,
    "config_path": _config_path,
    "colors": _colors,
}
