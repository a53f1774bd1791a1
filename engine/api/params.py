"""Parameters of an engine and of one generation."""

from dataclasses import asdict, dataclass
from sys import float_info
from typing import Any, Literal, Self

from swiftchat.engine.api.reasoning import ReasoningMarkers
from swiftchat.errors import UsageError

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("bfloat16", "float16", "float32")
KV_DTYPES = ("auto", "int8", "fp8", "int5")
NumRanks = int | Literal["auto"]
NumLayers = int | Literal["auto"]
MAX_LOGPROBS = 50
POOLINGS = ("mean", "last", "sum")
OVERFLOWS = ("error", "drop-oldest", "sliding")
DEFAULT_OVERFLOW_KEEP = 4  # attention sinks: Xiao et al., 2023, arXiv:2309.17453
MAX_BEAMS = 64
MAX_SAMPLES = 64
EARLY_STOPPING = ("true", "false", "never")
SPECULATE = ("auto", "off", "ngram", "draft")
LOOP_STOPS = ("on", "off")


@dataclass(frozen=True)
class EngineConfig:
    """The device, data types, memory and parallelism of an engine.

    `dtype`: None is the checkpoint's.
    `kv_dtype`: int8 or fp8 quantizes the KV cache to 8 bits, int5 keys to 6 and values to 5; auto
    stores it in `dtype`.
    `ctx_size_tokens`: the longest context of one sequence; None is the model's, or the longest
    that fits into memory.
    `cache_tokens`: the KV cache of all sequences together; None is twice the context, so that a
    second conversation does not evict the first.
    `chunk_tokens`: the most tokens of one forward pass, which bounds the time until a cancel
    takes effect; None is 8192 with our CUDA kernels if there is much memory, else 4096, at most 512
    with torch operators, and on a CPU with our kernels what takes half a second, between 32 and
    512. On a GPU, None also limits chunks to what takes 40 ms, at least 64, while other answers are
    in progress.
    `dummy`: random weights with the shapes of a named model or a config.json, quantized with the
    suffix `:int8`, `:fp8` or `:int4`; the model path is then ignored.
    `kernels`: False runs torch operators instead of our kernels.
    `cache_max_bytes`: the bound of the KV cache on disk, which all models share; 0 has none, None
    is the smaller of 8 GiB and 5 % of the disk.
    `swap_bytes`: main memory for KV blocks that the GPU evicts.
    `tp`: the number of tensor-parallel ranks of a stage, each on a GPU of its own, counted from
    `device`; auto is the smallest number whose memory holds the model.
    `pp`: the number of pipeline stages, each with `tp` ranks and some of the layers.
    `gpu_memory_bytes`: the most memory of a GPU that is used; None is what is free.
    `cpu_experts`: how many layers' experts are in main memory, the last ones; auto is as few as the
    GPU's memory requires. For one GPU.
    `draft`: the directory of a draft model with the same vocabulary or of prediction heads, or mtp
    for the model's own layer; for one rank.
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
    cache_max_bytes: int | None = None
    swap_bytes: int = 0
    tp: NumRanks = 1
    pp: int = 1
    gpu_memory_bytes: int | None = None
    cpu_experts: NumLayers = "auto"
    draft: str | None = None

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
        for name in (
            *("ctx_size_tokens", "cache_tokens", "chunk_tokens", "num_threads"),
            "gpu_memory_bytes",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, not {value}")
        if self.tp != "auto" and self.tp < 1:
            raise UsageError(f"tp must be at least 1 or auto, not {self.tp}")
        if self.cpu_experts != "auto":
            if self.cpu_experts < 0:
                raise UsageError(f"cpu_experts must be at least 0 or auto, not {self.cpu_experts}")
            if self.cpu_experts and (self.tp != 1 or self.pp != 1):
                raise UsageError(
                    "experts in main memory need a single GPU", "leave out --tp and --pp"
                )
        for name in ("cache_max_bytes", "swap_bytes"):
            if (getattr(self, name) or 0) < 0:
                raise UsageError(f"{name} must be at least 0, not {getattr(self, name)}")
        if self.draft is not None and (self.tp != 1 or self.pp != 1):
            raise UsageError("a draft model needs a single device", "leave out --tp and --pp")
        for name in ("block_size", "max_num_seqs", "pp"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")

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
    high: float = float_info.max
    excludes_low: bool = False

    def __contains__(self, value: float) -> bool:
        is_above = value > self.low if self.excludes_low else value >= self.low
        return is_above and value <= self.high  # excludes NaN

    def __str__(self) -> str:
        return self.text


_PENALTY = Range("between -100 and 100", -100, 100)
# Kernels take counts as 32-bit integers.
MAX_COUNT = 2**31 - 1
_COUNT = Range("between 0 and 2^31 - 1", 0, MAX_COUNT)
_FRACTION = Range("above 0 and at most 1", 0, 1, excludes_low=True)
SAMPLING_RANGES = {
    "temperature": Range("of at least 0", 0),
    "top_k": _COUNT,
    "top_p": _FRACTION,
    "top_p_decay": _FRACTION,
    "top_p_min": Range("between 0 and 1", 0, 1),
    "min_p": Range("between 0 and 1", 0, 1),
    "typical_p": _FRACTION,
    "top_n_sigma": Range("between 0 and 100", 0, 100),
    "xtc_probability": Range("between 0 and 1", 0, 1),
    "xtc_threshold": _FRACTION,
    "repeat_penalty": Range("between 0.01 and 100", 0.01, 100),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "repeat_last_n": Range("between -1 and 2^31 - 1", -1, MAX_COUNT),
    "dry_multiplier": Range("between 0 and 100", 0, 100),
    "dry_base": Range("between 1 and 10", 1, 10),
    "dry_allowed_length": Range("between 1 and 2^31 - 1", 1, MAX_COUNT),
    "no_repeat_ngram": _COUNT,
    "seed": Range("between 0 and 2^64 - 1", 0, 2**64 - 1),
    "min_tokens": _COUNT,
    "max_tokens": _COUNT,
    "reasoning_budget": _COUNT,
    "logprobs": Range(f"between 0 and {MAX_LOGPROBS}", 0, MAX_LOGPROBS),
    "prompt_logprobs": Range(f"between 0 and {MAX_LOGPROBS}", 0, MAX_LOGPROBS),
    "overflow_keep": _COUNT,
    "beams": Range(f"between 1 and {MAX_BEAMS}", 1, MAX_BEAMS),
    "length_penalty": Range("between -10 and 10", -10, 10),
    "diversity_rate": Range("between 0 and 100", 0, 100),
    "speculate_tokens": Range("between 1 and 15", 1, 15),
}
LOGIT_BIAS_RANGE = _PENALTY


@dataclass(frozen=True)
class SamplingParams:
    """Sampling of the next token, and the conditions that end a generation.

    The order of the controls, and what each does: docs/decoding.md. `temperature` 0 is greedy;
    `top_k` 0, `top_p` 1, `min_p` 0, `typical_p` 1, `top_n_sigma` 0, `xtc_probability` 0,
    `top_p_decay` 1, `dry_multiplier` 0, `no_repeat_ngram` 0 and a penalty of 1 (repeat) or 0
    (others) are off.
    `repeat_last_n`: the penalties count only the last n tokens; -1 is all.
    `logit_bias`: pairs (id, number added to its logit), each id once.
    `bad_words`: sequences of ids that are never completed.
    `dry_breaker_ids` end the repetitions that DRY counts, `top_p_reset_ids` reset the decay.
    `seed` None is a random one; the engine reports the seed it used. Generation ends after any of
    `stop_ids`, which is not returned, and not before `min_tokens`. `max_tokens` None means up to
    the end of the context.
    `reasoning_budget` is the most tokens of reasoning, which has the markers `reasoning`; then the
    engine ends it. With both, `max_tokens` counts only the tokens after the reasoning.
    `logprobs` requests each token's logprob and the given number of top logprobs (at most
    MAX_LOGPROBS; None is off), `prompt_logprobs` the same for the prompt's tokens but the first.
    They do not change the sampled tokens.
    `pooling` requests an embedding of the prompt instead of an answer: the `mean` or `sum` of its
    hidden states after the last norm, or the `last` one. `max_tokens` is then 0.
    `overflow` sliding: when the context is full, half of the tokens behind the `overflow_keep`
    first ones (None: DEFAULT_OVERFLOW_KEEP) are dropped, the newest half stays, and the answer goes
    on. With the others, which differ in what is left out of a prompt, it ends.
    `speculate`: propose tokens, at most `speculate_tokens` at a time, and verify them in one step
    (docs/decoding.md). The proposer is `ngram` (what followed the same tokens before), `draft`
    (the engine's draft model or heads), or with `auto` the better one.
    `beams`: beam search with so many beams; None is off. It returns the best `returned_beams`, with
    their scores; `length_penalty`, `early_stopping` and `diversity_rate` are those of `BeamSearch`.
    `temperature` is then 0.
    `loop_stop` is for the terminal, which ends an answer that repeats itself; the engine goes on.
    `saves_cache`: the KV blocks of prompt and answer are written to the disk, if the engine has a
    cache there.
    """

    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 0.95
    top_p_decay: float = 1.0
    top_p_min: float = 0.0
    top_p_reset_ids: tuple[int, ...] = ()
    min_p: float = 0.0
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = -1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_breaker_ids: tuple[int, ...] = ()
    no_repeat_ngram: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    seed: int | None = None
    min_tokens: int = 0
    max_tokens: int | None = None
    reasoning_budget: int | None = None
    reasoning: ReasoningMarkers | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stop_ids: tuple[int, ...] = ()
    pooling: str | None = None
    overflow: str = "error"
    overflow_keep: int | None = None
    speculate: str = "auto"
    speculate_tokens: int = 15
    beams: int | None = None
    returned_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: str = "false"
    diversity_rate: float = 0.0
    loop_stop: str = "on"
    saves_cache: bool = False

    def __post_init__(self) -> None:
        for name, valid in SAMPLING_RANGES.items():
            value = getattr(self, name)
            is_optional = type(self).__dataclass_fields__[name].default is None
            if not (value is None and is_optional) and value not in valid:
                raise UsageError(f"{name} must be a number {valid}, not {value}")
        if self.speculate not in SPECULATE:
            known = ", ".join(SPECULATE)
            raise UsageError(f"unknown speculate {self.speculate!r}", f"use one of {known}")
        if self.loop_stop not in LOOP_STOPS:
            known = ", ".join(LOOP_STOPS)
            raise UsageError(f"unknown loop_stop {self.loop_stop!r}", f"use one of {known}")
        if self.max_tokens is not None and 0 < self.max_tokens < self.min_tokens:
            raise _contradiction(self, "min_tokens", "max_tokens")
        if self.top_p_decay < 1 and self.top_p_min > self.top_p:
            raise _contradiction(self, "top_p_min", "top_p")
        if len(dict(self.logit_bias)) < len(self.logit_bias):
            raise UsageError("logit_bias has a token twice", "give each token one value")
        for _, value in self.logit_bias:
            if value not in LOGIT_BIAS_RANGE:
                raise UsageError(f"logit_bias must be a number {LOGIT_BIAS_RANGE}, not {value}")
        if () in self.bad_words:
            raise UsageError("bad_words has an empty sequence", "leave it out")
        if self.overflow not in OVERFLOWS:
            known = ", ".join(OVERFLOWS)
            raise UsageError(f"unknown overflow {self.overflow!r}", f"use one of {known}")
        if self.early_stopping not in EARLY_STOPPING:
            known = ", ".join(EARLY_STOPPING)
            raise UsageError(
                f"unknown early_stopping {self.early_stopping!r}", f"use one of {known}"
            )
        if self.beams is not None:
            _check_beams(self, self.beams)
        if self.pooling is not None:
            _check_pooling(self)

    @property
    def has_penalties(self) -> bool:
        """Whether a penalty that counts the ids of the sequence is on."""
        is_on = self.repeat_penalty != 1 or self.presence_penalty or self.frequency_penalty
        return bool(is_on) and self.repeat_last_n != 0

    @property
    def changes_logits(self) -> bool:
        """Whether anything changes the logits before the temperature does."""
        return bool(
            self.has_penalties
            or self.dry_multiplier
            or self.no_repeat_ngram
            or self.logit_bias
            or self.bad_words
            or self.min_tokens
        )

    @property
    def depends_on_tokens(self) -> bool:
        """Whether a token is sampled otherwise after other tokens of the answer."""
        return self.changes_logits or self.top_p_decay < 1

    @property
    def host_controls(self) -> tuple[str, ...]:
        """The controls in use that the kernels of a captured decode step do not have.

        With any of them, the host samples, and decode steps are not replayed.
        """
        in_use = {
            "beams": self.beams is not None,
            "logprobs": self.logprobs is not None,
            "repeat_last_n": self.repeat_last_n > 0 and self.has_penalties,
            "dry_multiplier": self.dry_multiplier > 0,
            "no_repeat_ngram": self.no_repeat_ngram > 0,
            "bad_words": any(len(word) > 1 for word in self.bad_words),
            "top_n_sigma": self.top_n_sigma > 0 and self.temperature > 0,
            "typical_p": self.typical_p < 1 and self.temperature > 0,
            "xtc_probability": self.xtc_probability > 0 and self.temperature > 0,
            "top_p_decay": self.top_p_decay < 1 and self.temperature > 0,
        }
        return tuple(name for name, is_used in in_use.items() if is_used)

    @property
    def unverified_controls(self) -> tuple[str, ...]:
        """The controls in use that the GPU's verification of proposed tokens does not have.

        The tables of ids that they need are those of one row of each sequence.
        """
        in_use = {
            "repeat_penalty": self.has_penalties,
            "logit_bias": bool(self.logit_bias),
            "ban": bool(self.bad_words),
            "min_tokens": self.min_tokens > 0,
        }
        return (*self.host_controls, *(name for name, is_used in in_use.items() if is_used))

    @property
    def sliding_keep(self) -> int | None:
        """The number of first tokens that a sliding context keeps; None: it does not slide."""
        if self.overflow != "sliding":
            return None
        return DEFAULT_OVERFLOW_KEEP if self.overflow_keep is None else self.overflow_keep

    def to_wire(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Self:
        values = {name: _as_tuples(value) for name, value in wire.items()}
        if (markers := values["reasoning"]) is not None:
            values["reasoning"] = ReasoningMarkers.from_wire(markers)
        return cls(**values)


def _contradiction(params: SamplingParams, smaller: str, larger: str) -> UsageError:
    """Return the error for a value that is larger than the one that bounds it."""
    values = f"{getattr(params, smaller)} is above {larger} {getattr(params, larger)}"
    return UsageError(f"{smaller} {values}", "change one of them")


def _check_beams(params: SamplingParams, beams: int) -> None:
    """Raise `UsageError` for what cannot be combined with a beam search."""
    if not 1 <= params.returned_beams <= beams:
        raise UsageError(
            f"--samples {params.returned_beams} is above --beams {beams}", "change one of them"
        )
    others = {
        f"temperature {params.temperature}": params.temperature > 0,
        "logprobs": params.logprobs is not None,
        "prompt_logprobs": params.prompt_logprobs is not None,
        "overflow sliding": params.overflow == "sliding",
        f"speculate {params.speculate}": params.speculate not in ("auto", "off"),
        "an embedding": params.pooling is not None,
        f"reasoning_budget {params.reasoning_budget}": params.reasoning_budget is not None,
    }
    for other, is_given in others.items():
        if is_given:
            raise UsageError(
                f"beams {beams} cannot be combined with {other}", "leave out one of them"
            )


def _check_pooling(params: SamplingParams) -> None:
    if params.pooling not in POOLINGS:
        raise UsageError(f"unknown pooling {params.pooling!r}", f"use one of {', '.join(POOLINGS)}")
    if params.max_tokens != 0 or params.prompt_logprobs is not None:
        raise UsageError("an embedding has no answer and no logprobs", "set max_tokens to 0")


def _as_tuples(value: Any) -> Any:
    """Return a value with its lists as tuples: msgpack has lists only."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
