"""What an engine is asked to be and what one generation is asked to do. No torch."""

from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any, Literal, Self

from swiftchat.errors import UsageError

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("bfloat16", "float16", "float32")
KV_DTYPES = ("auto", "int8", "fp8")
NumRanks = int | Literal["auto"]
MAX_LOGPROBS = 50


@dataclass(frozen=True)
class EngineConfig:
    """Where and how the model runs; resolved once at the edge, never changed.

    `ctx_size_tokens` is the longest context of one sequence (None: the model's own, or what
    fits the memory if that is less). `cache_tokens` is the room for all sequences together
    (None: twice the context, so that a second conversation does not evict the first).
    `chunk_tokens` bounds the tokens of one forward pass, and so how long a cancel waits (None:
    512, or 4096 with our kernels). `kernels` false runs torch's operators on a GPU, too.
    `dummy`, a name or a config.json, asks for random weights in that shape, `:int8`, `:fp8` or
    `:int4` behind it for packed ones; the model's path is not looked at then. `kv_dtype` int8 or
    fp8 keeps keys and values in 8 bits (auto: in `dtype`). `tp` ranks compute the model together,
    each on a GPU of its own from `device` on (tensor parallelism); `auto` is the fewest whose
    memory holds it. With `pp` above 1 there are as many stages of `tp` ranks, and each has some of
    the layers (pipeline parallelism).
    """

    device: str = "auto"
    dtype: str | None = None
    kv_dtype: str = "auto"
    ctx_size_tokens: int | None = None
    cache_tokens: int | None = None
    block_size: int = 64
    chunk_tokens: int | None = None
    max_num_seqs: int = 16
    num_threads: int | None = None
    dummy: str | None = None
    kernels: bool = True
    tp: NumRanks = 1
    pp: int = 1

    def __post_init__(self) -> None:
        if self.device.partition(":")[0] not in DEVICES:
            raise UsageError(f"unknown device {self.device!r}", f"one of {', '.join(DEVICES)}")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise UsageError(f"unknown dtype {self.dtype!r}", f"one of {', '.join(DTYPES)}")
        if self.kv_dtype not in KV_DTYPES:
            known = ", ".join(KV_DTYPES)
            raise UsageError(f"unknown kv_dtype {self.kv_dtype!r}", f"one of {known}")
        if self.dummy == "":
            raise UsageError("dummy is empty", "give the name of a shape or a config.json")
        for name in ("ctx_size_tokens", "cache_tokens", "chunk_tokens", "num_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, not {value}")
        if self.tp != "auto" and self.tp < 1:
            raise UsageError(f"tp must be at least 1 or auto, not {self.tp}")
        for name in ("block_size", "max_num_seqs", "pp"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Self:
        return cls(**wire)


def kv_row_bytes(head_dim: int, item_bytes: int, kv_dtype: str) -> int:
    """Bytes of one token's key or value of one head; quantized, with its factor."""
    return head_dim * item_bytes if kv_dtype == "auto" else head_dim + 4


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen, and when to stop.

    Order: penalties → temperature → top-k → min-p → top-p. `temperature` 0 is greedy;
    `top_k` 0, `top_p` 1, `min_p` 0 and a penalty of 1 (repeat) or 0 (others) are off.
    `seed` None draws one; the engine reports the seed it used. `max_tokens` None means up to
    the end of the context. Generation ends after any of `stop_ids`, which is not returned.
    `logprobs` asks for the logarithm of each token's probability and for so many of the likeliest
    tokens in its place (at most MAX_LOGPROBS; None is off); what is said stays the same.
    """

    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 0.95
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    logprobs: int | None = None
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        def require(name: str, holds: bool, rule: str) -> None:
            if not holds:
                raise UsageError(f"{name} must be {rule}, not {getattr(self, name)}")

        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float):
                require(field.name, isfinite(value), "a finite number")
        require("temperature", self.temperature >= 0, "0 or more")
        require("top_k", self.top_k >= 0, "0 or more")
        require("top_p", 0 < self.top_p <= 1, "above 0 and at most 1")
        require("min_p", 0 <= self.min_p <= 1, "between 0 and 1")
        require("repeat_penalty", 0.01 <= self.repeat_penalty <= 100, "between 0.01 and 100")
        for name in ("presence_penalty", "frequency_penalty"):
            require(name, abs(getattr(self, name)) <= 100, "between -100 and 100")
        require("seed", self.seed is None or 0 <= self.seed < 2**64, "between 0 and 2^64 - 1")
        require("max_tokens", self.max_tokens is None or self.max_tokens >= 0, "0 or more")
        require(
            "logprobs",
            self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS,
            f"between 0 and {MAX_LOGPROBS}",
        )

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Self:
        return cls(**{**wire, "stop_ids": tuple(wire["stop_ids"])})
