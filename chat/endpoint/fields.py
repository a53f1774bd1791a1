"""Fields of other servers' requests: which ones are refused, and which cannot change the answer.

Those that are honored are fields of the requests (`requests.py`). A field that is neither there nor
here could change the answer and is refused too. docs/serving.md lists all; a test compares it with
these tables.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from swiftchat.chat.endpoint.errors import ApiError

_THINK = "use reasoning_effort or reasoning, or chat_template_kwargs such as enable_thinking"
_TEXT = "the model reads and writes text"
_START = "serve decides that when it starts"
_SAMPLER = "use the sampling parameters of docs/decoding.md"
_TOKENS = "answers are texts; logprobs name their tokens"
# Fields that would change the answer, and what to use instead. A field that is null, or has a
# value of `DEFAULTS`, asks for nothing.
REFUSED = {
    "functions": "use tools",
    "function_call": "use tool_choice",
    "documents": "use chat_template_kwargs",
    "enable_thinking": _THINK,
    "thinking": _THINK,
    "include_reasoning": "reasoning_content is apart from the answer",
    "reasoning_format": "reasoning_content is apart from the answer",
    "add_special_tokens": "the chat template writes the prompt",
    "chat_template": _START,
    "audio": _TEXT,
    "modalities": _TEXT,
    "image_data": _TEXT,
    "mm_processor_kwargs": _TEXT,
    "verbosity": "ask for it in the messages",
    "web_search_options": "offer a tool that searches",
    "do_sample": "use temperature",
    "ignore_eos": "use min_tokens",
    "use_beam_search": "use beams",
    "mirostat": _SAMPLER,
    "dynatemp_range": _SAMPLER,
    "samplers": _SAMPLER,
    "sampler_seq": _SAMPLER,
    "min_keep": _SAMPLER,
    "n_probs": "use logprobs",
    "logits_processors": _SAMPLER,
    "allowed_token_ids": "use logit_bias or a format of the answer",
    "structural_tag": "use response_format or tools",
    "grammar_lazy": "use response_format or tools",
    "guided_whitespace_pattern": "use x-guidance in the schema",
    "skip_special_tokens": _TOKENS,
    "spaces_between_special_tokens": _TOKENS,
    "include_stop_str_in_output": "the answer ends before a stop text",
    "truncate_prompt_tokens": "use overflow",
    "prompt_logprobs": "swiftchat -p … --prompt-logprobs --json has them",
    "return_tokens_as_token_ids": _TOKENS,
    "return_token_ids": _TOKENS,
    "return_tokens": _TOKENS,
    "n_indent": _SAMPLER,
    "t_max_predict_ms": "use max_tokens",
    "vllm_xargs": _SAMPLER,
}
DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "add_special_tokens": (False,),
    "include_reasoning": (True,),
    "reasoning_format": ("auto", "deepseek"),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "do_sample": (True,),
    "ignore_eos": (False,),
    "use_beam_search": (False,),
    "mirostat": (0,),
    "dynatemp_range": (0,),
    "min_keep": (0,),
    "n_probs": (0,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "grammar_lazy": (False,),
    "return_tokens_as_token_ids": (False,),
    "return_token_ids": (False,),
    "return_tokens": (False,),
    "n_indent": (0,),
    "t_max_predict_ms": (0, -1),
    "image_data": ([],),
    "logits_processors": ([],),
    "vllm_xargs": ({},),
}
# Fields that say who asks, what to keep, how fast to be, or where a proxy sends the request.
WITHOUT_EFFECT = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "request_id", "priority"),
    *("prompt_cache_key", "prompt_cache_retention", "prediction", "cache_prompt", "cache_salt"),
    *("id_slot", "guided_decoding_backend", "timings_per_token", "return_progress"),
    *("response_fields", "post_sampling_probs", "parse_tool_calls", "keep_alive", "ttl"),
    *("rid", "chat_id", "session_id", "message_id", "conversation_id", "background_tasks"),
    *("provider", "route", "usage", "timeout", "extra_headers", "custom_llm_provider", "tags"),
    *("data_parallel_rank", "kv_transfer_params", "n_cache_reuse", "slot_id", "draft_model"),
)
# Fields that only chat completions have.
CHAT_ONLY = (
    *("messages", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "reasoning"),
    *("chat_template_kwargs", "top_logprobs", "continue_final_message", "add_generation_prompt"),
)


@dataclass(frozen=True)
class FieldTable:
    """Fields of requests besides those that are honored; any other one is refused too.

    Those of `refused` would change the answer, unless they have a value of `defaults`; those of
    `without_effect` do not. `elsewhere` are fields of chat completions only.
    """

    refused: Mapping[str, str]
    defaults: Mapping[str, tuple[Any, ...]]
    without_effect: Collection[str]
    elsewhere: Collection[str] = ()

    def check(self, given: Mapping[str, Any]) -> None:
        """Raise `ApiError` for fields that may change the answer and are not honored."""
        for name, value in given.items():
            # 0 is not False here.
            is_default = any(
                type(value) is type(other) and value == other
                for other in self.defaults.get(name, ())
            )
            if value is None or is_default or name in self.without_effect:
                continue
            if name in self.elsewhere:
                reason = f"{name:.80} is a field of /v1/chat/completions"
            elif name in self.refused:
                reason = f"{name} is not supported: {self.refused[name]}"
            else:
                reason = f"{name:.80} is no field of this request"
            raise ApiError(400, reason, "unsupported_value", name[:80])


OTHER_FIELDS = FieldTable(REFUSED, DEFAULTS, WITHOUT_EFFECT)
COMPLETION_FIELDS = FieldTable(REFUSED, DEFAULTS, WITHOUT_EFFECT, CHAT_ONLY)
