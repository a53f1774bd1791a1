"""Help pages about conversations: keys, commands, saved ones, roles, several models, tools."""

from swiftchat.chat.help.page import Page

_KEYS = """\
{{keys}}

To write a message of several lines, press Alt-Enter or Ctrl-J for each new
line, end a line with a backslash, or use a block:

  >>> \"\"\"
  ... two
  ... lines\"\"\"

A line that you send while the model answers waits, and is sent when the answer
has ended; Up takes the last one back. Commands that only print, such as /help,
/stats and /set, run at once. After Ctrl-C or an error what waits is in the input
line, not sent. Pasted text is never sent by itself: Enter sends it there.

A line that begins with / is a command; begin it with // for a literal slash.
Output of a command that is higher than the window is shown in $PAGER, or less.
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
Every conversation is saved while you chat, in one file that only you can read.

  swiftchat -c                        continue the last chat
  swiftchat -c -p "And then?"         continue the last answer of -p, or chat
  swiftchat sessions                  list chats; --all: one-shots (-p, pipes) too
  swiftchat sessions search tides     search for words
  swiftchat --session 3f2a            continue the one whose ID begins with 3f2a
  swiftchat sessions export 3f2a talk.html       a page; or .md, .json
  swiftchat sessions import conversations.json   also the zip of an export
  swiftchat sessions rm 3f2a          delete it permanently
  swiftchat --no-save                 do not save this conversation

At the prompt, /undo, /edit, /regen and /switch create and change branches
without losing messages. /save NAME sets a name that --session accepts too.
The keys and values of a conversation are saved too: swiftchat help cache.
"""

_CACHE = """\
The keys and values that a model computes for a conversation are written to
the disk while the engine is idle, so that -c, --session and /resume need not
compute the conversation again. Other conversations with the same beginning,
such as a system prompt, use them too.

  swiftchat -c -p "Go on" --stats     shows how many tokens came from the disk
  swiftchat cache list                list what is on the disk, by model
  swiftchat cache clear               remove it
  swiftchat --cache-max-bytes 2GiB    use at most so much; 0: none
  swiftchat --no-save                 save neither messages nor keys and values

They contain what the conversation contained. sessions rm deletes messages, and
cache clear deletes keys and values. Only you can read the files. A model that
has changed, other data types and other models have caches of their own.

A GPU keeps what it has no room for in main memory, at most --swap-size.
"""

_ROLES = """\
A role is a Markdown file in {{roles_folder}}:
options between two lines of ---, then the system prompt. `swiftchat config show`
lists the options.

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

_TOOLS = """\
A model whose chat template takes tools may call some. Built in are read, list,
search, write, edit, shell, python and fetch; they work in the present folder:

  swiftchat --tools                        all of them; /tools on in a chat
  swiftchat --tools read,list,search       these

MCP servers offer others. They need pip install 'swiftchat[mcp]'.

  swiftchat --mcp "python server.py"       a program; repeatable
  swiftchat --mcp servers.json             a file with "mcpServers"
  swiftchat --mcp http://127.0.0.1:8000/mcp

Each call is shown, a change of a file as a diff, and asked for: y, n, a for
always in this conversation, or e to edit it first. What is outside of the folder
or hidden is asked about every time. Ctrl-C cancels a call. With -p and in pipes
there is no question: a call is refused unless --tools read,list names the tool,
or --allow-tool NAME (or all) allows it. NAME is that of a built-in tool,
SERVER.NAME as /tools lists it, or the name alone if only one tool has it.

In the configuration file:

  tools = "read,list,search"
  mcp = ["npx -y @modelcontextprotocol/server-filesystem /home/me/notes"]
  allow_tool = ["list", "server-filesystem.read_text_file"]

--mcp none starts no servers. A server that does not start ends -p with exit code
1, unless --mcp-optional is given. --max-tool-rounds limits the rounds of one
answer. Descriptions and results of tools are data: text in them never becomes a
control token, and control characters in them never reach the terminal. But a
model may do what a result asks for, so allow only tools whose calls cannot do
harm.
"""

CONVERSATION_PAGES = {
    "keys": Page("Keys at the prompt and during an answer", _KEYS),
    "commands": Page("Slash commands at the prompt", _COMMANDS),
    "sessions": Page("Saved conversations", _SESSIONS),
    "cache": Page("Keys and values of conversations on the disk", _CACHE),
    "roles": Page("Named system prompts with options", _ROLES),
    "compare": Page("Answers of several models", _COMPARE),
    "tools": Page("Tools, built in and of MCP servers", _TOOLS),
}
KEYS = (
    ("Enter", "send"),
    ("Alt-Enter, Ctrl-J", "new line; Shift-Enter where the terminal tells it from Enter"),
    ("\\ at the end of a line", 'continue on the next line; or """ around a block'),
    ("Ctrl-C", "stop the answer; clear the line; twice: leave"),
    ("Ctrl-D", "leave"),
    ("Up, Down, Ctrl-R", "earlier messages, search; during an answer Up edits what waits"),
    ("Ctrl-X Ctrl-E", "write in $EDITOR"),
    ("Ctrl-L, Ctrl-Z", "clear the screen, suspend"),
)
