"""Commands about settings and statistics: `/system`, `/set`, `/show`, `/stats`."""

import contextlib
import difflib
import json
import operator
import shutil
from collections.abc import Callable, Iterable

from swiftchat.chat.help.columns import two_columns
from swiftchat.chat.model.description import describe, property_label, property_text
from swiftchat.chat.options.chat_options import (
    ALL_PARAMETERS,
    FILE_NAMES,
    PARAMETERS,
    TEXTS_PARAMETERS,
    option_name,
)
from swiftchat.chat.options.parameter import UNSET, ChoiceParameter, Parameter, shown
from swiftchat.chat.render.logprobs import as_terminal_text
from swiftchat.chat.render.stats import answer_rows, block_row, memory_line
from swiftchat.chat.slash.command import Command, always, count_of
from swiftchat.chat.slash.state import ChatState
from swiftchat.chat.terminal.output import print_line, print_notice, write
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import UsageError

_SETTABLE = (*PARAMETERS, *TEXTS_PARAMETERS, "system")
_MAX_ROWS = 200  # of /show


def system(state: ChatState, argument: str) -> None:
    if argument:
        is_removed = argument == '""'
        state.conversation.system = "" if is_removed else argument
        print_line(f"the system prompt is {'removed' if is_removed else 'changed'}")
    else:
        print(sanitize(state.conversation.system or "no system prompt is set"))


def set_parameter(state: ChatState, argument: str) -> None:
    """Change a parameter; `off` or `default` unsets it, and without a value it is shown."""
    words = argument.removeprefix("parameter ").split(maxsplit=1)
    if len(words) < 2:
        _show_values(state, [_settable(name) for name in words] or _SETTABLE)
        return
    name, text = _settable(words[0]), words[1].strip()
    if name == "system":
        state.conversation.system = None if text in UNSET else _unquoted(text)
    elif name in TEXTS_PARAMETERS:
        _add_text(state, name, text)
    else:
        _set_value(state, PARAMETERS[name], text)
    value = _values(state)[name]
    restarts = name in PARAMETERS and not PARAMETERS[name].is_sampled
    note = "; the engine starts again" if restarts else ""
    is_set = f"{name} = {_value_text(value)}" if value is not None else f"{name} is not set"
    print_line(f"{is_set}{note}")


def _is_for_the_next_answer(argument: str) -> bool:
    """Return whether /set changes nothing that the engine or a later round of this turn has."""
    name, *value = argument.removeprefix("parameter ").split(maxsplit=1) or [""]
    option = option_name(name)
    is_sampled = option not in PARAMETERS or PARAMETERS[option].is_sampled
    return not value or (is_sampled and option != "system")


