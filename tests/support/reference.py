"""Tiny random models of every decoder-only architecture of transformers, and our logits of them."""

import json
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)

from swiftchat.engine.cpu.recorded_activations import CannotRecordError
from swiftchat.errors import SwiftchatError
from swiftchat.weights.architectures.registry import ARCHITECTURES
from tests.support import tiny
from tests.support.model_store import stored
from tests.support.multimodal_sizes import MULTIMODAL_SIZES
from tests.support.reference_sizes import ABSENT, OWN_SIZES, SIZES

# The largest accepted difference, relative to the largest logit.
TOLERANCE = 1e-4
MAX_PARAMETERS = 20_000_000
_WRAPPERS: Mapping[str, str] = MappingProxyType(
    {**MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES, **MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES}
)
# Model types by name; those of multimodal models have the class with the vision part.
MODEL_TYPES: Mapping[str, str] = MappingProxyType(
    {
        **_WRAPPERS,
        **MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        **{name: _WRAPPERS[name] for name in MULTIMODAL_SIZES if name in _WRAPPERS},
    }
)
CAUSAL_TYPES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
# The types of supported architectures without a model in `tiny_models`.
SWEPT_TYPES = tuple(
    architecture.model_type
    for name, architecture in ARCHITECTURES.items()
    if MODEL_TYPES.get(architecture.model_type) == name
    and not any(name.startswith(f"{family}For") for family, _ in tiny.FAMILIES.values())
    and name not in ("GPT2LMHeadModel", "LlamaForCausalLM", "MistralForCausalLM")
)
MULTIMODAL_TYPES = tuple(MULTIMODAL_SIZES)
# Those whose language models have no class of their own.
ONLY_MULTIMODAL = ("qwen3_vl_moe", "mllama")


transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


class NoReferenceError(Exception):
    """Transformers cannot make or load a model of this configuration."""


def tiny_config(model_type: str, **changes: Any) -> transformers.PretrainedConfig:
    """Return a small configuration of a model type of transformers."""
    cls = transformers.CONFIG_MAPPING[model_type]
    own = {**OWN_SIZES, **MULTIMODAL_SIZES}.get(model_type, {})
    sizes = {**_present(SIZES, cls()), **own, **changes}
    config = cls(**{key: value for key, value in sizes.items() if value is not ABSENT})
    if getattr(config, "is_decoder", None) is False:
        config.is_decoder = True
    return config


def _present(sizes: Mapping[str, Any], default: transformers.PretrainedConfig) -> dict[str, Any]:
    """Return the sizes that a configuration has; of those that may be absent only those it sets."""
    optional = ("head_dim", "num_key_value_heads", "sliding_window")
    default.allow_global_per_layer_attribute_access = True  # else Gemma 4 raises an error
    return {
        key: value
        for key, value in sizes.items()
        if hasattr(default, key)
        and not (key in optional and getattr(default, key) is None)
        and (key == "eos_token_id" or not isinstance(getattr(default, key), list | dict))
    }


def copy_reference(model_type: str, folder: Path, **changes: Any) -> torch.Tensor:
    """Put a random fp32 model in `folder`; return transformers' logits after each of `prompt_ids`.

    Its files are copied if a process of this session of tests has made it. The generator of torch
    starts anew, so that what a test draws next does not depend on other tests.
    """

    def make_both(made: Path) -> None:
        model = make_reference(model_type, made / "model", **changes)
        torch.save(reference_logits(model, prompt_ids()), made / "logits")

    made = stored(f"swept-{model_type}", changes, make_both)
    shutil.copytree(made / "model", folder, dirs_exist_ok=True, copy_function=shutil.copyfile)
    torch.manual_seed(20)
    logits: torch.Tensor = torch.load(made / "logits")
    return logits


