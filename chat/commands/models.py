"""The commands about the model and what a conversation costs it: /model /models /tokens."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import UsageError

if TYPE_CHECKING:
    from swiftchat.chat.repl.loop import Repl

_PREVIEW = 40


def model(repl: "Repl", argument: str) -> None:
    """Switch in place; the conversation goes on with the other model."""
    if not argument:
        print(sanitize(f"{repl.speaker.settings['model']} ({repl.speaker.path})"))
        return
    from swiftchat.chat.model.find import find_model
    from swiftchat.tokenizer import Tokenizer
    from swiftchat.weights.model.directory import Model

    if repl.config.connect is not None:
        raise UsageError(
            "the model is the engine's, which runs elsewhere",
            "leave --connect out to run another here",
        )
    path = find_model(argument, offline=repl.config.offline, quiet=repl.config.quiet)
    Model.open(path)  # a broken one is refused here, while the one before is still there
    Tokenizer.load(path)
    old = repl.speaker
    old.close()  # first: there may not be room for both
    repl.speaker = old.other(path, argument)
    for name, value in old.changes.items():
        repl.speaker.set(name, value)
    repl.speaker.stops = old.stops
    repl.conversation.last_turn = repl.last_answer = None  # its ids are another vocabulary's
    print(sanitize(f"{repl.speaker.name} goes on with this conversation"))


def models(repl: "Repl", argument: str) -> None:
    from swiftchat.chat.model.description import size
    from swiftchat.weights.store import default_store

    found = default_store().list()
    for one in found:
        mark = "*" if one.path == repl.speaker.path else " "
        print(sanitize(f"{mark} {one.name}  {size(one.size_bytes)}"))
    if not found:
        print("no models yet; try: swiftchat download")


def known_models(repl: "Repl") -> dict[str, str]:
    """The sizes of the models on this machine by name."""
    from swiftchat.chat.model.description import size
    from swiftchat.weights.store import default_store

    return {one.name: size(one.size_bytes) for one in default_store().list()}


def tokens(repl: "Repl", argument: str) -> None:
    """What each message costs; the template's own tokens are in the sum."""
    conversation, speaker = repl.conversation, repl.speaker
    encode = speaker.tokenizer.encode
    if conversation.system:
        print(f"{len(encode(conversation.system)):7}  system")
    for message in conversation.messages:
        text = sanitize(" ".join(message.content.split()))
        preview = text if len(text) <= _PREVIEW else f"{text[:_PREVIEW]}…"
        print(f"{len(encode(message.content)):7}  {message.role}: {preview}")
    for attachment in repl.attached:
        print(f"{len(encode(attachment)):7}  goes with the next message")
    if conversation.messages:
        num_tokens = len(speaker.encoder(conversation.last_turn)(conversation.rendered()))
        info = speaker.engine.info
        of = f" of {info.ctx_size_tokens}" if info else ""
        print(f"{num_tokens:7}  in all{of}, as the template writes it")


def compact(repl: "Repl", argument: str) -> None:
    from swiftchat.chat.commands.compact import compact as run

    run(repl, argument)


MODEL_COMMANDS: dict[str, tuple[str, str, Callable[["Repl", str], None]]] = {
    "/model": ("[NAME]", "show the model, or go on with another", model),
    "/models": ("", "the models on this machine", models),
    "/tokens": ("", "what each message costs", tokens),
    "/compact": ("[N]", "put a summary in place of all but the last N turns", compact),
}
