"""Search inside the conversation: `/find`."""

from swiftchat.chat.attachments.attachment import folded
from swiftchat.chat.history.listing import print_match
from swiftchat.chat.history.search import excerpt_of, fold
from swiftchat.chat.slash.command import Command, always
from swiftchat.chat.slash.state import ChatState
from swiftchat.chat.terminal.output import print_line
from swiftchat.errors import UsageError


def find(state: ChatState, argument: str) -> None:
    """Print the messages that contain all words, with their numbers, and count those elsewhere."""
    words = fold(argument).split()
    if not words:
        raise UsageError("/find needs words", "/find tides")
    conversation = state.conversation
    numbers = {message: number for number, message in enumerate(conversation.messages, 1)}
    num_elsewhere = num_found = 0
    for message in conversation.tree:
        text = fold(message.content)
        if not all(word in text for word in words):
            continue
        if message not in numbers:
            num_elsewhere += 1
            continue
        num_found += 1
        # A match inside of an attachment is shown from there, any other one without attachments.
        visible = folded(message.content)
        is_visible = all(word in fold(visible) for word in words)
        match = excerpt_of(visible if is_visible else message.content, words)
        print_match(f"{numbers[message]:4} {message.role}", *match)
    if num_elsewhere:
        print_line(f"messages of other branches that contain them: {num_elsewhere}; /branches")
    elif not num_found:
        print_line("no message contains these words; /sessions WORDS searches all conversations")


FIND_COMMANDS = (
    Command(
        "/find",
        "WORDS",
        "find messages of this conversation",
        find,
        details="A message is found if it contains all words, in any case, also inside of words.\n"
        "The numbers are those of /edit N. /sessions WORDS searches all conversations.",
        is_aside=always,
    ),
)
