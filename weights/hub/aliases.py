"""Short names for well-known models, as `FAMILY:SIZE`."""

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType

DEFAULT_MODEL = "SmolLM2-135M-Instruct"

# The chat model of each family; the base model of older families without one.
_REPOSITORIES: Mapping[str, str] = MappingProxyType(
    {
        "deepseek-r1:1.5b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
        "deepseek-r1:7b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        "deepseek-r1:8b": "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
        "deepseek-r1:14b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B",
        "deepseek-r1:32b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
        "deepseek-r1:70b": "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
        "falcon:7b": "tiiuae/falcon-7b-instruct",
        "gemma2:2b": "google/gemma-2-2b-it",
        "gemma2:9b": "google/gemma-2-9b-it",
        "gemma2:27b": "google/gemma-2-27b-it",
        "gemma3:270m": "google/gemma-3-270m-it",
        "gemma3:1b": "google/gemma-3-1b-it",
        "gpt2": "openai-community/gpt2",
        "gpt2:medium": "openai-community/gpt2-medium",
        "gpt2:large": "openai-community/gpt2-large",
        "gpt2:xl": "openai-community/gpt2-xl",
        "gpt-oss:20b": "openai/gpt-oss-20b",
        "gpt-oss:120b": "openai/gpt-oss-120b",
        "llama3.1:8b": "meta-llama/Llama-3.1-8B-Instruct",
        "llama3.1:70b": "meta-llama/Llama-3.1-70B-Instruct",
        "llama3.2:1b": "meta-llama/Llama-3.2-1B-Instruct",
        "llama3.2:3b": "meta-llama/Llama-3.2-3B-Instruct",
        "llama3.3:70b": "meta-llama/Llama-3.3-70B-Instruct",
        "mistral:7b": "mistralai/Mistral-7B-Instruct-v0.3",
        "mistral-nemo:12b": "mistralai/Mistral-Nemo-Instruct-2407",
        "mixtral:8x7b": "mistralai/Mixtral-8x7B-Instruct-v0.1",
        "olmo2:1b": "allenai/OLMo-2-0425-1B-Instruct",
        "olmo2:7b": "allenai/OLMo-2-1124-7B-Instruct",
        "olmo2:13b": "allenai/OLMo-2-1124-13B-Instruct",
        "phi3:mini": "microsoft/Phi-3-mini-4k-instruct",
        "phi3.5:mini": "microsoft/Phi-3.5-mini-instruct",
        "phi4": "microsoft/phi-4",
        "phi4:mini": "microsoft/Phi-4-mini-instruct",
        "qwen2.5:0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
        "qwen2.5:1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
        "qwen2.5:3b": "Qwen/Qwen2.5-3B-Instruct",
        "qwen2.5:7b": "Qwen/Qwen2.5-7B-Instruct",
        "qwen2.5:14b": "Qwen/Qwen2.5-14B-Instruct",
        "qwen2.5:32b": "Qwen/Qwen2.5-32B-Instruct",
        "qwen2.5:72b": "Qwen/Qwen2.5-72B-Instruct",
        "qwen3:0.6b": "Qwen/Qwen3-0.6B",
        "qwen3:1.7b": "Qwen/Qwen3-1.7B",
        "qwen3:4b": "Qwen/Qwen3-4B",
        "qwen3:8b": "Qwen/Qwen3-8B",
        "qwen3:14b": "Qwen/Qwen3-14B",
        "qwen3:32b": "Qwen/Qwen3-32B",
        "qwen3:30b-a3b": "Qwen/Qwen3-30B-A3B",
        "smollm2:135m": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "smollm2:360m": "HuggingFaceTB/SmolLM2-360M-Instruct",
        "smollm2:1.7b": "HuggingFaceTB/SmolLM2-1.7B-Instruct",
        "smollm3:3b": "HuggingFaceTB/SmolLM3-3B",
        "stablelm2:1.6b": "stabilityai/stablelm-2-1_6b-chat",
        "tinyllama:1.1b": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    }
)
_ALIASES = {repo.lower(): alias for alias, repo in _REPOSITORIES.items()}


def repository_of(name: str) -> str | None:
    """Return the OWNER/NAME on the hub of the alias `name`, ignoring case."""
    return _REPOSITORIES.get(name.lower())


def alias_of(repo: str) -> str | None:
    """Return the alias of the model OWNER/NAME on the hub, ignoring case."""
    return _ALIASES.get(repo.lower())


def known_names() -> list[str]:
    """Return every alias."""
    return list(_REPOSITORIES)


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return up to six `known` names: other sizes of the family, then similar spellings."""
    # Truncated: matching time grows with the square of the length.
    lowered = {other.lower(): other for other in known}
    wanted = name[:100].lower()
    family = wanted.partition(":")[0]
    same = [other for other in lowered if other.partition(":")[0] == family]
    close = difflib.get_close_matches(wanted, lowered, n=3, cutoff=0.6)
    return [lowered[other] for other in dict.fromkeys([*same, *close])][:6]
