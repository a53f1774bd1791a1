"""Commands about saved conversations: `/clear`, `/sessions`, `/resume`, `/save`, `/fork`, …"""

import shlex

from swiftchat.chat.attachments.attachment import folded
from swiftchat.chat.history.conversation import SHORT_ID, Conversation
from swiftchat.chat.history.listing import Column, format_time, print_found, print_table
from swiftchat.chat.history.transcript import author, write_file
from swiftchat.chat.options.chat_options import sampling_changes, saved_settings
from swiftchat.chat.render.export import FORMATS, format_of
from swiftchat.chat.slash.command import Command, always
from swiftchat.chat.slash.state import ChatState
from swiftchat.chat.terminal.output import print_line, print_notice, write
from swiftchat.chat.terminal.picker import Row, pick
from swiftchat.errors import SwiftchatError, UsageError
from swiftchat.weights.files.paths import only_path, user_path

_COLUMNS = (
    Column(""),
    Column("ID"),
    Column("USED", left_out=2),
    Column("MESSAGES", left_out=1),
    Column("TITLE", is_shortened=True),
)
_NUM_LISTED = 20
_NUM_COMPLETED = 200
_MIN_END_ROWS = 12
_OTHER_ROWS = 6  # greeting, title, input line and toolbar


def clear(state: ChatState, argument: str) -> None:
    can_resume = state.conversation.tree and state.autosave.is_saving
    state.open(Conversation(state.conversation.system))
    print_line("a new conversation" + ("; /resume goes back" if can_resume else ""))


def list_sessions(state: ChatState, argument: str) -> None:
    store = state.autosave.store
    if argument:
        matches = store.search(argument, _NUM_LISTED)
        for found in matches:
            print_found(found)
        if not matches:
            print_line("no conversation contains these words; /sessions lists all")
        return
    print_table(
        _COLUMNS,
        (
            (
                "*" if row["id"] == state.conversation.id else "",
                row["id"][:SHORT_ID],
                format_time(row["updated"]),
                str(row["num_messages"]),
                row["name"] or row["title"],
            )
            for row in store.recent(_NUM_LISTED)
        ),
    )


def _complete_sessions(state: ChatState) -> dict[str, str]:
    """Names or ids of the other conversations with their titles, the most recent first."""
    rows = state.autosave.store.recent(_NUM_COMPLETED)
    others = [row for row in rows if row["id"] != state.conversation.id]
    return {row["name"] or row["id"][:SHORT_ID]: row["title"] for row in others}


def _pick(state: ChatState) -> str | None:
    """Let the user choose another chat; where nothing can be redrawn, list them."""
    store = state.autosave.store
    rows = [row for row in store.recent() if row["id"] != state.conversation.id]
    if not rows:
        raise UsageError("there is no other chat", "swiftchat sessions --all lists one-shots, too")
    if not state.may_redraw:
        list_sessions(state, "")
        print_line("/resume ID opens one of them")
        return None

    def end_of(row: Row) -> str:
        try:
            messages = store.load(store.find(row.name)).messages[-2:]
        except SwiftchatError as error:
            return error.message
        return "\n".join(f"{author(one)}: {folded(one.content)}" for one in messages)

    shown = [
        Row(
            row["id"][:SHORT_ID],
            f"{format_time(row['updated'])}  {' '.join((row['name'] or row['title']).split())}",
        )
        for row in rows
    ]
    with state.keyboard.lent():
        picked = pick("Which chat?", shown, preview=end_of)
    return None if picked is None else store.find(picked.name)


def resume(state: ChatState, argument: str) -> None:
    store = state.autosave.store
    session_id = store.find(argument) if argument else _pick(state)
    if session_id is None:
        return
    conversation = store.load(session_id)
    settings, problems = saved_settings(conversation.settings)
    state.chat_model.set_parameters(sampling_changes(settings))
    state.open(conversation)
    for problem in problems:
        print_notice(f"warning: a setting of this conversation is left out: {problem}")
    model = settings.get("model")
    if model not in (None, state.chat_model.settings["model"]):
        print_line(f"this conversation used {model}; /model {model} switches to it")
    if (folder := settings.get("knowledge")) != state.chat_model.settings.get("knowledge"):
        print_line(f"this conversation used /knowledge {shlex.quote(folder or 'none')}")
    show_end(state)


