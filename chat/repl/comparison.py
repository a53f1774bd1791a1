"""The two answers of `/compare`, one after the other under headings."""

from dataclasses import replace

from swiftchat.chat.commands.state import ChatState
from swiftchat.chat.history.transcript import author
from swiftchat.chat.render.view import show
from swiftchat.chat.repl.turn import TurnRunner
from swiftchat.chat.terminal.output import print_notice, write


def compare(state: ChatState, turns: TurnRunner) -> None:
    """Show the last answer again, then answer its question with `state.compared`.

    The other answer becomes a branch. A model that was unloaded for the comparison loads again.
    """
    from swiftchat.chat.render.markdown_view import terminal_size
    from swiftchat.chat.render.reprint import conversation_rows, last_turns

    other, answer = state.compared, state.conversation.tip
    assert other is not None and answer is not None
    _, *shown = last_turns(state.conversation.messages, 1)
    try:
        _show_heading(state, author(answer))
        rows = conversation_rows(state.style, shown, terminal_size()[0])
        write("".join(f"{row}\n" for row in rows))
        _show_heading(state, other.name)
        with state.comparing(other):
            turns.regenerate(new_seed=False)
            new_tip = state.conversation.tip
    finally:
        if state.chat_model.is_closed:
            state.close_compared()
            state.chat_model.restart()
    if new_tip is not None and new_tip is not answer:
        number = state.conversation.branches().index(new_tip) + 1
        print_notice(
            f"the conversation continues with the first answer; /switch {number} takes the second"
        )


def _show_heading(state: ChatState, name: str) -> None:
    if state.style.mode != "accessible":  # there each answer begins with a name
        show(replace(state.style, is_live=False), f"## {name}", name)
        write("\n")
