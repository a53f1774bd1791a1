"""Help pages for scripts and settings: exit codes, configuration."""

from swiftchat.chat.help.page import Page

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
this file overrides the model's own generation_config.json. A note at the start
names SWIFTCHAT_ variables that nothing reads.

A project file is .swiftchat.toml in the working folder, or the nearest one
above it up to your home folder. It sets only model (a name, or a path inside
the project), role and sampling parameters. Other keys, and the file of another
user, are ignored with a warning.

  swiftchat config show               print every setting and its origin
  swiftchat config edit               open the file in $EDITOR, with all options
  swiftchat config path               print the path of the file

Colors: theme is auto, dark, light, harbor, ember, paper or none. auto asks the
terminal for its background, or uses COLORFGBG. harbor and ember (dark) and paper
(light) have colors of 24 bit; a terminal that has only 16, or does not set
COLORTERM, gets dark or light. swiftchat config theme shows all of them. colors
changes parts of a theme:

  colors = "question=bold bright_blue,code=red"

The parts are {{colors}}.

announce = "off" leaves out the window title, the prompt marks (OSC 133) and
the bell or notification after an answer of more than 10 s, which terminals
that are known to take them get; tmux gets the title and the bell.

Other variables: HF_TOKEN (downloads), NO_COLOR, FORCE_COLOR, ACCESSIBLE,
EDITOR, FORCE_HYPERLINK (1 or 0: whether the terminal takes links).
"""

SETUP_PAGES = {
    "exit-codes": Page("Exit codes for scripts", _EXIT_CODES),
    "config": Page("Configuration file and environment variables", _CONFIG),
}
EXIT_CODES = (
    (0, "done"),
    (1, "internal error, or a tool server that does not start"),
    (2, "usage"),
    (3, "model not found"),
    (4, "device or memory"),
    (5, "context overflow"),
    (6, "network"),
    (7, "bad model data"),
    (8, "file system"),
    (129, "ended by SIGHUP: the terminal was closed"),
    (130, "interrupted (Ctrl-C)"),
    (141, "the reader of stdout closed the pipe"),
    (143, "ended by SIGTERM"),
)
