"""Messages between a terminal and an engine; `wire.py` sends and receives them.

Each is a map with a `type`; a message about one generation carries its `id`.

Terminal to engine: `load generate cancel stats`.
Engine to terminal: `progress ready prefill prompt_logprobs embedding tokens beam dropped finished
stats error`, and `several`, whose `messages` are those of a step.
Remote engine: the terminal sends `hello` and receives `welcome`, fetches model files with `file`,
and sends `begin` instead of `load`; the engine sends `alive` every second. Instead of `begin` it
may send `status`, and at a Unix socket `stop`, which ends the engine.

A worker exits when the connection to the terminal that started it closes, from any state. No
message keeps, forks or drops a conversation: each request carries the ids of the whole prompt, and
the prefix cache finds the KV blocks by content (`engine.schedule.blocks`).
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Self

from swiftchat.engine.api.wire import Message, WireError, decode
from swiftchat.errors import SwiftchatError, error_from_wire

OnProgress = Callable[[str, int, int], None]  # label, done, total

VERSION = 3  # of the protocol between a terminal and a remote engine
RESTART_HINT = "the conversation is kept; send the message again to restart the engine"
REMOTE_RESTART_HINT = (
    "the conversation is kept; restart the engine on its host, then send the message again"
)


def error_message(error: SwiftchatError, generation_id: int | None = None) -> Message:
    """Return the message about an error of a generation, or of the engine without an id."""
    return {
        "type": "error",
        "id": generation_id,
        "kind": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
    }


def error_from(message: Message) -> SwiftchatError:
    """Decode an error; raises `WireError`."""
    parts = (decode(message.get(name), str, name) for name in ("kind", "message", "hint"))
    return error_from_wire(*parts)


@dataclass(frozen=True)
class EngineInfo:
    """The loaded model and its memory, sent once when the engine is ready.

    `load_s` is the time from the `load` message to readiness, without the start of Python and
    torch. Bytes are those of one rank of each stage, summed over the `pp` stages. `table_bytes`
    is the part of `weights_bytes` in embeddings that are not also the LM head: a decode step
    reads only one row of them per token; `expert_bytes` is the part in routed experts, of which a
    token reads the chosen ones; `host_bytes` the part that is in main memory beside a GPU.
    `workspace_bytes` is the memory of the activations of the native CPU kernels. `replays_steps`:
    decode steps are captured, sampling included, unless an answer uses one of
    `SamplingParams.host_controls`. `unread_input_scales` of the files would quantize activations
    that are not. `note` is for the user, for example why a GPU is not used.
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
    expert_bytes: int = 0
    host_bytes: int = 0
    workspace_bytes: int = 0
    replays_steps: bool = False
    unread_input_scales: int = 0
    note: str = ""

    def to_wire(self) -> Message:
        return {"type": "ready", "info": asdict(self)}

    @classmethod
    def from_wire(cls, message: Message) -> Self:
        """Decode the message; raises `WireError`."""
        return decode(message.get("info"), cls)


@dataclass(frozen=True)
class EngineStatus:
    """A running engine as `swiftchat ps` shows it.

    `memory_bytes` is the main memory of all its processes. `idle_s` is the time since it last
    computed or a terminal left, 0 while it computes. `ends_in_s` is the time after which it ends
    if it is not used, None if it does not. `device` is empty and `device_bytes` (weights and KV
    cache) 0 until the model is loaded.
    """

    name: str
    pid: int
    memory_bytes: int
    idle_s: float
    num_terminals: int
    device: str = ""
    device_bytes: int = 0
    ctx_size_tokens: int = 0
    keep_alive_s: float | None = None
    ends_in_s: float | None = None
    endpoint: str | None = None

    def to_wire(self) -> Message:
        return {"type": "status", "status": asdict(self)}

    @classmethod
    def from_wire(cls, message: Message) -> Self:
        """Decode the message; raises `WireError`."""
        return decode(message.get("status"), cls)


@dataclass(frozen=True)
class Progress:
    """Progress of a long operation: `done` of `total`, in the unit that the label names."""

    label: str
    done: int
    total: int


@dataclass(frozen=True)
class Prefill:
    """`done` of `total` prompt tokens are in the KV cache."""

    done: int
    total: int

    def to_wire(self, generation_id: int) -> Message:
        return {"type": "prefill", "id": generation_id, **asdict(self)}


@dataclass(frozen=True)
class Searching:
    """All running beams of a search have `num_tokens` tokens."""

    num_tokens: int

    def to_wire(self, generation_id: int) -> Message:
        return {"type": "searching", "id": generation_id, "num_tokens": self.num_tokens}


# What a generation reports while it has no tokens.
Wait = Prefill | Searching


