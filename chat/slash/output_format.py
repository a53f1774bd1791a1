"""The command about the format of answers: `/schema`."""

from swiftchat.chat.model.output_format import schema_format
from swiftchat.chat.options.parameter import UNSET
from swiftchat.chat.slash.command import Command
from swiftchat.chat.slash.state import ChatState
from swiftchat.chat.terminal.output import print_line
from swiftchat.errors import UsageError
from swiftchat.weights.files.paths import only_path


def schema(state: ChatState, argument: str) -> None:
    """Let the following answers match a JSON schema, or any text with `off`."""
    model = state.chat_model
    if argument in UNSET:
        model.output_format = None
    elif argument and model.tools:
        raise UsageError("an answer with a schema calls no tools", "/tools off, then /schema")
    elif argument:
        is_text = argument.startswith("{")  # which shell words would lose its quotes
        model.output_format = schema_format(
            argument if is_text else only_path(argument, "/schema"),
            has_instruction=not state.config.no_schema_prompt,
        )
    form = model.output_format
    print_line("answers may be any text" if form is None else f"answers match: {form.name}")


OUTPUT_FORMAT_COMMANDS = (
    Command(
        "/schema",
        "[JSON|FILE|off]",
        "answer with JSON that matches a JSON schema",
        schema,
        completion=("off",),
        details="Without a schema the current format is shown. /schema off allows any text again.",
    ),
)