def _settable(name: str) -> str:
    found = option_name(name)
    if found in _SETTABLE:
        return found
    if found in FILE_NAMES:
        flag = f"--{found.replace('_', '-')}"
        raise UsageError(
            f"{shown(name)} is chosen when the program starts",
            f"swiftchat {flag} sets it once, swiftchat config edit for every later chat",
        )
    aliases = [alias for parameter in PARAMETERS.values() for alias in parameter.aliases]
    near = difflib.get_close_matches(found, [*_SETTABLE, *aliases], n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UsageError(f"no parameter {shown(name)}", f"{hint}/set lists the parameters")


def _set_value(state: ChatState, parameter: Parameter | ChoiceParameter, text: str) -> None:
    try:
        value = parameter.parse(text)
    except ValueError as error:
        unset = "off" if isinstance(parameter, Parameter) else "default"
        hint = f"/set {parameter.name} {unset} unsets it"
        raise UsageError(f"{parameter.name} {error}", hint) from None
    if isinstance(value, str) or parameter.is_sampled:
        state.chat_model.set_parameter(parameter.name, value)
    else:
        state.chat_model.set_engine_option(parameter.name, value)


def _add_text(state: ChatState, name: str, text: str) -> None:
    chat_model, added = state.chat_model, _unquoted(text)
    if not added:
        raise UsageError(f"a {name} text is empty", f"/set {name} off removes all {name} texts")
    before = chat_model.config.texts(chat_model.changes)[name]
    chat_model.set_parameter(name, () if text in UNSET else (*before, added))


def _unquoted(text: str) -> str:
    """Return the text between double quotes, in which \\n is a new line, else the text itself."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        with contextlib.suppress(ValueError):
            return str(json.loads(text))
    return text


def _show_values(state: ChatState, names: Iterable[str]) -> None:
    values = _values(state)
    for name in names:
        rule = f"  {PARAMETERS[name].rule}" if name in PARAMETERS else ""
        print_line(f"{name:18} {_value_text(values[name]):10}{rule}".rstrip(), 31)


def _value_text(value: object) -> str:
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _values(state: ChatState) -> dict[str, object]:
    """Return the current value of each parameter, None for an unset one."""
    chat_model = state.chat_model
    info, texts = chat_model.engine.info, chat_model.config.texts(chat_model.changes)
    return {
        **vars(chat_model.params),
        **{name: " ".join(map(json.dumps, found)) or None for name, found in texts.items()},
        "ctx_size": info.ctx_size_tokens if info else chat_model.config.ctx_size,
        "threads": chat_model.config.threads,
        "system": state.conversation.system or None,
    }


def _show_info(state: ChatState) -> None:
    model, tokenizer = state.chat_model.model, state.chat_model.tokenizer
    for key, value in describe(model, tokenizer, state.config.kv_dtype).items():
        print_line(f"{property_label(key):22}  {property_text(key, value)}", 24)


def _show_system(state: ChatState) -> None:
    system(state, "")


def _show_template(state: ChatState) -> None:
    source = state.chat_model.template.source or state.chat_model.tokenizer.template
    print(sanitize(source or "no template"))


def _show_parameters(state: ChatState) -> None:
    _show_values(state, _SETTABLE)


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
    elif argument in ("", "all"):
        _show_conversation(state, is_all=argument == "all")
    elif num_turns := count_of(argument):
        _show_conversation(state, num_turns)
    else:
        names = ", ".join(("all", *_SHOW))
        raise UsageError(f"/show has no {shown(argument)}", f"it has {names}, or a number of turns")


def _show_conversation(state: ChatState, num_turns: int = 0, *, is_all: bool = False) -> None:
    """Print the last turns, all, or by default the end."""
    from swiftchat.chat.render.markdown_view import terminal_size
    from swiftchat.chat.render.reprint import conversation_rows, end_rows, last_turns

    path, width = state.conversation.messages, terminal_size()[0]
    if not path:
        raise UsageError("there are no messages yet", "send a message first")
    if is_all or num_turns:
        messages = path if is_all else last_turns(path, num_turns)
        rows, is_cut = conversation_rows(state.style, messages, width), False
    else:
        rows, is_cut = end_rows(state.style, path, width, _MAX_ROWS)
    write("".join(f"{row}\n" for row in rows))
    if is_cut:
        print_notice("this is the end of the conversation; /show all shows all of it")


def show_stats(state: ChatState, argument: str) -> None:
    """Show the last answer, the context and the memory; with `all` the engine's counters too."""
    if argument not in ("", "all"):
        raise UsageError(f"/stats has no {shown(argument)}", "/stats or /stats all")
    info = state.chat_model.engine.info
    rows = answer_rows(state.last_answer, info) if state.last_answer else {"answer": "none yet"}
    size, used = state.chat_model.context_tokens, state.conversation.context_used
    used = used and min(used, size)  # the context of a longer answer slid
    known = "not counted" if used is None else f"{used} of {size} tokens ({100 * used // size} %)"
    rows["context"] = known
    rows["memory"] = memory_line(info) if info else "the model is loading"
    if info:
        # The engine answers after its current step.
        with state.status.waiting("waiting for the engine"):
            counters = state.chat_model.engine.stats()
        rows["KV blocks"] = block_row(counters)
    if argument == "all" and info:
        rows["loaded in"] = f"{info.load_s:.2f} s"
        for name, value in counters.items():
            rows[name.removeprefix("num_").replace("_", " ")] = str(value)
    print(sanitize(two_columns(rows.items(), shutil.get_terminal_size().columns)))


def _complete_parameters(state: ChatState) -> dict[str, str]:
    return {one.name: one.help for one in ALL_PARAMETERS} | {"system": "System prompt."}


SETTINGS_COMMANDS = (
    Command(
        "/system",
        "[TEXT]",
        'show or change the system prompt; "" removes it',
        system,
        is_aside=operator.not_,
    ),
    Command(
        "/set",
        "[NAME [VALUE]]",
        "show or change a parameter: temperature, top_k, …",
        set_parameter,
        completion=_complete_parameters,
        details="/set NAME off returns to the model's value. Context and threads restart the\n"
        "engine. A text may stand between quotes, with \\n for a new line; each /set stop TEXT\n"
        "adds one, and so do ban, logit_bias, dry_breaker and top_p_reset.\n"
        + two_columns((" ".join((p.name, *p.aliases)), p.help) for p in ALL_PARAMETERS),
        is_aside=_is_for_the_next_answer,
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
        is_aside=_SHOW.__contains__,
    ),
    Command(
        "/stats",
        "[all]",
        "show the speed of the last answer, the context and the memory",
        show_stats,
        completion=("all",),
        details="/stats all also shows the engine's counters: blocks of the KV cache, requests,\n"
        "computed and reused tokens.",
        is_aside=always,
    ),
)
