"""Which known models fit this machine, and how fast they would answer."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from swiftchat.chat.model.memory import DeviceMemory, device_memory
from swiftchat.chat.terminal.amounts import format_bytes
from swiftchat.engine.api.memory_estimate import RESERVED_FRACTION, rank_counts
from swiftchat.weights.hub.known_models import Form, KnownModel, known_models, new_models

CONTEXT_TOKENS = 8192
# Of the bandwidth: decode steps reach about half to nine tenths of it, see docs/performance.md.
_READ_FRACTION = 0.7
_RANK_COUNTS = (1, 2, 4, 8)  # nearly all models can be divided so
_QUICK_TOKENS_PER_S = 7.0  # as fast as people read


@dataclass(frozen=True)
class Fit:
    """A form of a known model on a device.

    `memory_bytes` are those of the weights and a context of 8192 tokens, or the model's if that is
    shorter; `missing_bytes` those that the machine lacks, 0 if the model fits. `num_devices` is 1,
    or the number of GPUs that `--tp auto` would take. `tokens_per_s` is what their bandwidth allows
    at the beginning of a conversation; None if that is not known.
    """

    model: KnownModel
    form: Form
    memory_bytes: int
    missing_bytes: int
    tokens_per_s: float | None
    num_devices: int = 1

    @property
    def name(self) -> str:
        """The shortest name of the form."""
        return self.model.name if self.form is self.model.forms[0] else self.form.name

    @property
    def verdict(self) -> str:
        """What a user wants to know first: the speed, or the memory that is missing."""
        if self.missing_bytes:
            return f"needs {format_bytes(self.missing_bytes)} more"
        where = f", --tp {self.num_devices}" if self.num_devices > 1 else ""
        if self.tokens_per_s is None:
            return f"fits{where}"
        return f"~{self.tokens_per_s:.{int(self.tokens_per_s < 10)}f} tokens/s{where}"

    @property
    def is_quick(self) -> bool:
        """Whether answers come as fast as they are read."""
        return self.tokens_per_s is None or self.tokens_per_s >= _QUICK_TOKENS_PER_S


def usable_devices() -> list[DeviceMemory]:
    """Return the GPUs, else the CPU; an engine without options uses the first."""
    cpu, *gpus = device_memory()
    return gpus or [cpu]


def room_bytes(device: DeviceMemory) -> int:
    """Return the free memory that an engine would use."""
    return _room_bytes(device.free_bytes)


def _room_bytes(free_bytes: int) -> int:
    return int(free_bytes * (1 - RESERVED_FRACTION))


def listed_models() -> Mapping[str, KnownModel]:
    """Return the known models by short name, then those that the hub has beyond them."""
    return {**known_models(), **new_models()}


def fits(
    devices: Sequence[DeviceMemory],
    bytes_per_s: float | None,
    models: Iterable[KnownModel] | None = None,
) -> list[Fit]:
    """Return how each model fits, the best first, with the form that its short name means.

    On the first of `devices`, or on as many as it needs; `bytes_per_s` is the bandwidth of each.
    Models that fit precede others, those with quick answers precede slow ones, and otherwise the
    model that is expected to be better comes first (`_expectation`).
    """
    chosen = listed_models().values() if models is None else models
    found = [_fit(model, model.forms[0], devices, bytes_per_s) for model in chosen]
    found.sort(key=lambda fit: (not fit.missing_bytes, fit.is_quick, _expectation(fit.model)))
    return found[::-1]


def form_fits(devices: Sequence[DeviceMemory], bytes_per_s: float | None, word: str) -> list[Fit]:
    """Return how each form of the models fits that have `word` in their names, by name and size."""
    return [
        _fit(model, form, devices, bytes_per_s)
        for name, model in listed_models().items()
        if word.lower() in name.lower()
        for form in model.forms
    ]


def _fit(
    model: KnownModel, form: Form, devices: Sequence[DeviceMemory], bytes_per_s: float | None
) -> Fit:
    context_tokens = min(CONTEXT_TOKENS, model.context_tokens)
    memory_bytes = form.size_bytes + context_tokens * model.kv_bytes_per_token
    missing_bytes, num_devices = memory_bytes, 1
    for num_ranks, free_bytes in rank_counts(
        _RANK_COUNTS, 1, len(devices), lambda index: devices[index].free_bytes
    ):
        missing = max(0, memory_bytes - num_ranks * _room_bytes(free_bytes))
        if missing < missing_bytes:
            missing_bytes, num_devices = missing, num_ranks
        if not missing_bytes:
            break
    speed = None
    if bytes_per_s is not None:
        speed = num_devices * bytes_per_s * _READ_FRACTION / form.bytes_per_token
    return Fit(model, form, memory_bytes, missing_bytes, speed, num_devices)


def _expectation(model: KnownModel) -> float:
    """Return how good a model may be: the size of a dense one as good, half for each year of age.

    Of a mixture of experts, the geometric mean of all parameters and of those of a token.
    """
    size: float = (model.parameters * model.active_parameters) ** 0.5
    year, month = map(int, model.date.split("-"))
    return math.ldexp(size, year - 2026) * math.exp2(month / 12)
