"""Supported architectures by Hugging Face class name."""

import difflib
import re
from collections.abc import Mapping
from types import MappingProxyType

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.families.apertus_bitnet_nanochat import APERTUS_BITNET_NANOCHAT
from swiftchat.weights.architectures.families.aria import ARIA
from swiftchat.weights.architectures.families.bloom_falcon_opt import BLOOM_FALCON_OPT
from swiftchat.weights.architectures.families.cohere_moe import COHERE_MOE
from swiftchat.weights.architectures.families.deepseek import DEEPSEEK
from swiftchat.weights.architectures.families.delta_hybrids import DELTA_HYBRIDS
from swiftchat.weights.architectures.families.gemma import GEMMA
from swiftchat.weights.architectures.families.gemma3n import GEMMA3N
from swiftchat.weights.architectures.families.gemma4 import GEMMA4
from swiftchat.weights.architectures.families.glm import GLM
from swiftchat.weights.architectures.families.gpt import GPT
from swiftchat.weights.architectures.families.gpt_like import GPT_LIKE
from swiftchat.weights.architectures.families.granite_cohere import GRANITE_COHERE
from swiftchat.weights.architectures.families.lfm2 import LFM2
from swiftchat.weights.architectures.families.llama import LLAMA
from swiftchat.weights.architectures.families.llama4 import LLAMA4
from swiftchat.weights.architectures.families.llama_like import LLAMA_LIKE
from swiftchat.weights.architectures.families.longcat import LONGCAT
from swiftchat.weights.architectures.families.mamba import MAMBA
from swiftchat.weights.architectures.families.minimax import MINIMAX
from swiftchat.weights.architectures.families.moe import MOE
from swiftchat.weights.architectures.families.nemotron_h import NEMOTRON_H
from swiftchat.weights.architectures.families.own_code import OWN_CODE
from swiftchat.weights.architectures.families.phi import PHI
from swiftchat.weights.architectures.families.qwen import QWEN
from swiftchat.weights.architectures.families.qwen_next import QWEN_NEXT
from swiftchat.weights.architectures.families.sigmoid_routers import SIGMOID_ROUTERS
from swiftchat.weights.architectures.families.softmax_routers import SOFTMAX_ROUTERS
from swiftchat.weights.architectures.families.sparse_latent import SPARSE
from swiftchat.weights.architectures.families.state_space import STATE_SPACE
from swiftchat.weights.architectures.families.uneven_heads import UNEVEN_HEADS
from swiftchat.weights.architectures.families.windowed_moe import WINDOWED_MOE
from swiftchat.weights.architectures.parts.architecture import Architecture

_SUFFIXES = re.compile("(ForCausalLM|ForConditionalGeneration|Model|LMHeadModel)$")
_SIMILAR = 0.8

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        **LLAMA,
        **LLAMA4,
        **QWEN,
        **GEMMA,
        **GEMMA3N,
        **GEMMA4,
        **PHI,
        **GLM,
        **LLAMA_LIKE,
        **APERTUS_BITNET_NANOCHAT,
        **GRANITE_COHERE,
        **COHERE_MOE,
        **ARIA,
        **MOE,
        **SOFTMAX_ROUTERS,
        **SIGMOID_ROUTERS,
        **WINDOWED_MOE,
        **UNEVEN_HEADS,
        **LFM2,
        **QWEN_NEXT,
        **DELTA_HYBRIDS,
        **MAMBA,
        **NEMOTRON_H,
        **STATE_SPACE,
        **MINIMAX,
        **DEEPSEEK,
        **SPARSE,
        **LONGCAT,
        **GPT,
        **GPT_LIKE,
        **BLOOM_FALCON_OPT,
        **OWN_CODE,
    }
)


def unknown_name(kind: str, name: str, known: list[str]) -> BadModelFile:
    """Return the error for a `name` that is not in `known`; its hint gives a very similar one."""
    # Nearly all names share a suffix, so it would dominate the similarity.
    short = {_SUFFIXES.sub("", each).lower(): each for each in known}
    stem = _SUFFIXES.sub("", name[:80]).lower()
    nearest = difflib.get_close_matches(stem, short, n=1, cutoff=_SIMILAR)
    similar = f"similar: {short[nearest[0]]}; " if nearest else ""
    return BadModelFile(
        f"unknown {kind} {name[:80]!r}: this version does not run it",
        f"{similar}swiftchat help models says what runs; a newer version may run this model",
    )


def architecture_of(class_name: str) -> Architecture:
    """Return the architecture of a Hugging Face class name.

    Raises `BadModelFile` for an unknown name.
    """
    if class_name not in ARCHITECTURES:
        raise unknown_name("architecture", class_name, sorted(ARCHITECTURES))
    return ARCHITECTURES[class_name]
