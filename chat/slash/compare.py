"""`/compare`: the answer of another model to the last question."""

from pathlib import Path
from typing import TYPE_CHECKING

from swiftchat.chat.model.find import find_model
from swiftchat.chat.slash.command import Next
from swiftchat.chat.slash.state import ChatState
from swiftchat.chat.terminal.output import print_notice
from swiftchat.errors import UsageError
from swiftchat.weights.files.paths import only_path

if TYPE_CHECKING:
    from swiftchat.weights.model.directory import Model


def compare(state: ChatState, argument: str) -> Next:
    """Load a model, which answers the last question next; see `ChatState.comparing`.

    The current model stays loaded if there is memory for both.
    """
    if not argument:
        raise UsageError("/compare needs a model", "/models lists them")
    name = only_path(argument, "/compare")
    path = state.conversation.messages
    if "user" not in [message.role for message in path[:-1]] or path[-1].role == "user":
        raise UsageError("there is no answer to compare", "send a message first")
    folder, model = open_model(state, name)
    if folder == state.chat_model.path:
        raise UsageError(f"{name} is the current model", "/regen answers again")
    if state.compared is None or state.compared.path != folder:
        state.close_compared()
        if not _fits(state, model):
            print_notice("both models do not fit in memory: the current one is loaded again after")
            state.chat_model.close()
        state.compared = state.chat_model.for_model(folder, name)
    return Next.COMPARE


def open_model(state: ChatState, name: str) -> tuple[Path, "Model"]:
    """Find a model for this chat. Raises an error if it cannot be used."""
    from swiftchat.tokenizer import Tokenizer
    from swiftchat.weights.model.directory import Model

    if state.config.connect is not None:
        raise UsageError(
            "the remote engine determines the model", "start without --connect to use another"
        )
    path = find_model(name, offline=state.config.offline, quiet=state.config.quiet)
    # A broken model must raise here, while the current one still runs.
    model = Model.open(path)
    Tokenizer.load(path)
    return path, model


def _fits(state: ChatState, model: "Model") -> bool:
    """Return whether another model fits in memory beside the current one."""
    from swiftchat.chat.model.memory import fits_beside

    status = state.status
    with status.waiting("loading the model"):
        info = state.chat_model.wait_ready(status.show_progress)
    return fits_beside(model, [info], state.config.kv_dtype)
