"""Supported architectures by Hugging Face class name."""

import difflib
import re
from collections.abc import Mapping
from types import MappingProxyType

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.families.ai21 import AI21
from swiftchat.weights.architectures.families.allenai import ALLENAI
from swiftchat.weights.architectures.families.arcee import ARCEE
from swiftchat.weights.architectures.families.baidu import BAIDU
from swiftchat.weights.architectures.families.bigscience import BIGSCIENCE
from swiftchat.weights.architectures.families.cohere import COHERE
from swiftchat.weights.architectures.families.databricks import DATABRICKS
from swiftchat.weights.architectures.families.deepseek import DEEPSEEK
from swiftchat.weights.architectures.families.eleutherai import ELEUTHERAI
from swiftchat.weights.architectures.families.gemma import GEMMA
from swiftchat.weights.architectures.families.gemma3n import GEMMA3N
from swiftchat.weights.architectures.families.gemma4 import GEMMA4
from swiftchat.weights.architectures.families.ibm import IBM
from swiftchat.weights.architectures.families.inclusion_ai import INCLUSION_AI
from swiftchat.weights.architectures.families.lg import LG, LG_VARIANTS
from swiftchat.weights.architectures.families.liquid import LIQUID
from swiftchat.weights.architectures.families.meituan import MEITUAN
from swiftchat.weights.architectures.families.meta import META
from swiftchat.weights.architectures.families.microsoft import MICROSOFT
from swiftchat.weights.architectures.families.minimax import MINIMAX
from swiftchat.weights.architectures.families.mistral import MISTRAL
from swiftchat.weights.architectures.families.moonshot import MOONSHOT
from swiftchat.weights.architectures.families.nvidia import NVIDIA
from swiftchat.weights.architectures.families.openai import OPENAI
from swiftchat.weights.architectures.families.openbmb import OPENBMB
from swiftchat.weights.architectures.families.other_experts import (
    OTHER_EXPERTS,
    OTHER_EXPERTS_VARIANTS,
)
from swiftchat.weights.architectures.families.others import OTHERS, OTHERS_VARIANTS
from swiftchat.weights.architectures.families.poolside import POOLSIDE
from swiftchat.weights.architectures.families.qwen import QWEN
from swiftchat.weights.architectures.families.state_spaces import STATE_SPACES
from swiftchat.weights.architectures.families.swiss_ai import SWISS_AI
from swiftchat.weights.architectures.families.tencent import TENCENT
from swiftchat.weights.architectures.families.tii import TII
from swiftchat.weights.architectures.families.xiaomi import XIAOMI
from swiftchat.weights.architectures.families.zhipu import ZHIPU
from swiftchat.weights.architectures.parts.architecture import Architecture
from swiftchat.weights.architectures.parts.fields import Fields
from swiftchat.weights.architectures.parts.variants import chosen

_SUFFIXES = re.compile("(ForCausalLM|ForConditionalGeneration|Model|LMHeadModel)$")
_SIMILAR = 0.8

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        **AI21,
        **ALLENAI,
        **ARCEE,
        **BAIDU,
        **BIGSCIENCE,
        **COHERE,
        **DATABRICKS,
        **DEEPSEEK,
        **ELEUTHERAI,
        **GEMMA,
        **GEMMA3N,
        **GEMMA4,
        **IBM,
        **INCLUSION_AI,
        **LG,
        **LIQUID,
        **MEITUAN,
        **META,
        **MICROSOFT,
        **MINIMAX,
        **MISTRAL,
        **MOONSHOT,
        **NVIDIA,
        **OPENAI,
        **OPENBMB,
        **OTHER_EXPERTS,
        **OTHERS,
        **POOLSIDE,
        **QWEN,
        **STATE_SPACES,
        **SWISS_AI,
        **TENCENT,
        **TII,
        **XIAOMI,
        **ZHIPU,
    }
)

# Model types that share a class with another.
VARIANTS = (*LG_VARIANTS, *OTHERS_VARIANTS, *OTHER_EXPERTS_VARIANTS)
# The class by `model_type`, for files that name none or an unknown one.
CLASS_OF_TYPE: Mapping[str, str] = MappingProxyType(
    {variant.model_type: variant.class_name for variant in VARIANTS}
    | {architecture.model_type: name for name, architecture in ARCHITECTURES.items()}
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


def architecture_of(class_name: str, config: Fields) -> Architecture:
    """Return the architecture of a Hugging Face class name in a file with this config.

    Raises `BadModelFile` for an unknown name.
    """
    if class_name not in ARCHITECTURES:
        raise unknown_name("architecture", class_name, sorted(ARCHITECTURES))
    base = ARCHITECTURES[class_name]
    same_class = [variant for variant in VARIANTS if variant.class_name == class_name]
    return chosen(base, [(each.applies, each.of(base)) for each in same_class], config)
