"""The messages between the terminal process and the engine worker. No torch, no pickle.

Both directions carry msgpack maps with a `type` over a `multiprocessing` connection, which
frames them. Down: `load generate cancel stats`. Up: `progress ready prefill tokens
finished stats error`. A message about one generation carries its `id`. A terminal attached to
an engine elsewhere says `hello` instead of `load` and hears `welcome`, can ask for a `file` of
the model's, and hears `alive` every second.

There is no message to shut down: the worker ends when the connection closes, at once and from
any state. And there is none to keep, fork or drop a conversation: the worker finds by content
which KV blocks it still has, so a prompt's ids say all (see `engine.schedule.blocks`).
"""

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

import msgpack

from swiftchat.errors import SwiftchatError, error_from_wire

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Message = dict[str, Any]

# Of what is said between a terminal and an engine elsewhere, and the longest message of either: a
# prompt of a million tokens is shorter.
VERSION, MOST_BYTES = 1, 1 << 23
# For who was attached to an engine that ended.
ENDED_HINT = (
    "the conversation is kept; when the engine runs again where it was started, "
    "send the message again"
)


def send(connection: "Connection", message: Message) -> None:
    """Write one message; raises `OSError` when the other side is gone."""
    connection.send_bytes(msgpack.packb(message))


def receive(connection: "Connection", most_bytes: int | None = None) -> Message:
    """Read one message; raises `EOFError` or `OSError` when the other side is gone.

    `OSError` too for what is no message, or longer than `most_bytes`: the rest cannot be read.
    """
    try:
        message = msgpack.unpackb(connection.recv_bytes(most_bytes))
    except (ValueError, TypeError, OverflowError) as error:
        raise OSError(f"no message: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise OSError("no message: it has no type")
    return message


def error_message(error: SwiftchatError, generation_id: int | None = None) -> Message:
    return {
        "type": "error",
        "id": generation_id,
        "kind": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
    }


def error_from(message: Message) -> SwiftchatError:
    return error_from_wire(message["kind"], message["message"], message["hint"])


@dataclass(frozen=True)
class EngineInfo:
    """What the worker loaded and how: told once, when it is ready.

    `load_s` counts from the `load` message to readiness, without starting Python and torch. Of
    several ranks, the bytes are those of one of each stage, all `pp` stages together. `table_bytes`
    of the weights are embeddings that are no head as well, so that a step reads a row a token.
    """

    device: str
    dtype: str
    num_parameters: int
    weights_bytes: int
    cache_tokens: int
    cache_bytes: int
    ctx_size_tokens: int
    num_threads: int
    load_s: float
    tp: int = 1
    pp: int = 1
    kv_dtype: str = "auto"
    table_bytes: int = 0

    def to_wire(self) -> Message:
        return {"type": "ready", "info": asdict(self)}

    @classmethod
    def from_wire(cls, message: Message) -> Self:
        return cls(**message["info"])


@dataclass(frozen=True)
class Progress:
    """A long operation of the worker: `done` of `total`, in the unit the label names."""

    label: str
    done: int
    total: int


@dataclass(frozen=True)
class Prefill:
    """`done` of `total` prompt tokens are in the cache."""

    done: int
    total: int


@dataclass(frozen=True)
class Logprob:
    """The natural logarithm of a token's probability, and of the most probable tokens' there.

    `top` lists (id, logprob) in descending order; the chosen token may be one of them.
    """

    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class Tokens:
    """Newly generated ids, in order, without the one that ended the generation.

    `logprobs` has an entry for each id, or is empty if they were not requested.
    """

    ids: list[int]
    logprobs: list[Logprob] = field(default_factory=list)

    def to_wire(self, generation_id: int) -> Message:
        return {
            "type": "tokens",
            "id": generation_id,
            "ids": self.ids,
            "likelihoods": [
                {"logprob": one.logprob, "likeliest": one.top} for one in self.logprobs
            ],
        }


@dataclass(frozen=True)
class Finished:
    """How a generation ended and what it cost.

    `reason` is `stop` (one of `stop_ids`), `length` (max_tokens or the context is full) or
    `interrupt` (canceled). `prefill_s` and `decode_s` are the engine's own time for the prompt
    up to the first token, and for the tokens after it.
    """

    reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prefill_s: float
    decode_s: float
    seed: int

    def to_wire(self, generation_id: int) -> Message:
        return {"type": "finished", "id": generation_id, "result": asdict(self)}


Event = Prefill | Tokens | Finished


def event_from(message: Message) -> Event | SwiftchatError:
    """Turn a message about one generation into what `Generation` yields."""
    match message["type"]:
        case "prefill":
            return Prefill(message["done"], message["total"])
        case "tokens":
            logprobs = [
                Logprob(one["logprob"], [(i, logprob) for i, logprob in one["likeliest"]])
                for one in message["likelihoods"]
            ]
            return Tokens(message["ids"], logprobs)
        case "finished":
            return Finished(**message["result"])
        case "error":
            return error_from(message)
    raise ValueError(f"not a message about a generation: {message['type']!r}")