def make_reference(model_type: str, folder: Path, **changes: Any) -> transformers.PreTrainedModel:
    """Save a random fp32 model in `folder` and return it; raises `NoReferenceError`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            config = tiny_config(model_type, **changes)
            config._attn_implementation = "eager"
            cls = getattr(transformers, MODEL_TYPES[model_type])
            with torch.device("meta"):
                size = sum(parameter.numel() for parameter in cls(config).parameters())
            if size > MAX_PARAMETERS:
                raise ValueError(f"{size} parameters")
            torch.manual_seed(20)
            model = cls(config).eval()
            _spread(model)
            model.save_pretrained(folder)
            if model_type in _AS_PUBLISHED:
                file = folder / "model.safetensors"
                save_file(_AS_PUBLISHED[model_type](load_file(file)), file, {"format": "pt"})
            return model
        except Exception as error:
            raise NoReferenceError(f"{type(error).__name__}: {error}") from error


Tensors = dict[str, torch.Tensor]


def _qwen3_vl_moe(tensors: Tensors) -> Tensors:
    return {
        name: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor
        for name, tensor in tensors.items()
    }


def _kimi_k25(tensors: Tensors) -> Tensors:
    wrong, layers = (f"language_model.model.{name}." for name in ("blocks", "layers"))
    return {name.replace(wrong, layers): tensor for name, tensor in tensors.items()}


def _kimi_linear(tensors: Tensors) -> Tensors:
    pattern = re.compile(r"block_sparse_moe\.(gate|up|down)_proj")
    return {pattern.sub(r"mlp.\1_proj", name): tensor for name, tensor in tensors.items()}


def _olmo_hybrid(tensors: Tensors) -> Tensors:
    """Divide convolutions as their matrices; norms of layers with attention are OLMo 3's."""
    found = Tensors()
    for name, tensor in tensors.items():
        if name.replace("feedforward_layer_norm", "self_attn.q_proj") in tensors:
            name = name.replace("feedforward_layer_norm", "post_attention_layernorm")
        found[name] = tensor
    for name in [name for name in found if name.endswith("q_conv1d.weight")]:
        names = [name.replace("q_conv1d", f"{part}_conv1d") for part in "qkv"]
        widths = [len(found[each.replace("conv1d", "proj")]) for each in names]
        parts = torch.cat([found[each] for each in names]).split(widths)
        found |= {each: part.contiguous() for each, part in zip(names, parts, strict=True)}
    return found


# Tensors that transformers saves otherwise than they are published.
_AS_PUBLISHED: Mapping[str, Callable[[Tensors], Tensors]] = MappingProxyType(
    {
        "qwen3_vl_moe": _qwen3_vl_moe,
        "kimi_k25": _kimi_k25,
        "kimi_linear": _kimi_linear,
        "olmo_hybrid": _olmo_hybrid,
    }
)


def _spread(model: transformers.PreTrainedModel) -> None:
    """Give constant parameters random values, so that swapping or ignoring them shows."""
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            torch.nn.init.normal_(buffer, mean=1.0, std=0.1)
        elif name.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(buffer, std=0.2)
    for name, parameter in model.named_parameters():
        constant = bool((parameter == parameter.flatten()[0]).all()) if parameter.numel() else False
        if constant and parameter.is_floating_point():
            mean = float(parameter.detach().flatten()[0])
            torch.nn.init.normal_(parameter, mean=mean, std=0.1 if mean else 0.2)
        elif "lm_head" not in name and not name.endswith("A_log") and parameter.ndim >= 2:
            parameter.data *= max(1.0, 0.15 / max(float(parameter.detach().std()), 1e-3))


@cache
def prompt_ids(length: int = 24) -> tuple[int, ...]:
    return tuple(tiny.random_ids(length, seed=5))


@torch.inference_mode()
def reference_logits(model: transformers.PreTrainedModel, ids: tuple[int, ...]) -> torch.Tensor:
    """Return the logits after each of the ids: [len(ids), vocab_size]."""
    if isinstance(model, transformers.Llama4ForConditionalGeneration):
        model = model.language_model  # transformers 5.24 fails in the outer model without an image
    try:
        return model(torch.tensor([ids]), use_cache=False).logits[0]
    except Exception as error:
        raise NoReferenceError(f"{type(error).__name__}: {error}") from error


def load_reference(model_type: str, folder: Path) -> transformers.PreTrainedModel:
    """Load the model in `folder` as transformers reads its files."""
    cls = getattr(transformers, MODEL_TYPES[model_type])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            loaded: transformers.PreTrainedModel = cls.from_pretrained(
                folder, attn_implementation="eager", dtype=torch.float32
            )
        except Exception as error:
            raise NoReferenceError(f"{type(error).__name__}: {error}") from error
    return loaded.eval()


@torch.inference_mode()
def outcome(folder: Path, expected: torch.Tensor, *, native: bool = False) -> str:
    """Compare our logits of the model in `folder`: "equal", "refused: …", "wrong: …", "error: …".

    The first ids come as a prefill in chunks, the last ones token by token.
    """
    ids = prompt_ids(len(expected))
    try:
        bench = tiny.Bench(folder, chunk_tokens=7, native=native)
        rows = [bench.last_logits(ids[: end + 1]) for end in (4, len(ids) - 2, len(ids) - 1)]
    except SwiftchatError as error:
        return f"refused: {error.message}"
    except CannotRecordError as error:
        return f"torch: {error}"
    except Exception as error:  # noqa: BLE001  (it is the result)
        return f"error: {type(error).__name__}: {error}"
    reference = expected[[4, -2, -1]]
    difference = float((torch.stack(rows) - reference).abs().max() / reference.abs().max())
    return "equal" if difference <= TOLERANCE else f"wrong: differs by {difference:.1e}"


def edit_config(folder: Path, **changes: Any) -> None:
    """Replace keys of `config.json`."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
