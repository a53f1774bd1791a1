"""Commands about settings and statistics: `/system`, `/set`, `/show`, `/stats`."""

from collections.abc import Callable
from typing import Any

from swiftchat.chat.commands.command import Command
from swiftchat.chat.commands.state import ChatState
from swiftchat.chat.model.description import describe, property_label, property_text
from swiftchat.chat.render.logprobs import as_terminal_text
from swiftchat.chat.render.stats import memory_line, stats_line
from swiftchat.chat.terminal.output import print_notice, write
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import UsageError

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
_OTHER_NAMES = {"temp": "temperature", "num_predict": "max_tokens"}
_MAX_ROWS = 200  # of /show
_SETTABLE = (*_PARAMETERS, "stop", "system")


def system(state: ChatState, argument: str) -> None:
    if argument:
        state.conversation.system = "" if argument == '""' else argument
        print("the system prompt is changed")
    else:
        print(sanitize(state.conversation.system or "no system prompt is set"))


def set_parameter(state: ChatState, argument: str) -> None:
    words = argument.removeprefix("parameter ").split(maxsplit=1)
    names = f"names: {', '.join(_SETTABLE)}"
    if len(words) != 2:
        raise UsageError("/set needs a name and a value", names)
    name, text = _OTHER_NAMES.get(words[0], words[0]), words[1]
    if name == "system":
        system(state, text)
        return
    if name == "stop":
        state.chat_model.stops = [*state.chat_model.stops, text]
    elif name in _PARAMETERS:
        state.chat_model.set_parameter(name, _parsed(name, text))
    else:
        raise UsageError(f"no parameter {name!r}", names)
    print(f"{name} = {sanitize(text)}")


def _parsed(name: str, text: str) -> Any:
    parse = _PARAMETERS[name]
    try:
        return parse(text)
    except ValueError:
        kind = "a number" if parse is float else "a whole number"
        hint = f"as /set {name} {parse('1')}; /show parameters lists the current values"
        raise UsageError(f"{name} must be {kind}, not {text!r}", hint) from None


def _show_info(state: ChatState) -> None:
    model, tokenizer = state.chat_model.model, state.chat_model.tokenizer
    for key, value in describe(model, tokenizer, state.config.kv_dtype).items():
        print(f"{property_label(key):22}  {property_text(key, value)}")


def _show_system(state: ChatState) -> None:
    system(state, "")


def _show_template(state: ChatState) -> None:
    source = state.chat_model.template.source or state.chat_model.tokenizer.template
    print(sanitize(source or "no template"))


def _show_parameters(state: ChatState) -> None:
    params = state.chat_model.params
    for name in _PARAMETERS:
        value = getattr(params, name)
        print(f"{name:18} {'–' if value is None else value}")
    print(f"{'stop':18} {sanitize(repr(state.chat_model.stops))}")


def _show_alternatives(state: ChatState) -> None:
    answer = state.last_answer
    if answer is None or not answer.logprobs:
        raise UsageError(
            "the last answer has no token probabilities", "/set logprobs 5, then /regen"
        )
    write(as_terminal_text(answer, state.chat_model.tokenizer, state.style))


_SHOW: dict[str, Callable[[ChatState], None]] = {
    "alternatives": _show_alternatives,
    "info": _show_info,
    "parameters": _show_parameters,
    "system": _show_system,
    "template": _show_template,
}


def show(state: ChatState, argument: str) -> None:
    """Show a topic, or the conversation: its end, its last N turns, or all of it."""
    if argument in _SHOW:
        _SHOW[argument](state)
    elif argument in ("", "all") or (argument.isdecimal() and int(argument)):
        _show_conversation(state, argument)
    else:
        names = ", ".join(("all", *_SHOW))
        raise UsageError(f"/show has no {argument!r}", f"it has {names}, or a number of turns")


def _show_conversation(state: ChatState, argument: str) -> None:
    from swiftchat.chat.render.markdown_view import terminal_size
    from swiftchat.chat.render.reprint import conversation_rows, end_rows, last_turns

    path, width = state.conversation.messages, terminal_size()[0]
    if not path:
        raise UsageError("there are no messages yet", "send a message first")
    if argument:
        shown = path if argument == "all" else last_turns(path, int(argument))
        rows, is_cut = conversation_rows(state.style, shown, width), False
    else:
        rows, is_cut = end_rows(state.style, path, width, _MAX_ROWS)
    write("".join(f"{row}\n" for row in rows))
    if is_cut:
        print_notice("this is the end of the conversation; /show all shows all of it")


def show_stats(state: ChatState, argument: str) -> None:
    engine = state.chat_model.engine
    if state.last_answer is not None and engine.info is not None:
        print(stats_line(state.last_answer, engine.info.load_s))
    else:
        print("no answer yet")
    if engine.info is not None:
        print(sanitize(memory_line(engine.info)))
        for name, value in engine.stats().items():
            print(f"{name.replace('_', ' '):16} {value}")


SETTINGS_COMMANDS = (
    Command("/system", "[TEXT]", 'show or change the system prompt; "" removes it', system),
    Command(
        "/set",
        "NAME VALUE",
        "change a parameter: temperature, top_k, …",
        set_parameter,
        completion=_SETTABLE,
        details=f"Parameters: {', '.join(_SETTABLE[:5])},\n{', '.join(_SETTABLE[5:])}.",
    ),
    Command(
        "/show",
        "[TOPIC]",
        "show the conversation again; or info, system, parameters, …",
        show,
        completion=("all", *_SHOW),
        details=f"/show shows the end of the conversation, at most {_MAX_ROWS} rows,\n"
        "/show 3 the last three turns, /show all everything. info describes the model;\n"
        "alternatives shows the probability of each token of the last answer, after /set\n"
        "logprobs N; the other topics are system, template and parameters.",
    ),
    Command(
        "/stats", "", "show the speed of the last answer and the state of the cache", show_stats
    ),
)
