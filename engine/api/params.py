"""Parameters of an engine and of one generation."""

from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import Any, Literal, Self

from swiftchat.errors import UsageError

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("bfloat16", "float16", "float32")
KV_DTYPES = ("auto", "int8", "fp8")
NumRanks = int | Literal["auto"]
MAX_LOGPROBS = 50


@dataclass(frozen=True)
class EngineConfig:
    """The device, data types, memory and parallelism of an engine.

    `dtype`: None is the checkpoint's.
    `kv_dtype`: int8 or fp8 quantizes the KV cache to 8 bits; auto stores it in `dtype`.
    `ctx_size_tokens`: the longest context of one sequence; None is the model's, or the longest
    that fits into memory.
    `cache_tokens`: the KV cache of all sequences together; None is twice the context, so that a
    second conversation does not evict the first.
    `chunk_tokens`: the most tokens of one forward pass, which bounds the time until a cancel
    takes effect; None is 4096 with our CUDA kernels, at most 512 with torch operators, and on a
    CPU with our kernels what takes half a second, between 32 and 512.
    `dummy`: random weights with the shapes of a named model or a config.json, quantized with the
    suffix `:int8`, `:fp8` or `:int4`; the model path is then ignored.
    `kernels`: False runs torch operators instead of our kernels.
    `tp`: the number of tensor-parallel ranks of a stage, each on a GPU of its own, counted from
    `device`; auto is the smallest number whose memory holds the model.
    `pp`: the number of pipeline stages, each with `tp` ranks and some of the layers.
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
            raise UsageError(f"unknown device {self.device!r}", f"use one of {', '.join(DEVICES)}")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise UsageError(f"unknown dtype {self.dtype!r}", f"use one of {', '.join(DTYPES)}")
        if self.kv_dtype not in KV_DTYPES:
            known = ", ".join(KV_DTYPES)
            raise UsageError(f"unknown kv_dtype {self.kv_dtype!r}", f"use one of {known}")
        if self.dummy == "":
            raise UsageError("dummy is empty", "give the name of a model shape or a config.json")
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


@dataclass(frozen=True)
class ServeConfig:
    """How an engine serves other terminals than the one that started it.

    `socket` is the path of a Unix socket, `name` the model's name for these terminals.
    `keep_alive_s`: the engine ends when no terminal has used it for this time; None is never.
    `endpoint` is the URL of the HTTP endpoint in front of the engine, shown by `swiftchat ps`.
    """

    socket: str
    name: str
    keep_alive_s: float | None = None
    endpoint: str | None = None

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Self:
        return cls(**wire)


@dataclass(frozen=True)
class Range:
    """Valid numbers; `text` describes them after "a number", as "between 0 and 1"."""

    text: str
    low: float
    high: float = inf
    excludes_low: bool = False

    def __contains__(self, value: float) -> bool:
        is_above = value > self.low if self.excludes_low else value >= self.low
        return isfinite(value) and is_above and value <= self.high

    def __str__(self) -> str:
        return self.text


_PENALTY = Range("between -100 and 100", -100, 100)
SAMPLING_RANGES = {
    "temperature": Range("of at least 0", 0),
    "top_k": Range("of at least 0", 0),
    "top_p": Range("above 0 and at most 1", 0, 1, excludes_low=True),
    "min_p": Range("between 0 and 1", 0, 1),
    "repeat_penalty": Range("between 0.01 and 100", 0.01, 100),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "seed": Range("between 0 and 2^64 - 1", 0, 2**64 - 1),
    "max_tokens": Range("of at least 0", 0),
    "logprobs": Range(f"between 0 and {MAX_LOGPROBS}", 0, MAX_LOGPROBS),
}


@dataclass(frozen=True)
class SamplingParams:
    """Sampling of the next token, and the conditions that end a generation.

    Order: penalties → temperature → top-k → min-p → top-p. `temperature` 0 is greedy;
    `top_k` 0, `top_p` 1, `min_p` 0 and a penalty of 1 (repeat) or 0 (others) are off.
    `seed` None is a random one; the engine reports the seed it used. `max_tokens` None means up
    to the end of the context. Generation ends after any of `stop_ids`, which is not returned.
    `logprobs` requests each token's logprob and the given number of top logprobs (at most
    MAX_LOGPROBS; None is off); it does not change the sampled tokens.
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
        for name, valid in SAMPLING_RANGES.items():
            value = getattr(self, name)
            is_optional = type(self).__dataclass_fields__[name].default is None
            if not (value is None and is_optional) and value not in valid:
                raise UsageError(f"{name} must be a number {valid}, not {value}")

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Self:
        return cls(**{**wire, "stop_ids": tuple(wire["stop_ids"])})
