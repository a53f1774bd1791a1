"""One answer in the making: from prompt ids to pieces of text."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from swiftchat.chat.model.reasoning import ReasoningForm, ReasoningSplitter, Thought, control_marks
from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Finished, Logprob, Prefill, Tokens

if TYPE_CHECKING:
    from swiftchat.tokenizer import Prompt, Tokenizer


class Answer:
    """Iterate for the text as it comes; afterwards the attributes say how it went.

    Pieces that are `Thought`s are what the model thinks before it answers; `reasoning` has them
    together, `num_reasoning_tokens` and `reasoning_s` say what they took.

    `text` is the answer delivered so far, `ids` what the model said, which may be more, and
    `logprobs` their log probabilities, if the parameters ask for it.
    `finish_reason` is `stop` (the model ended, or a stop string was met), `length` or
    `interrupt`; None while going on. `result` is the engine's
    account, None if the answer was interrupted before the engine gave it. A `KeyboardInterrupt`
    passes through; whoever catches it calls `interrupt`.
    """

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: "Tokenizer",
        prompt: "Prompt",
        params: SamplingParams,
        stops: Sequence[str] = (),
        on_prefill: Callable[[Prefill], None] | None = None,
        reasoning: ReasoningForm | None = None,
    ) -> None:
        # Here, not at the top: it would delay the prompt, and by now the tokenizer has it anyway.
        from swiftchat.tokenizer import StopMatcher

        self.params = params
        self.prompt = prompt
        self.num_prompt_tokens = len(prompt)
        self.ids: list[int] = []
        self.logprobs: list[Logprob] = []
        self.num_tokens = 0
        self.text = ""
        self.num_reasoning_tokens = 0
        self.reasoning_s = 0.0
        self.finish_reason: str | None = None
        self.result: Finished | None = None
        self.ttft_s: float | None = None
        self._started = time.perf_counter()
        self._first_token: float | None = None
        self._last_token: float | None = None
        self._decoder = tokenizer.stream()
        self._stops = StopMatcher(stops)
        self._thoughts: list[str] = []
        prompt_end = "".join(span.text for span in prompt.spans[-4:])
        self._splitter = ReasoningSplitter(reasoning, prompt_end)
        self._marks = control_marks(reasoning, tokenizer.special_tokens) if reasoning else {}
        self._on_prefill = on_prefill
        self._generation = engine.generate(prompt.ids, params)

    def __iter__(self) -> Iterator[str]:
        for event in self._generation:
            match event:
                case Tokens(ids, logprobs):
                    self.ids += ids
                    self.logprobs += logprobs
                    self._count(len(ids))
                    yield from self._say(self._stops.push("".join(map(self._decoded, ids))))
                case Finished():
                    self.result = event
                    self.ttft_s = self.ttft_s or event.prefill_s
                    yield from self._end(event.reason)
                case Prefill() if self._on_prefill is not None:
                    self._on_prefill(event)
            if self._stops.stopped and self.finish_reason is None:
                # The engine may be a step ahead; what it adds is not part of the answer.
                self._generation.cancel()
                self.finish_reason = "stop"

    @property
    def tokens_per_s(self) -> float | None:
        """Speed of decoding after the first token, None for fewer than two tokens."""
        if self._first_token is None or self._last_token in (None, self._first_token):
            return None
        assert self._last_token is not None
        return (self.num_tokens - 1) / (self._last_token - self._first_token)

    @property
    def reasoning(self) -> str | None:
        """What was thought before the answer, None if nothing was."""
        return "".join(self._thoughts).strip("\n") or None

    def interrupt(self) -> str:
        """Stop now, without waiting for the engine; return the answer's text that was held back."""
        self._generation.cancel()
        if self.finish_reason:
            return ""
        return "".join(p for p in self._end("interrupt") if not isinstance(p, Thought))

    def _decoded(self, token_id: int) -> str:
        """A token's text; a control token has one only where it may mark reasoning."""
        text = self._decoder.push(token_id)
        return text if self._splitter.is_answering else text + self._marks.get(token_id, "")

    def _end(self, reason: str) -> Iterator[str]:
        if self.finish_reason is None:
            yield from self._say(self._stops.push(self._decoder.flush()))
            yield from self._say(self._stops.flush())
            yield from self._tell(self._splitter.flush())
            self.finish_reason = "stop" if self._stops.stopped else reason

    def _say(self, piece: str) -> Iterator[str]:
        if piece and self.finish_reason is None:
            yield from self._tell(self._splitter.push(piece))

    def _tell(self, pieces: Iterator[str]) -> Iterator[str]:
        for piece in pieces:
            if isinstance(piece, Thought):
                self._thoughts.append(piece)
            else:
                self.text += piece
            yield piece

    def _count(self, num_tokens: int) -> None:
        now = time.perf_counter()
        if self._first_token is None:
            self._first_token = now
            self.ttft_s = now - self._started
        if self.finish_reason is None:
            self._last_token = now
            self.num_tokens += num_tokens
        if self._splitter.is_thinking:
            self.num_reasoning_tokens = self.num_tokens
            self.reasoning_s = now - self._first_token
