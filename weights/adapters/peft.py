"""LoRA and DoRA adapters in the layout of PEFT: adapter_config.json and adapter_model.*.

Source: the configuration and the layers of PEFT (`peft.tuners.lora`).
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from swiftchat.errors import BadModelFile
from swiftchat.weights.adapters.adapter import Adapter, LowRank, TokenRows
from swiftchat.weights.adapters.files import CONFIG_FILE, OTHER_BASE, AdapterFiles
from swiftchat.weights.adapters.modules import (
    Targets,
    model_tensors,
    pattern_value,
    unknown_module,
)
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.formats.arrays import Floats
from swiftchat.weights.model.tensor_prefix import ModulePrefix
from swiftchat.weights.parallel.tensor_parallel import TensorKey

SOFT_PROMPT_TYPES = ("PREFIX_TUNING", "PROMPT_TUNING", "P_TUNING")

_PREFIX = "base_model.model."
# Endings of tensor names, by what the tensor is.
_ENDINGS = {
    ".lora_A.weight": "a",
    ".lora_B.weight": "b",
    ".lora_embedding_A": "embedding_a",
    ".lora_embedding_B": "embedding_b",
    ".lora_magnitude_vector.weight": "magnitude",
    ".lora_magnitude_vector": "magnitude",
    ".lora_B.bias": "bias",
    ".token_adapter.trainable_tokens_delta": "rows",
}
# Keys that are read here, or that matter only for training or for the name of the base model.
_KNOWN_KEYS = frozenset(
    {
        "alpha_pattern",
        "auto_mapping",
        "base_model_name_or_path",
        "bias",
        "corda_config",
        "ensure_weight_tying",
        "eva_config",
        "exclude_modules",
        "fan_in_fan_out",
        "inference_mode",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "loftq_config",
        "lora_alpha",
        "lora_bias",
        "lora_dropout",
        "lora_ga_config",
        "megatron_config",
        "megatron_core",
        "modules_to_save",
        "peft_type",
        "peft_version",
        "qalora_group_size",
        "r",
        "rank_pattern",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
        "trainable_token_indices",
        "use_dora",
        "use_rslora",
        "velora_config",
    }
)
# Initializations that also change the base model's weights.
_CHANGED_BASES = ("pissa", "olora", "corda", "loftq", "lora_ga")


def peft_adapter(directory: Path, settings: Mapping[str, Any], config: ModelConfig) -> Adapter:
    """Return the adapter for the model of `config`.

    Raises `BadModelFile` for a key that is not supported, and for a tensor that is damaged or does
    not fit the model.
    """
    place = f"{directory / CONFIG_FILE}"
    kind = settings.get("peft_type")
    if kind != "LORA":
        hint = "LoRA and DoRA adapters are supported"
        if kind in SOFT_PROMPT_TYPES:
            hint = f"it is a soft prompt: use --soft-prompt {directory}"
        raise BadModelFile(f"{place}: peft_type {str(kind)[:40]!r} is not supported", hint)
    reject_unsupported(settings, _KNOWN_KEYS, place)
    start = settings.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASES):
        raise BadModelFile(
            f"{place}: init_lora_weights {start[:40]!r} belongs to changed base weights",
            "save it with PEFT's path_initial_model_for_weight_conversion",
        )
    return _PeftReader(directory, settings, config, place).adapter()


def reject_unsupported(settings: Mapping[str, Any], known: frozenset[str], place: str) -> None:
    """Raise `BadModelFile` for a key that is not `known` and is switched on."""
    for key, value in settings.items():
        if key not in known and value not in (None, False, [], {}, ""):
            raise BadModelFile(
                f"{place}: {key[:80]} is {str(value)[:80]}, which is not supported",
                "such an adapter computes something that this program does not",
            )


class _PeftReader:
    def __init__(
        self, directory: Path, settings: Mapping[str, Any], config: ModelConfig, place: str
    ) -> None:
        self._directory, self._settings, self._config = directory, settings, config
        self._place = place
        self._files = AdapterFiles(directory)
        self._known = model_tensors(config)
        self._targets = Targets(settings, place)
        self._alphas = self._numbers("alpha_pattern")
        self._numbers("rank_pattern")  # the ranks are those of the tensors
        self._alpha = self._number("lora_alpha", 8)
        self._is_rank_stabilized = self._flag("use_rslora")
        self._uses_dora = self._flag("use_dora")
        for key in ("fan_in_fan_out", "lora_bias"):
            self._flag(key)
        names = (name.removeprefix(_PREFIX) for name in self._files.tensors)
        self._prefix = ModulePrefix(config, names)
        self._named: dict[str, str] = {}  # the adapter's names of the modules

    def adapter(self) -> Adapter:
        modules: dict[str, dict[str, str]] = {}
        replaced: dict[str, str] = {}
        rows: dict[str, str] = {}
        for name in self._files.tensors:
            module, part = self._parse(name)
            if part == "rows":
                rows[module] = name
            elif part:
                modules.setdefault(module, {})[part] = name
            elif module.endswith(".base_layer.weight"):
                self._check_base_copy(name, module)
            else:
                replaced[module.replace(".base_layer.", ".")] = name
        low_rank = tuple(self._change(module, parts) for module, parts in modules.items())
        self._check_complete(modules)
        whole = {self._replaced_key(name, stored): stored for name, stored in replaced.items()}
        token_rows = self._token_rows(rows)
        if not low_rank and not whole and not token_rows:
            raise BadModelFile(f"{self._files.file} has no tensors of an adapter")
        if self._flag("ensure_weight_tying") and self._config.head.tied:
            self._reject_changed_head(low_rank, whole)
        base = self._settings.get("base_model_name_or_path")
        return Adapter(
            path=self._directory,
            kind="DoRA" if self._uses_dora else "LoRA",
            low_rank=low_rank,
            replaced={key: self._files.reader(stored) for key, stored in whole.items()},
            token_rows=token_rows,
            base=base if isinstance(base, str) and base else None,
            files=(self._directory / CONFIG_FILE, self._files.file),
        )

    def _parse(self, name: str) -> tuple[str, str]:
        """Return the module of a low-rank tensor and its part; else the model's tensor and ""."""
        if not name.startswith(_PREFIX):
            raise BadModelFile(f"{self._files.file}: tensor {name[:200]}: expected {_PREFIX}…")
        theirs = name.removeprefix(_PREFIX)
        rest = self._prefix.standard(theirs)
        for ending, part in _ENDINGS.items():
            if rest.endswith(ending):
                module = rest.removesuffix(ending)
                self._named[module] = theirs.removesuffix(ending)
                return module, part
        if ".lora_" in rest:
            raise BadModelFile(f"{self._files.file}: tensor {name[:200]} is of an unknown kind")
        return rest.replace(".modules_to_save.", "."), ""

    def _check_base_copy(self, name: str, module: str) -> None:
        """Check a copy of a base matrix, which PEFT saves with adapters of embeddings."""
        tensor = module.replace(".base_layer.", ".")
        self._files.require(name, self._tensor(tensor)[1])

    def _check_complete(self, modules: Mapping[str, Mapping[str, str]]) -> None:
        """Raise `BadModelFile` if a module that the configuration names has no tensors."""
        if self._targets.modules is None or self._targets.are_all:
            return
        for tensor, (key, shape) in self._known.items():
            module = tensor.removesuffix(".weight")
            is_matrix = len(shape) == 2 and module != tensor and key[0] != "positions"
            is_missing = is_matrix and module not in modules
            if is_missing and self._targets.include(self._prefix.named(module)):
                raise BadModelFile(
                    f"{self._files.file}: no tensors of module {module}, which {CONFIG_FILE} names",
                    OTHER_BASE,
                )

    def _token_rows(self, stored: Mapping[str, str]) -> tuple[TokenRows, ...]:
        """Return the rows of `trainable_token_indices`, the ids of all or by module."""
        indices = self._settings.get("trainable_token_indices") or {}
        by_module = {"embed_tokens": indices} if isinstance(indices, list) else indices
        place = f"{self._place}: trainable_token_indices"
        if not isinstance(by_module, dict):
            raise BadModelFile(f"{place}: expected token ids, or token ids by module")
        found = []
        for module, ids in by_module.items():
            name = next((each for each in stored if f".{each}".endswith(f".{module}")), None)
            if name is None:
                raise BadModelFile(f"{place}: {self._files.file} has no rows for {module[:80]}")
            key, shape = self._tensor(f"{name}.weight")
            if key[0] != "embed":
                raise BadModelFile(
                    f"{place}: {module[:80]} is not the embedding table",
                    "such an adapter computes something that this program does not",
                )
            is_valid = isinstance(ids, list) and all(type(each) is int for each in ids)
            if not is_valid or not {*ids} <= {*range(shape[0])} or len({*ids}) < len(ids):
                raise BadModelFile(f"{place}: {module[:80]}: expected ids of different tokens")
            self._files.require(stored[name], (len(ids), shape[1]))
            read = self._files.reader(stored[name])
            found.append(TokenRows(key, f"{name}.weight", tuple(ids), read))
        if len(found) < len(stored):
            raise BadModelFile(f"{self._files.file} has rows of tokens that {CONFIG_FILE} lacks")
        return tuple(found)

    def _reject_changed_head(self, low_rank: Iterable[LowRank], whole: Iterable[TensorKey]) -> None:
        """Raise `BadModelFile` for changes of tied embeddings that the head must share."""
        if any(key[0] in ("embed", "lm_head") for key in (*(c.key for c in low_rank), *whole)):
            raise BadModelFile(
                f"{self._place}: ensure_weight_tying is True, and the embeddings change",
                "such an adapter computes something that this program does not",
            )

    def _change(self, module: str, parts: Mapping[str, str]) -> LowRank:
        tensor = f"{module}.weight"
        key, shape = self._tensor(tensor)
        named = self._named[module]
        if not self._targets.include(named):
            raise BadModelFile(
                f"{self._files.file}: module {named} is not among the target_modules of "
                f"{CONFIG_FILE}"
            )
        is_embedding = "embedding_a" in parts or "embedding_b" in parts
        names = [f"{_PREFIX}{named}.lora_{part}.weight" for part in "AB"]
        if is_embedding:
            names = [f"{_PREFIX}{named}.lora_embedding_{part}" for part in "AB"]
        if len(shape) != 2 or is_embedding != (key[0] in ("embed", "positions")):
            raise BadModelFile(f"{self._files.file}: {names[0]}: {tensor} is no such matrix")
        num_out, num_in = shape if key[0] not in self._transposed else shape[::-1]
        rank = self._rank(names[0])
        if is_embedding:  # its rows are outputs
            num_out, num_in = num_in, num_out
        self._files.require(names[0], (rank, num_in))
        self._files.require(names[1], (num_out, rank))
        return LowRank(
            key=key,
            tensor=tensor,
            rank=rank,
            scale=self._scale(module, rank),
            a=self._files.reader(names[0]),
            b=self._files.reader(names[1]),
            magnitude=self._magnitude(module, parts, num_out),
            bias=self._vector(parts, "bias", num_out),
        )

    def _magnitude(self, module: str, parts: Mapping[str, str], num_out: int) -> Any:
        if self._uses_dora != ("magnitude" in parts):
            raise BadModelFile(
                f"{self._files.file}: module {module}: lora_magnitude_vector: expected "
                f"{'one' if self._uses_dora else 'none'}, as use_dora is {self._uses_dora}"
            )
        return self._vector(parts, "magnitude", num_out)

    def _vector(self, parts: Mapping[str, str], part: str, length: int) -> Any:
        """Return the reader of a vector, which some versions store as a matrix with one row."""
        if part not in parts:
            return None
        name = parts[part]
        if math.prod(self._files.shape(name)) != length:
            found = str(list(self._files.shape(name)))
            raise self._files.bad(name, str([length]), found, OTHER_BASE)
        return self._files.reader(name, _flat)

    def _rank(self, name: str) -> int:
        shape = self._files.shape(name)
        if len(shape) != 2:
            raise self._files.bad(name, "two axes", str(list(shape)))
        return shape[0]

    def _scale(self, module: str, rank: int) -> float:
        place = f"{self._place}: alpha_pattern"
        alpha = pattern_value(self._alphas, module, self._alpha, place)
        return float(alpha / math.sqrt(rank) if self._is_rank_stabilized else alpha / rank)

    def _replaced_key(self, name: str, stored: str) -> TensorKey:
        key, shape = self._tensor(name)
        self._files.require(stored, shape)
        return key

    def _tensor(self, name: str) -> tuple[TensorKey, tuple[int, ...]]:
        if name not in self._known:
            module = name.removesuffix(".weight")
            message = unknown_module(str(self._files.file), module, self._known, self._config)
            raise BadModelFile(message, OTHER_BASE)
        return self._known[name]

    @property
    def _transposed(self) -> frozenset[str]:
        return ARCHITECTURES[self._config.architecture].transposed

    def _flag(self, key: str) -> bool:
        value = self._settings.get(key, False)
        if value is not None and not isinstance(value, bool):
            raise BadModelFile(f"{self._place}: {key}: expected true or false, found {value!r:.80}")
        return bool(value)

    def _number(self, key: str, default: float) -> float:
        value = self._settings.get(key, default)
        if not is_number(value):
            raise BadModelFile(f"{self._place}: {key}: expected a number, found {value!r:.80}")
        return float(value)

    def _numbers(self, key: str) -> dict[str, float]:
        value = self._settings.get(key) or {}
        if not isinstance(value, dict) or not all(map(is_number, value.values())):
            raise BadModelFile(f"{self._place}: {key}: expected numbers by module")
        return value


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is a finite number of usual size."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -1e9 <= value <= 1e9


def _flat(values: Floats) -> Floats:
    return np.ascontiguousarray(values).reshape(-1)
