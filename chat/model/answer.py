"""The stream of one answer: from prompt ids to pieces of text."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.model.known_answer import KnownAnswer
from swiftchat.chat.model.loop_stop import LoopStop
from swiftchat.chat.model.reasoning import (
    ReasoningFormat,
    ReasoningSplitter,
    ReasoningText,
    marker_tokens,
    opens_reasoning,
)
from swiftchat.chat.tools.call_splitter import ToolCallSplitter
from swiftchat.chat.tools.call_stream import CallDelta, CallText
from swiftchat.chat.tools.formats import ToolFormat
from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import (
    Beam,
    Dropped,
    Finished,
    Logprob,
    Prefill,
    PromptLogprobs,
    Searching,
    Tokens,
    Wait,
)
from swiftchat.engine.api.tuning import Tuning
from swiftchat.engine.api.vocabulary import ConstraintSpec

if TYPE_CHECKING:
    from swiftchat.tokenizer import Prompt, Tokenizer


class Answer:
    """Iterate for pieces of text; pieces of reasoning are `ReasoningText`.

    While the text of a call of a tool is held back, the pieces are empty; a `CallDelta` has what is
    certain of the call.

    `text` is the answer so far, `reasoning` the text of the reasoning. `ids` are the sampled ids,
    which may be more than `text` uses (`num_tokens`); `logprobs` are theirs, if the parameters
    request them, and `prompt_logprobs` those of the prompt's tokens but the first.
    `finish_reason` is None while generating, then `stop` (end token or stop string), `length`,
    `loop` (it repeated itself) or `interrupt`. `result` is the engine's report, None if the answer
    was interrupted before. `tool_calls` are the calls of a complete answer; `text` is without them.
    An answer that is a call of `ToolFormat.direct` is replaced by the answer to another prompt.
    `num_left_out` tokens of old messages are not in the prompt, and `num_slid` tokens were dropped
    from the middle of the context while the answer was generated. `beams` are the answers of a beam
    search, of which this is the first, with its `beam_score`; all come at the end. Iterating does
    not catch `KeyboardInterrupt`; the caller then calls `interrupt`.
    """

    def __init__(
        self,
        engine: EngineClient | KnownAnswer,
        tokenizer: "Tokenizer",
        prompt: "Prompt",
        params: SamplingParams,
        stops: Sequence[str] = (),
        on_wait: Callable[[Wait], None] | None = None,
        reasoning: ReasoningFormat | None = None,
        tool_format: ToolFormat | None = None,
        constraint: ConstraintSpec | None = None,
        tuning: Tuning | None = None,
        direct: Callable[[], "Prompt"] | None = None,
        ends: Sequence[str] = (),
    ) -> None:
        """The answer ends before any of `stops`; all that is generated, before any of `ends`.

        `direct` returns the prompt after a call of `tool_format.direct`.
        """
        self.params = params
        self.is_constrained = constraint is not None
        self._on_wait, self._direct = on_wait, direct
        self._known: Callable[[KnownAnswer], Answer] = lambda known: Answer(
            *(known, tokenizer, self.prompt, params, stops, None),
            *(reasoning, tool_format, constraint, tuning, None, ends),
        )
        self._start = partial(
            self._generate,
            *(engine, tokenizer, stops, ends),
            *(reasoning, tool_format, constraint, tuning),
        )
        self._start(prompt)

    def _generate(
        self,
        engine: EngineClient | KnownAnswer,
        tokenizer: "Tokenizer",
        stops: Sequence[str],
        ends: Sequence[str],
        reasoning: ReasoningFormat | None,
        tool_format: ToolFormat | None,
        constraint: ConstraintSpec | None,
        tuning: Tuning | None,
        prompt: "Prompt",
    ) -> None:
        """Start to answer a prompt; nothing of an earlier one stays."""
        # Imported here, because it would delay the prompt.
        from swiftchat.tokenizer import StopMatcher

        self.prompt = prompt
        self.num_prompt_tokens = len(prompt)
        self.ids: list[int] = []
        self.logprobs: list[Logprob] = []
        self.prompt_logprobs: list[Logprob] = []
        self.beams: list[Beam] = []
        self.beam_score: float | None = None
        self.num_tokens = 0
        self.num_left_out = self.num_slid = 0
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
        self._ends, self._stops = StopMatcher(ends), StopMatcher(stops)
        self._loop = LoopStop(is_on=self.params.loop_stop == "on")
        self._reasoning: list[str] = []
        is_thinking = reasoning is not None and opens_reasoning(prompt, reasoning)
        self._splitter = ReasoningSplitter(reasoning, is_thinking=is_thinking)
        end = prompt.spans[-1].text if prompt.spans else ""
        if tool_format and not end.endswith(tool_format.prompted):  # an answer goes on
            tool_format = replace(tool_format, prompted="")
        self._calls = ToolCallSplitter(tool_format)
        control = tokenizer.special_tokens
        self._markers = marker_tokens(reasoning.markers, control) if reasoning else {}
        self._call_markers = marker_tokens(tool_format.markers, control) if tool_format else {}
        self._direct_name = tool_format.direct if tool_format else ""
        self._generation = engine.generate(prompt.ids, self.params, constraint, tuning)

    def __iter__(self) -> Iterator[str]:
        yield from self._pieces()
        is_stop = self.finish_reason == "stop"
        names = {call.name for call in self._calls.calls} if is_stop else set()
        if self._direct is not None and names == {self._direct_name}:
            prompt, self._direct = self._direct(), None
            self._start(prompt)
            yield from self._pieces()

    def _pieces(self) -> Iterator[str]:
        for event in self._generation:
            match event:
                case Tokens(ids, logprobs):
                    ids = ids[: self._loop.push(ids)]
                    self.ids += ids
                    self.logprobs += logprobs[: len(ids)]
                    yield from self._push(ids)
                    if self._loop.found and self.finish_reason is None:
                        self._generation.cancel()
                        yield from self._end("loop")
                case Beam(ids, score):
                    self.beams.append(event)
                    if len(self.beams) == 1:
                        self.ids += ids
                        self.beam_score = score
                        yield from self._push(ids)
                case Finished():
                    self.result = event
                    self.ttft_s = self.ttft_s or event.prefill_s
                    yield from self._end(event.reason)
                case Dropped(num_tokens):
                    self.num_slid += num_tokens
                case PromptLogprobs(logprobs):
                    self.prompt_logprobs += logprobs
                case Prefill() | Searching() if self._on_wait is not None:
                    self._on_wait(event)
            has_stopped = self._stops.stopped or self._ends.stopped or self._calls.is_done
            if has_stopped and self.finish_reason is None:
                # With async decode the engine may send another token, which is ignored.
                self._generation.cancel()
                yield from self._end("stop")

    def complete(self) -> None:
        """Iterate to the end of the answer, or what is left of it."""
        for _ in self:
            pass

    def of_beam(self, index: int) -> "Answer":
        """Return the answer of another beam of a search that has ended, by its place in `beams`."""
        assert self.result is not None
        beam = self.beams[index]
        num_tokens = len(beam.ids)
        result = replace(self.result, reason=beam.reason, completion_tokens=num_tokens)
        return self._known(KnownAnswer([beam, result]))

    @property
    def phases(self) -> list[tuple[str, float]]:
        """The phases of the answer so far, each with its start in `perf_counter` seconds."""
        first = self._first_token
        begun = [] if first is None else [("first token", first)]
        return [("computing the prompt", self._started), *begun]

    @property
    def age_s(self) -> float:
        """The time since the answer was requested."""
        return time.perf_counter() - self._started

    @property
    def limit(self) -> str | None:
        """What ended the answer early: `max_tokens`, `context`, `loop`, or None."""
        if self.finish_reason == "loop":
            return "loop"
        if self.finish_reason != "length":
            return None
        limit, has_budget = self.params.max_tokens, self.params.reasoning is not None
        counted = self.num_tokens - (self.num_reasoning_tokens if has_budget else 0)
        return "max_tokens" if limit is not None and counted >= limit else "context"

    @property
    def stop_text(self) -> str | None:
        """The text of `stops` that ended the answer."""
        return self._stops.found

    @property
    def tokens_per_s(self) -> float | None:
        """Decode speed after the first token, None for fewer than two tokens.

        The tokens of a beam search come all at once; its speed is that of the engine.
        """
        if self.beams and self.result is not None:
            num_tokens, decode_s = len(self.beams[0].ids) - 1, self.result.decode_s
            return num_tokens / decode_s if num_tokens > 0 and decode_s else None
        if self._first_token is None or self._last_token in (None, self._first_token):
            return None
        assert self._last_token is not None
        return (self.num_tokens - 1) / (self._last_token - self._first_token)

    @property
    def reasoning(self) -> str | None:
        """The reasoning before the answer, None if there is none."""
        return "".join(self._reasoning).strip("\n") or None

    def cancel(self) -> None:
        """Request the end of the generation; iterating yields what comes until then."""
        self._generation.cancel()

    @property
    def tool_calls(self) -> list[ToolCall]:
        calls = self._calls.calls if self.finish_reason == "stop" else []
        return [call for call in calls if call.name != self._direct_name]

    @property
    def is_thinking(self) -> bool:
        """Whether the model writes its reasoning."""
        return self._splitter.is_thinking

    @property
    def is_in_call(self) -> bool:
        """Whether the model writes the call of a tool, which is held back."""
        return self._calls.is_in_call

    def interrupt(self) -> str:
        """Cancel without waiting for the engine; return buffered text of the answer."""
        self._generation.cancel()
        if self.finish_reason:
            return ""
        return "".join(p for p in self._end("interrupt") if not isinstance(p, ReasoningText))

    def _push(self, ids: Sequence[int]) -> Iterator[str]:
        self._count(len(ids))
        yield from self._split(self._ends.push("".join(map(self._decode, ids))))

    def _decode(self, token_id: int) -> str:
        """Return a token's text; a control token has text only if it can mark a part of the answer.

        Such parts are the reasoning and calls of tools.
        """
        marker = self._call_markers.get(token_id, "")
        if not self._splitter.is_answering:
            marker = marker or self._markers.get(token_id, "")
        return self._decoder.push(token_id) + marker

    def _end(self, reason: str) -> Iterator[str]:
        if self.finish_reason is None:
            yield from self._split(self._ends.push(self._decoder.flush()))
            yield from self._split(self._ends.flush())
            yield from self._record(self._splitter.flush())
            is_complete = reason == "stop" or self._ends.stopped
            yield from self._record_text(self._calls.flush(is_complete))
            yield from self._add_text(self._stops.flush())
            self.finish_reason = "stop" if is_complete or self._stops.stopped else reason

    def _split(self, piece: str) -> Iterator[str]:
        if piece and self.finish_reason is None:
            yield from self._record(self._splitter.push(piece))

    def _record(self, pieces: Iterator[str]) -> Iterator[str]:
        """Append pieces to the reasoning or to the text, and yield them."""
        for piece in pieces:
            if isinstance(piece, ReasoningText):
                self._reasoning.append(piece)
                yield piece
            else:
                yield from self._record_text(self._calls.push(piece))

    def _record_text(self, pieces: Iterator[str]) -> Iterator[str]:
        for piece in pieces:
            if isinstance(piece, CallDelta):
                yield piece
                continue
            text = self._stops.push(piece)
            yield from self._add_text(CallText(text) if isinstance(piece, CallText) else text)
        if self._calls.is_in_call and self.finish_reason is None:
            yield ""  # for the display of progress

    def _add_text(self, text: str) -> Iterator[str]:
        self.text += text
        if text:
            yield text

    def _count(self, num_tokens: int) -> None:
        now = self._generation.arrived
        if self._first_token is None:
            self._first_token = now
            self.ttft_s = now - self._started
        if self.finish_reason is None:
            self._last_token = now
            self.num_tokens += num_tokens
        if self._splitter.is_thinking:
            self.num_reasoning_tokens = self.num_tokens
            self.reasoning_s = now - self._first_token
