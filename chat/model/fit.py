"""Which known models fit this machine, and how fast they would answer."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from swiftchat.chat.model.memory import DeviceMemory, device_memory
from swiftchat.chat.terminal.amounts import format_bytes
from swiftchat.engine.api.memory_estimate import RESERVED_FRACTION
from swiftchat.weights.hub.known_models import Form, KnownModel, known_models

CONTEXT_TOKENS = 8192
# Of the bandwidth: decode steps reach about half to nine tenths of it, see docs/performance.md.
_READ_FRACTION = 0.7
_QUICK_TOKENS_PER_S = 7.0  # as fast as people read


@dataclass(frozen=True)
class Fit:
    """A form of a known model on a device.

    `memory_bytes` are those of the weights and a context of 8192 tokens, or the model's if that is
    shorter; `missing_bytes` those that the device lacks, 0 if the model fits. `tokens_per_s` is
    what the bandwidth allows at the beginning of a conversation; None if that is not known.
    """

    model: KnownModel
    form: Form
    memory_bytes: int
    missing_bytes: int
    tokens_per_s: float | None

    @property
    def name(self) -> str:
        """The shortest name of the form."""
        return self.model.name if self.form is self.model.forms[0] else self.form.name

    @property
    def verdict(self) -> str:
        """What a user wants to know first: the speed, or the memory that is missing."""
        if self.missing_bytes:
            return f"needs {format_bytes(self.missing_bytes)} more"
        if self.tokens_per_s is None:
            return "fits"
        return f"about {self.tokens_per_s:.{int(self.tokens_per_s < 10)}f} tokens/s"

    @property
    def is_quick(self) -> bool:
        """Whether answers come as fast as they are read."""
        return self.tokens_per_s is None or self.tokens_per_s >= _QUICK_TOKENS_PER_S


def best_device() -> DeviceMemory:
    """Return the GPU with the most free memory, else the CPU."""
    cpu, *gpus = device_memory()
    return max(gpus, key=lambda gpu: gpu.free_bytes, default=cpu)


def room_bytes(device: DeviceMemory) -> int:
    """Return the free memory that an engine would use."""
    return int(device.free_bytes * (1 - RESERVED_FRACTION))


def fits(
    device: DeviceMemory, bytes_per_s: float | None, models: Iterable[KnownModel] | None = None
) -> list[Fit]:
    """Return how each model fits, the best first, with the form that its short name means.

    Models that fit precede others, those with quick answers precede slow ones, and otherwise the
    model that is expected to be better comes first (`_expectation`).
    """
    chosen = known_models().values() if models is None else models
    found = [_fit(model, model.forms[0], device, bytes_per_s) for model in chosen]
    found.sort(key=lambda fit: (not fit.missing_bytes, fit.is_quick, _expectation(fit.model)))
    return found[::-1]


def form_fits(device: DeviceMemory, bytes_per_s: float | None, word: str) -> list[Fit]:
    """Return how each form of the models fits that have `word` in their names, by name and size."""
    return [
        _fit(model, form, device, bytes_per_s)
        for name, model in known_models().items()
        if word.lower() in name
        for form in model.forms
    ]


def _fit(model: KnownModel, form: Form, device: DeviceMemory, bytes_per_s: float | None) -> Fit:
    context_tokens = min(CONTEXT_TOKENS, model.context_tokens)
    memory_bytes = form.size_bytes + context_tokens * model.kv_bytes_per_token
    speed = None if bytes_per_s is None else bytes_per_s * _READ_FRACTION / form.bytes_per_token
    return Fit(model, form, memory_bytes, max(0, memory_bytes - room_bytes(device)), speed)


def _expectation(model: KnownModel) -> float:
    """Return how good a model may be: the size of a dense one as good, half for each year of age.

    Of a mixture of experts, the geometric mean of all parameters and of those of a token.
    """
    size: float = (model.parameters * model.active_parameters) ** 0.5
    year, month = map(int, model.date.split("-"))
    return math.ldexp(size, year - 2026) * math.exp2(month / 12)