def save(state: ChatState, argument: str) -> None:
    conversation = state.conversation
    if not conversation.tree:
        raise UsageError("there is nothing to save yet", "send a message first")
    before = conversation.name, conversation.is_one_shot
    conversation.name, conversation.is_one_shot = argument or conversation.name, False
    try:
        state.autosave.store.save(conversation)
    except SwiftchatError:
        conversation.name, conversation.is_one_shot = before
        raise
    name = conversation.name or conversation.id[:SHORT_ID]
    print_line(f"saved; swiftchat --session {shlex.quote(name)} continues it")


def export(state: ChatState, argument: str) -> None:
    is_forced = argument.startswith("--force ")
    name = argument.removeprefix("--force ").strip()
    file = only_path(name, "/export") if name else ""
    file_format = format_of(file)
    if file_format is None:
        raise UsageError("/export needs a file that ends in .md, .html or .json", "/export talk.md")
    write_file(file, FORMATS[file_format](state.conversation), force=is_forced)
    print_line(f"written to {user_path(file)}")


def fork(state: ChatState, argument: str) -> None:
    if state.conversation.tip is None:
        raise UsageError("there is nothing to copy yet", "send a message first")
    old = state.conversation
    copy = old.copy()
    state.open(copy)
    state.save()
    print_line(f"this is a copy, {copy.id[:SHORT_ID]}; /resume {old.id[:SHORT_ID]} goes back")


def show_end(state: ChatState) -> None:
    """Print the title and the last turns of the conversation, as many as fit the screen.

    An unanswered last question becomes the draft of the input line.
    """
    # Imported here: rich would delay the first prompt of a new conversation.
    from swiftchat.chat.render.markdown_view import terminal_size
    from swiftchat.chat.render.reprint import end_rows

    conversation = state.conversation
    if conversation.tip and conversation.tip.role == "user":
        state.draft = conversation.tip.content
        conversation.tip = conversation.tip.parent
    path = conversation.messages
    columns, lines = terminal_size()
    rows, is_cut = end_rows(state.style, path, columns, max(_MIN_END_ROWS, lines - _OTHER_ROWS))
    about = f"{len(path)} messages" + ("; /show all shows them" if is_cut else "")
    print_line(f"continuing: {conversation.name or conversation.title} ({about})")
    write("".join(f"{row}\n" for row in rows))
    if conversation.is_taken_back:
        print_line("all turns were taken back; /branches shows them, /switch N returns to one")
    if path and path[-1].interrupted:
        print_line("this answer was cut off; /continue extends it")


SESSION_COMMANDS = (
    Command("/clear", "", "start a new conversation", clear, aliases=("/new",)),
    Command(
        "/sessions",
        "[WORDS]",
        "list the saved conversations, or search them",
        list_sessions,
        is_aside=always,
    ),
    Command(
        "/resume",
        "[ID]",
        "open another conversation; without ID choose one",
        resume,
        completion=_complete_sessions,
        details="Without ID, arrows choose a chat, typing filters, Enter opens it.\n"
        "ID is the beginning of an id that /sessions shows, or a name given by /save.",
    ),
    Command(
        "/save",
        "[NAME]",
        "name this conversation",
        save,
        details="Every conversation is saved automatically; a name makes it easier to find.",
    ),
    Command("/fork", "", "continue in a copy of this conversation", fork),
    Command(
        "/export",
        "[--force] FILE",
        "write this conversation to FILE.md, FILE.html or FILE.json",
        export,
        details="FILE.md and FILE.html have the current branch, FILE.json all branches.\n"
        "FILE.html needs no other file. --force replaces a file.",
    ),
)
