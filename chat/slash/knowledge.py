"""`/knowledge`: a folder whose texts precede the questions that they may answer."""

from dataclasses import replace

from swiftchat.chat.slash.command import Command
from swiftchat.chat.slash.state import ChatState
from swiftchat.chat.terminal.output import print_line
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.weights.files.paths import only_path


def choose_knowledge(state: ChatState, argument: str) -> None:
    """Use a folder, index it now; `none` uses none; without an argument say which is used."""
    if argument == "none":
        state.close_knowledge()
        state.chat_model.config = replace(state.chat_model.config, knowledge=None)
        print_line("messages are sent without knowledge")
    elif argument:
        _use(state, only_path(argument, "/knowledge"))
    if state.knowledge is not None:
        index = state.knowledge.index
        print_line(
            sanitize(
                f"knowledge of {state.knowledge.name}: {len(index)} pieces of "
                f"{index.num_files()} files; /knowledge none ends that"
            )
        )
    elif not argument:
        print_line("no folder is used as knowledge; /knowledge DIR uses one")


def _use(state: ChatState, folder: str) -> None:
    """Use a folder for the messages that follow, and index it."""
    # Imported here, with SQLite: it would delay the first prompt.
    from swiftchat.chat.knowledge.knowledge import open_knowledge
    from swiftchat.chat.knowledge.question import update_index

    config = replace(state.chat_model.config, knowledge=folder)
    found = open_knowledge(config)
    state.close_knowledge()
    state.knowledge, state.chat_model.config = found, config
    try:
        with state.keyboard.erasing(state.status.clear):
            update_index(found, state.status)
    except KeyboardInterrupt:
        print_line("stopped; what is indexed stays, and the next message goes on")


KNOWLEDGE_COMMANDS = (
    Command(
        "/knowledge",
        "[DIR|none]",
        "put passages of a folder's texts before each question",
        choose_knowledge,
        completion=("none",),
        details="The folder is indexed now, and changes in it are noticed later. Without an\n"
        "argument: which folder is used. swiftchat help knowledge has more.",
    ),
)
