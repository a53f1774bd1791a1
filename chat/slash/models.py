"""Commands about the model and the context: `/model`, `/models`, `/tokens`, `/compact`."""

import shlex
from dataclasses import replace

from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.slash.command import Command, always
from swiftchat.chat.slash.compact import compact
from swiftchat.chat.slash.compare import compare, open_model
from swiftchat.chat.slash.state import ChatState
from swiftchat.chat.terminal.amounts import format_bytes
from swiftchat.chat.terminal.output import print_line
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.weights.files.paths import only_path

_PREVIEW = 40  # characters


def change_model(state: ChatState, argument: str) -> None:
    """Replace the model, by the one that the user picks without an argument."""
    name = only_path(argument, "/model") if argument else _picked(state)
    if name is None:
        return
    adapters = state.chat_model.adapters
    state.chat_model = _of_server(state, name) if _is_served(state) else _of_machine(state, name)
    # The ids belong to the old vocabulary.
    state.conversation.last_turn = state.last_answer = None
    state.count_context()
    if adapters.in_use:
        print_line("the adapters belong to the other model and are off")
    if adapters.soft_prompt is not None:
        print_line("the soft prompt belongs to the other model and is off")
    print_line(f"the conversation continues with {state.chat_model.name}")


def _is_served(state: ChatState) -> bool:
    from swiftchat.chat.model.model_server import is_server_url

    return state.config.connect is not None and is_server_url(state.config.connect)


def _of_machine(state: ChatState, name: str) -> ChatModel:
    """Return a model of this machine. Raises an error if it cannot be used."""
    path, _ = open_model(state, name)
    state.close_compared()
    state.chat_model.close()  # first: there may not be memory for both
    return state.chat_model.for_model(path, name)


def _of_server(state: ChatState, name: str) -> ChatModel:
    """Return a model of the server of --connect; after an error the old one is used again."""
    from swiftchat.chat.model.remote import RemoteEngineFactory

    old = state.chat_model
    old.close()  # first: a model that a chat is attached to does not leave
    try:
        with state.status.waiting("loading the model"):
            engine = RemoteEngineFactory(replace(old.config, model=name))
    except BaseException:
        old.restart()
        raise
    return old.for_model(engine.folder, name, engine.start)


def _picked(state: ChatState) -> str | None:
    """Show the model, then let the user pick another in a terminal; None for none."""
    name, location = state.chat_model.settings["model"], str(state.chat_model.model.location)
    print_line(name if name == location else f"{name} ({location})")
    if state.config.connect is not None or not state.keyboard.is_open:
        return None
    from swiftchat.chat.model.choice import pick_model

    title = "Which model? Esc keeps this one."
    with state.keyboard.lent():
        return pick_model(title, is_redrawn=state.may_redraw)


def list_models(state: ChatState, argument: str) -> None:
    from swiftchat.weights.store import default_store

    # The location of a GGUF model is its file, not the directory made from it.
    models, current = default_store().list(), state.chat_model.model.location
    if current not in [model.path for model in models]:
        print(sanitize(f"* {state.chat_model.name}"))  # a GGUF file or another directory
    for model in models:
        mark = "*" if model.path == current else " "
        print_line(f"{mark} {model.name}  {format_bytes(model.size_bytes)}")
    if not models:
        print_line("no models are installed; try: swiftchat download")


def _complete_models(state: ChatState) -> dict[str, str]:
    """Names and sizes of the models on this machine."""
    from swiftchat.weights.store import default_store

    found = default_store().list()
    return {shlex.quote(model.name): format_bytes(model.size_bytes) for model in found}


def show_tokens(state: ChatState, argument: str) -> None:
    """Print the tokens of each message; the total includes those of the template."""
    conversation, chat_model = state.conversation, state.chat_model
    encode = chat_model.tokenizer.encode
    if conversation.system:
        print_line(f"{len(encode(conversation.system)):7}  system")
    for message in conversation.messages:
        text = " ".join(message.content.split())
        preview = text if len(text) <= _PREVIEW else f"{text[:_PREVIEW]}…"
        print_line(f"{len(encode(message.content)):7}  {message.role}: {preview}", 9)
    for attachment in state.attachments:
        print_line(f"{len(encode(attachment.fenced)):7}  attached: {attachment.name}", 9)
    if conversation.messages:
        num_tokens = len(
            chat_model.prompts.encoder(conversation.last_turn)(conversation.template_messages())
        )
        info = chat_model.engine.info
        limit = f" of {info.ctx_size_tokens}" if info else ""
        print_line(f"{num_tokens:7}  in total{limit}, with the chat template", 9)


MODEL_COMMANDS = (
    Command(
        "/model",
        "[NAME]",
        "switch to another model, named or picked from a list",
        change_model,
        completion=_complete_models,
    ),
    Command(
        "/compare",
        "MODEL",
        "answer the last question with another model too",
        compare,
        completion=_complete_models,
        details="The conversation keeps its model and its answer; the other answer is a branch.\n"
        "The other model stays loaded for the next /compare if there is memory for both.",
    ),
    Command("/models", "", "list the models on this machine", list_models, is_aside=always),
    Command("/tokens", "", "count the tokens of each message", show_tokens, is_aside=always),
    Command(
        "/compact",
        "[N]",
        "replace all but the last N turns with a summary",
        compact,
        details="N is 1 by default. The model writes the summary; the old turns stay in a branch.",
    ),
)
