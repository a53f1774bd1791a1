"""Log probabilities in the formats of chat completions and completions."""

from typing import Any

from swiftchat.chat.model.answer import Answer
from swiftchat.chat.render.logprobs import token_bytes
from swiftchat.engine.api.protocol import Logprob
from swiftchat.tokenizer import Tokenizer

_LOWEST = -9999.0  # instead of -inf, which JSON does not have


def chat_logprobs(
    answer: Answer, tokenizer: Tokenizer, start: int, end: int
) -> dict[str, Any] | None:
    """Return the `logprobs` of the answer's tokens `start : end`; None if not requested."""
    if answer.params.logprobs is None:
        return None

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        content = token_bytes(tokenizer, token_id)
        text = content.decode("utf-8", "replace")
        return {"token": text, "logprob": _finite(logprob), "bytes": list(content)}

    content = [
        {
            **entry(token_id, one.logprob),
            "top_logprobs": [entry(*other) for other in one.top],
        }
        for token_id, one in _tokens(answer, start, end)
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    answer: Answer, tokenizer: Tokenizer, start: int, end: int, offset: int
) -> dict[str, Any] | None:
    """Return the `logprobs` of the answer's tokens `start : end`; None if not requested.

    `offset` is the position in the answer's text of the first of these tokens.
    """
    if answer.params.logprobs is None:
        return None

    def text(token_id: int) -> str:
        return token_bytes(tokenizer, token_id).decode("utf-8", "replace")

    found: dict[str, list[Any]] = {
        name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    }
    for token_id, one in _tokens(answer, start, end):
        found["tokens"].append(text(token_id))
        found["token_logprobs"].append(_finite(one.logprob))
        found["top_logprobs"].append({text(i): _finite(logprob) for i, logprob in one.top})
        found["text_offset"].append(offset)
        offset += len(found["tokens"][-1])
    return found


def _tokens(answer: Answer, start: int, end: int) -> list[tuple[int, Logprob]]:
    return list(zip(answer.ids[start:end], answer.logprobs[start:end], strict=True))


def _finite(logprob: float) -> float:
    return max(round(logprob, 6), _LOWEST)