@dataclass(frozen=True)
class Logprob:
    """The logprob (natural logarithm) of a sampled token, and the top logprobs of its position.

    `top` lists (id, logprob) in descending order; the sampled token may be one of them.
    """

    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class Tokens:
    """Newly generated token ids, in order, without the stop id.

    `logprobs` has an entry for each id, or is empty if they were not requested.
    """

    ids: list[int]
    logprobs: list[Logprob] = field(default_factory=list)

    def to_wire(self, generation_id: int) -> Message:
        return {
            "type": "tokens",
            "id": generation_id,
            "ids": self.ids,
            "likelihoods": _logprobs_to_wire(self.logprobs),
        }


@dataclass(frozen=True)
class PromptLogprobs:
    """The logprobs of the prompt's next tokens, in order from its second token on."""

    logprobs: list[Logprob]

    def to_wire(self, generation_id: int) -> Message:
        return {
            "type": "prompt_logprobs",
            "id": generation_id,
            "likelihoods": _logprobs_to_wire(self.logprobs),
        }


@dataclass(frozen=True)
class Embedding:
    """The pooled hidden states of a prompt, fp32 values."""

    values: list[float]

    def to_wire(self, generation_id: int) -> Message:
        packed = struct.pack(f"<{len(self.values)}f", *self.values)
        return {"type": "embedding", "id": generation_id, "values": packed}


@dataclass(frozen=True)
class Dropped:
    """The context was full: this many tokens in the middle of the sequence were dropped."""

    num_tokens: int

    def to_wire(self, generation_id: int) -> Message:
        return {"type": "dropped", "id": generation_id, "num_tokens": self.num_tokens}


@dataclass(frozen=True)
class Beam:
    """An answer of a beam search, of which the best comes first: all its ids, without the stop id.

    `score` is the sum of its logprobs / length ^ length penalty. `reason` is `stop` or `length`.
    """

    ids: list[int]
    score: float
    reason: str

    @classmethod
    def of(cls, tokens: Sequence[int], score: float, stop_ids: Sequence[int]) -> Self:
        """Return the answer of all generated tokens, which may end with a stop id."""
        if tokens[-1] in stop_ids:
            return cls(list(tokens[:-1]), score, "stop")
        return cls(list(tokens), score, "length")

    def to_wire(self, generation_id: int) -> Message:
        return {"type": "beam", "id": generation_id, "beam": asdict(self)}


@dataclass(frozen=True)
class Speculated:
    """What speculation did for an answer.

    `num_steps` steps verified `num_proposed` tokens, of which `num_accepted` became tokens of the
    answer. `gain` is the speed of the decode steps relative to plain decoding, estimated from the
    costs of steps. `proposer` is `ngram`, `draft` or the kind of prediction heads, joined by +.
    """

    proposer: str
    num_steps: int
    num_proposed: int
    num_accepted: int
    gain: float

    @property
    def acceptance_rate(self) -> float:
        return self.num_accepted / self.num_proposed

    @property
    def mean_accepted(self) -> float:
        """The mean number of tokens that a verification step accepted."""
        return self.num_accepted / self.num_steps


@dataclass(frozen=True)
class Finished:
    """The end of a generation: its reason, token counts and times.

    `reason` is `stop` (one of `stop_ids`), `length` (`max_tokens` reached or context full) or
    `interrupt` (canceled). `prefill_s` is the engine's time up to the first token, `decode_s` that
    for the tokens after it. `speculated` is None if no tokens were proposed. Of the
    `cached_tokens`, `swapped_tokens` came from host memory and `restored_tokens` from the disk.
    `warnings` are lines on the KV cache on disk.
    """

    reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prefill_s: float
    decode_s: float
    seed: int
    speculated: Speculated | None = None
    swapped_tokens: int = 0
    restored_tokens: int = 0
    warnings: Sequence[str] = ()

    def to_wire(self, generation_id: int) -> Message:
        return {"type": "finished", "id": generation_id, "result": asdict(self)}


Event = Wait | PromptLogprobs | Embedding | Tokens | Beam | Dropped | Finished


def event_from(message: Message) -> Event | SwiftchatError:
    """Decode a message about one generation; raises `WireError` for any other."""
    match message["type"]:
        case "prefill":
            return decode(message, Prefill)
        case "searching":
            return decode(message, Searching)
        case "tokens":
            ids = decode(message.get("ids"), list[int], "ids")
            return Tokens(ids, _logprobs_of(message))
        case "prompt_logprobs":
            return PromptLogprobs(_logprobs_of(message))
        case "embedding":
            values = decode(message.get("values"), bytes, "values")
            if len(values) % 4:
                raise WireError("the values of an embedding are cut")
            return Embedding([value for (value,) in struct.iter_unpack("<f", values)])
        case "beam":
            return decode(message.get("beam"), Beam)
        case "dropped":
            return decode(message, Dropped)
        case "finished":
            return decode(message.get("result"), Finished)
        case "error":
            return error_from(message)
    raise WireError(f"not a message about a generation: {message['type']!r}")


def _logprobs_of(message: Message) -> list[Logprob]:
    return decode(message.get("likelihoods"), list[Logprob], "likelihoods")


def _logprobs_to_wire(logprobs: list[Logprob]) -> list[Message]:
    return [{"logprob": one.logprob, "top": one.top} for one in logprobs]
