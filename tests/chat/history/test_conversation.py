"""Turns and the context of a conversation."""

from hypothesis import given
from hypothesis import strategies as st

from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.tool_call import ToolCall, parse_tool_calls


def test_undo_moves_by_whole_turns() -> None:
    conversation = Conversation()
    for i in range(3):
        conversation.add("user", f"q{i}")
        conversation.add("assistant", f"a{i}")
    assert conversation.undo() == 1
    assert [m.content for m in conversation.messages] == ["q0", "a0", "q1", "a1"]
    assert conversation.undo(5) == 2
    assert conversation.undo() == 0


def test_versions_leave_out_whole_turns_but_not_the_system_prompt() -> None:
    conversation = Conversation("S")
    for text in ("a", "b"):
        conversation.add("user", text)
        conversation.add("assistant", text.upper())
    conversation.add("user", "c")
    found = [(n, "".join(m["content"] for m in one)) for n, one in conversation.versions()]
    assert found == [(0, "SaAbBc"), (2, "SbBc"), (4, "Sc")]


def turn_with_tools(conversation: Conversation) -> ToolCall:
    """Add a question, a call of a tool, its result and an answer."""
    conversation.add("user", "How warm is it?")
    call = ToolCall("weather", {"city": "Oslo"})
    conversation.add("assistant", "").tool_calls = [call]
    conversation.add_tool_result(call, "12 degrees")
    conversation.add("assistant", "It is 12 degrees.")
    return call


def test_a_question_with_its_tool_rounds_is_one_turn() -> None:
    conversation = Conversation()
    turn_with_tools(conversation)
    turn_with_tools(conversation)
    assert conversation.undo() == 1 and len(conversation.messages) == 4
    assert conversation.pop_answer()
    assert [message.content for message in conversation.messages] == ["How warm is it?"]
    assert not conversation.pop_answer()


def test_tool_calls_are_given_to_the_template_with_their_results() -> None:
    conversation = Conversation()
    call = turn_with_tools(conversation)
    *_, asked, result, answer = conversation.template_messages()
    function = {"name": "weather", "arguments": {"city": "Oslo"}}
    assert asked["tool_calls"] == [{"id": call.id, "type": "function", "function": function}]
    assert (result["role"], result["tool_call_id"]) == ("tool", call.id)
    assert result["content"] == "12 degrees" and "tool_calls" not in answer


def test_a_call_without_a_result_is_given_to_the_template_with_one() -> None:
    """A program that is killed while a tool runs leaves such a conversation."""
    conversation = Conversation()
    turn_with_tools(conversation)
    conversation.tip = conversation.messages[1]
    conversation.add("user", "Hello?")
    roles = [message["role"] for message in conversation.template_messages()]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
)


@given(JSON_VALUES)
def test_parsing_stored_calls_never_fails(value: object) -> None:
    entry = {"name": "f", "arguments": value}
    for call in (*parse_tool_calls(value), *parse_tool_calls([value, entry])):
        assert parse_tool_calls([call.as_object()]) == [call]


def test_deeply_nested_arguments_are_no_call() -> None:
    for text in ("[" * 100_000, '{"a":' * 500 + "1" + "}" * 500):
        assert parse_tool_calls([{"name": "f", "arguments": text}]) == []
