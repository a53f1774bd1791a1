"""The command about adapters: `/lora`."""

from collections.abc import Mapping

from swiftchat.chat.options.parameter import shown
from swiftchat.chat.slash.command import Command
from swiftchat.chat.slash.state import ChatState
from swiftchat.chat.terminal.output import print_line
from swiftchat.errors import UsageError
from swiftchat.weights.files.paths import only_path, split_words

_USAGE = "/lora load DIR[=SCALE], use NAME[=SCALE] …, off or list"


def lora(state: ChatState, argument: str) -> None:
    """Load adapters, or choose those of the next answers."""
    adapters, (action, *rest) = (
        state.chat_model.adapters,
        split_words(argument, "/lora") or ["list"],
    )
    match action:
        case "load" if rest:
            adapters.load(only_path(argument.split(maxsplit=1)[1], "/lora load"))
        case "use" if rest:
            adapters.use(rest)
        case "off" if not rest:
            adapters.off()
        case "list" if not rest:
            pass
        case _:
            raise UsageError(f"/lora cannot {shown(argument)}", _USAGE)
    if not adapters.loaded:
        print_line("no adapter is loaded")
    for name, adapter in adapters.loaded.items():
        scale = adapters.in_use.get(name)
        mark = " " if scale is None else "*"
        weight = "" if scale in (None, 1.0) else f", scale {scale:g}"
        print_line(f"{mark} {name}  {adapter.kind}, rank {adapter.max_rank}{weight}")


def _complete(state: ChatState) -> Mapping[str, str]:
    actions = {
        "load": "load an adapter and use it",
        "use": "use these adapters only",
        "off": "use none",
        "list": "list the adapters",
    }
    return actions | dict.fromkeys(state.chat_model.adapters.loaded, "a loaded adapter")


ADAPTER_COMMANDS = (
    Command(
        "/lora",
        "[load|use|off|list]",
        "load LoRA adapters, or choose among them",
        lora,
        completion=_complete,
        details="DIR and NAME may end with =SCALE: 0 is the base model, 1 the adapter as trained.\n"
        "The model stays loaded; a * marks the adapters in use. See /help adapters.",
    ),
)
