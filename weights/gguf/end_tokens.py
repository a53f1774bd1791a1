"""Tokens of a GGUF vocabulary that end an answer.

Many files name only one of them, or a wrong one. As in llama.cpp, tokens whose text ends a turn in
a known format are end tokens too, and control tokens whatever their type is. Beyond llama.cpp's
list there are those of Muse and Llama 4, DeepSeek Coder, Command R, Ling and EXAONE.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_KEYS = ("eos", "eot", "eom")
_TEXTS = frozenset(
    {
        *("<|im_end|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"),
        *("</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<end_of_turn>", "<turn|>"),
        *("<end_of_utterance>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>"),
        *("<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[", "<|eot|>", "<|EOT|>"),
        *("<|END_OF_TURN_TOKEN|>", "<|role_end|>", "<|endofturn|>"),
    }
)
# Where these exist, `<|end|>` ends one message of several in a turn.
_ENDS_OF_SEVERAL = ({"<|return|>", "<|call|>"}, {"<|calls|>", "<|flush|>"})
_HTML = "</s>"  # in some vocabularies a tag like any other
CONTROL = 3  # in `tokenizer.ggml.token_type`


def special_id(metadata: Mapping[str, Any], name: str, num_tokens: int) -> int | None:
    """Return the id of `tokenizer.ggml.NAME_token_id`; None: absent, or not an id of a token.

    Some files have -1 as an unsigned integer, for a token that they lack.
    """
    token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
    return token_id if type(token_id) is int and 0 <= token_id < num_tokens else None


def is_end_of_turn(tokens: Sequence[str], types: Sequence[Any]) -> list[bool]:
    """Return for each token, of these types, whether its text ends a turn in a known format."""
    ends = set(_TEXTS.intersection(tokens))
    if any(messages <= ends for messages in _ENDS_OF_SEVERAL):
        ends.discard("<|end|>")
    return [
        token in ends and (token != _HTML or kind == CONTROL)
        for token, kind in zip(tokens, types, strict=True)
    ]


def end_token_ids(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[Any]
) -> list[int]:
    """Return the ids that end an answer, those that the file names first."""

    def ids() -> Iterator[int]:
        for name in _KEYS:
            if (token_id := special_id(metadata, name, len(tokens))) is not None:
                yield token_id
        yield from (n for n, is_end in enumerate(is_end_of_turn(tokens, types)) if is_end)

    return list(dict.fromkeys(ids()))
