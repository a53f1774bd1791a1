"""Built-in chat templates, as published by the models' authors, for models without one."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class BuiltIn:
    """A template and the texts that end an answer (control tokens, or plain text).

    It applies to a model whose vocabulary has all `control_tokens` and none of `other_tokens`, and
    whose `model_type` is in `model_types` (any if empty). One without `control_tokens` is used only
    if the user selects it.
    """

    source: str
    ends: tuple[str, ...]
    control_tokens: frozenset[str] = frozenset()
    model_types: frozenset[str] = frozenset()
    other_tokens: frozenset[str] = frozenset()


def family_template(model_type: str, special_tokens: Collection[str]) -> str | None:
    """Return the name of the only template that fits the model, or None.

    `model_type` is the field of `config.json`.
    """
    names = set(special_tokens)
    found = [
        name
        for name, built_in in BUILT_IN.items()
        if built_in.control_tokens
        and built_in.control_tokens <= names
        and built_in.other_tokens.isdisjoint(names)
        and (not built_in.model_types or model_type in built_in.model_types)
    ]
    return found[0] if len(found) == 1 else None


_CHATML = """{% for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

_LLAMA_3 = """{{ bos_token }}
{%- for message in messages -%}
<|start_header_id|>{{ message.role }}<|end_header_id|>

{{ message.content | trim }}<|eot_id|>
{%- endfor %}
{%- if add_generation_prompt -%}
<|start_header_id|>assistant<|end_header_id|>{{ '\n\n' }}
{%- endif %}"""

_PHI_3 = """{% for message in messages -%}
<|{{ message.role }}|>
{{ message.content }}<|end|>
{% endfor -%}
{% if add_generation_prompt %}<|assistant|>
{% endif %}"""

_CHATGLM = """[gMASK]sop
{%- for message in messages -%}
<|{{ message.role }}|>{{ '\n ' + message.content }}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

# Sets `system` to the system message and `turns` to the other messages.
_SPLIT_SYSTEM_OR_DEFAULT = """{% if messages[0].role == 'system' -%}
{% set system = messages[0].content | trim -%}
{% set turns = messages[1:] -%}
{% else -%}
{% set system = "DEFAULT" -%}
{% set turns = messages -%}
{% endif -%}
"""
_SPLIT_SYSTEM = _SPLIT_SYSTEM_OR_DEFAULT.replace("DEFAULT", "")

_GEMMA = """{{ bos_token -}}
{% for message in turns -%}
<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}
{% if loop.first and system %}{{ system + '\n\n' }}{% endif %}
{{- message.content | trim }}<end_of_turn>
{% endfor -%}
{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""

_MISTRAL = """{{ bos_token -}}
{% for message in turns -%}
{% if message.role == 'assistant' %}{{ ' ' + message.content | trim }}{{ eos_token }}
{%- else %}[INST] {% if loop.last and system %}{{ system + '\n\n' }}{% endif %}
{{- message.content }}[/INST]
{%- endif -%}
{% endfor %}"""

_LLAMA_2 = """{% for message in turns -%}
{% if message.role == 'assistant' %}{{ ' ' + message.content | trim + ' ' }}{{ eos_token }}
{%- else %}{{ bos_token }}{{ '[INST] ' }}
{%- if loop.first and system %}{{ '<<SYS>>\n' + system + '\n<</SYS>>\n\n' }}{% endif %}
{{- message.content | trim + ' [/INST]' }}
{%- endif -%}
{% endfor %}"""

_ALPACA = """{{ bos_token }}{{ system + '\n\n' }}
{%- for message in turns -%}
{% if message.role == 'assistant' %}{{ '### Response:\n' + message.content | trim + '\n\n' }}
{%- else %}{{ '### Instruction:\n' + message.content | trim + '\n\n' }}
{%- endif -%}
{% endfor %}
{%- if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}"""
_ALPACA_SYSTEM = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request."
)

_VICUNA = """{{ bos_token }}{{ system + ' ' }}
{%- for message in turns -%}
{% if message.role == 'assistant' %}{{ 'ASSISTANT: ' + message.content | trim }}{{ eos_token }}
{%- else %}{{ 'USER: ' + message.content | trim + ' ' }}
{%- endif -%}
{% endfor %}
{%- if add_generation_prompt %}ASSISTANT:{% endif %}"""
_VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant "
    "gives helpful, detailed, and polite answers to the user's questions."
)


BUILT_IN: Mapping[str, BuiltIn] = MappingProxyType(
    {
        "chatml": BuiltIn(
            _CHATML,
            ("<|im_end|>",),
            frozenset({"<|im_start|>", "<|im_end|>"}),
            # These occur in Phi-4 and in models that mark more than turns.
            other_tokens=frozenset({"<|im_sep|>", "<|im_middle|>"}),
        ),
        "llama-3": BuiltIn(
            _LLAMA_3,
            ("<|eot_id|>",),
            frozenset({"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}),
        ),
        "gemma": BuiltIn(
            _SPLIT_SYSTEM + _GEMMA,
            ("<end_of_turn>",),
            frozenset({"<start_of_turn>", "<end_of_turn>"}),
            frozenset({"gemma", "gemma2", "gemma3", "gemma3_text"}),
        ),
        "phi-3": BuiltIn(
            _PHI_3,
            ("<|end|>",),
            frozenset({"<|user|>", "<|assistant|>", "<|end|>"}),
            frozenset({"phi3"}),
        ),
        "chatglm": BuiltIn(
            _CHATGLM,
            ("<|user|>", "<|observation|>"),
            frozenset({"[gMASK]", "sop", "<|user|>", "<|assistant|>", "<|observation|>"}),
            frozenset({"chatglm"}),
        ),
        "mistral": BuiltIn(
            _SPLIT_SYSTEM + _MISTRAL,
            (),
            frozenset({"[INST]", "[/INST]"}),
            frozenset({"mistral", "mixtral"}),
            # Later versions write no blanks around turns, or mark the system message.
            frozenset({"[SYSTEM_PROMPT]", "<SPECIAL_20>"}),
        ),
        "llama-2": BuiltIn(_SPLIT_SYSTEM + _LLAMA_2, ()),
        "alpaca": BuiltIn(
            _SPLIT_SYSTEM_OR_DEFAULT.replace("DEFAULT", _ALPACA_SYSTEM) + _ALPACA,
            ("\n### Instruction:",),
        ),
        "vicuna": BuiltIn(
            _SPLIT_SYSTEM_OR_DEFAULT.replace("DEFAULT", _VICUNA_SYSTEM) + _VICUNA, ("\nUSER:",)
        ),
    }
)
