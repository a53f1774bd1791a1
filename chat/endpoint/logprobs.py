"""Log probabilities in the formats of chat completions and completions."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from swiftchat.chat.model.answer import Answer
from swiftchat.chat.render.logprobs import token_bytes
from swiftchat.engine.api.protocol import Logprob
from swiftchat.tokenizer import Tokenizer

_LOWEST = -9999.0  # instead of -inf, which JSON does not have


class Logprobs(ABC):
    """The `logprobs` of an answer, which are reported part by part."""

    def __init__(self, answer: Answer, tokenizer: Tokenizer) -> None:
        self._answer, self._tokenizer = answer, tokenizer
        self.num_reported = 0

    def next(self) -> dict[str, Any] | None:
        """Return those of the tokens since the last call; None if they were not requested."""
        answer = self._answer
        if answer.params.logprobs is None:
            return None
        new = slice(self.num_reported, answer.num_tokens)
        self.num_reported = answer.num_tokens
        return self._object(list(zip(answer.ids[new], answer.logprobs[new], strict=True)))

    @abstractmethod
    def _object(self, tokens: Sequence[tuple[int, Logprob]]) -> dict[str, Any]: ...


class ChatLogprobs(Logprobs):
    """In the format of chat completions: an entry for each token."""

    def _object(self, tokens: Sequence[tuple[int, Logprob]]) -> dict[str, Any]:
        content = [
            {
                **self._entry(token_id, one.logprob),
                "top_logprobs": [self._entry(*other) for other in one.top],
            }
            for token_id, one in tokens
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        content = token_bytes(self._tokenizer, token_id)
        text = content.decode("utf-8", "replace")
        return {"token": text, "logprob": _finite(logprob), "bytes": list(content)}


class CompletionLogprobs(Logprobs):
    """In the format of completions: lists, and for each token a mapping of alternatives.

    `text_offset` is where the text of a token begins; a part of a character begins with it. The
    tokens of the prompt come first, if their log probabilities were requested; the first token has
    none.
    """

    def __init__(self, answer: Answer, tokenizer: Tokenizer) -> None:
        super().__init__(answer, tokenizer)
        self._offset, self._stream = 0, tokenizer.stream()
        self._control = {i: text for text, i in tokenizer.special_tokens.items()}
        self._has_prompt = answer.params.prompt_logprobs is None  # whether that was reported

    def _object(self, tokens: Sequence[tuple[int, Logprob]]) -> dict[str, Any]:
        reported = [*self._prompt(), *tokens]
        offsets, tops = [], []
        for token_id, one in reported:
            offsets.append(self._offset)
            self._offset += len(self._stream.push(token_id))
            top: dict[str, float] = {}
            for other, logprob in one.top if one else ():  # the most probable first
                top.setdefault(self._text(other), _finite(logprob))
            tops.append(top if one else None)
        return {
            "tokens": [self._text(token_id) for token_id, _ in reported],
            "token_logprobs": [one and _finite(one.logprob) for _, one in reported],
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _prompt(self) -> list[tuple[int, Logprob | None]]:
        """Return the tokens of the prompt once, when it has been computed."""
        answer = self._answer
        if self._has_prompt or not (answer.ids or answer.finish_reason):
            return []
        self._has_prompt = True
        return list(zip(answer.prompt.ids, [None, *answer.prompt_logprobs], strict=True))

    def _text(self, token_id: int) -> str:
        """Return the text of a token; a part of a character as OpenAI writes it."""
        if token_id in self._control:
            return self._control[token_id]
        content = token_bytes(self._tokenizer, token_id)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


def _finite(logprob: float) -> float:
    return max(round(logprob, 6), _LOWEST)
