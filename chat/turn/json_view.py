"""The turn of one prompt as JSON: one object at the end, or a line for each event."""

import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from swiftchat.chat.history.conversation import Message
from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.model.reasoning import ReasoningText
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.render.logprobs import as_json, cumulative_logprob, prompt_as_json
from swiftchat.chat.render.stats import rounded, speculation_json, speeds
from swiftchat.chat.render.style import Style
from swiftchat.chat.terminal.output import write
from swiftchat.chat.terminal.status_line import StatusLine
from swiftchat.chat.turn.text_view import TextView
from swiftchat.engine.api.params import SAMPLING_RANGES, SamplingParams
from swiftchat.engine.api.protocol import EngineInfo, Prefill, Searching, Wait

SCHEMA = 1
PrintJson = Callable[[dict[str, Any]], None]
_MAIN_PARAMS = ("temperature", "top_k", "top_p", "min_p")


def print_json(value: dict[str, Any]) -> None:
    """Print an object as one line."""
    write(json.dumps(value, ensure_ascii=False) + "\n")


class JsonView(TextView):
    """A turn as JSON objects, which `output` receives; with --stream-json also its events."""

    def __init__(
        self,
        chat_model: ChatModel,
        config: ChatConfig,
        style: Style,
        status: StatusLine,
        output: PrintJson = print_json,
        has_tools: bool = False,
    ) -> None:
        super().__init__(chat_model, config, style, status)
        self._output = output
        self._has_tools = has_tools
        self._tool_calls: list[dict[str, Any]] = []

    def begin_turn(self, info: EngineInfo, load_s: float) -> None:
        super().begin_turn(info, load_s)
        self._send({"event": "start", "model": self._model()})

    def show_wait(self, wait: Wait) -> None:
        if not self.config.stream_json:
            super().show_wait(wait)
        match wait:
            case Prefill(done, total):
                self._send({"event": "prefill", "done": done, "total": total})
            case Searching(num_tokens):
                self._send({"event": "search", "tokens": num_tokens})

    @property
    def _is_streamed(self) -> bool:
        return False

    def push(self, piece: str) -> None:
        super().push(piece)
        if piece:
            kind = "reasoning" if isinstance(piece, ReasoningText) else "delta"
            self._send({"event": kind, "content": piece})

    def show_call(self, label: str, call: ToolCall) -> None:
        self._tool_calls.append({"tool": label, "arguments": call.arguments})
        self._send({"event": "tool_call", **self._tool_calls[-1]})
        super().show_call(label, call)

    def show_result(self, message: Message) -> None:
        if self._tool_calls and "result" not in self._tool_calls[-1]:
            self._tool_calls[-1]["result"] = message.content
            self._send({"event": "tool_result", **self._tool_calls[-1]})

    def _send(self, event: dict[str, Any]) -> None:
        """Print an event with --stream-json."""
        if self.config.stream_json:
            self.status.clear()
            self._output(event)

    def _print_whole(self, answer: Answer, reason: str, session_id: str | None) -> None:
        report = self._report(answer, reason, session_id)
        self._output({"event": "end", **report} if self.config.stream_json else report)

    def _model(self) -> dict[str, Any]:
        info = self._info
        return {
            "id": self.chat_model.name,
            "revision": None,
            "dtype": info.dtype,
            "kv_dtype": info.kv_dtype,
            "quantization": self.chat_model.quantization,
            "device": info.device,
            "tp": info.tp,
            "pp": info.pp,
        }

    def _report(self, answer: Answer, reason: str, session_id: str | None) -> dict[str, Any]:
        result, tokenizer = answer.result, self.chat_model.tokenizer
        return {
            "schema": SCHEMA,
            "id": uuid.uuid4().hex,
            "session_id": session_id,
            "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "model": self._model(),
            "content": answer.text,
            "reasoning": answer.reasoning,
            "finish_reason": reason,
            "logprobs": as_json(answer, tokenizer),
            "cumulative_logprob": cumulative_logprob(answer),
            "beam_score": answer.beam_score,
            "prompt_logprobs": prompt_as_json(answer, tokenizer),
            "usage": {
                "prompt_tokens": answer.num_prompt_tokens,
                "cached_tokens": result.cached_tokens if result else 0,
                "restored_tokens": result.restored_tokens if result else 0,
                "swapped_tokens": result.swapped_tokens if result else 0,
                "completion_tokens": answer.num_tokens,
                "reasoning_tokens": answer.num_reasoning_tokens,
                "dropped_tokens": answer.num_left_out + answer.num_slid,
                "context_used": answer.num_prompt_tokens + answer.num_tokens - answer.num_slid,
                "context_size": self._info.ctx_size_tokens,
            },
            "timings": {
                "load_s": round(self._load_s, 4),
                "ttft_s": rounded(answer.ttft_s),
                "first_token_s": rounded(answer.ttft_s and self._age_s + answer.ttft_s),
                **speeds(answer),
            },
            "speculation": speculation_json(answer),
            "params": self._params(answer),
            **({"tool_calls": self._tool_calls} if self._has_tools else {}),
            "warnings": self.warnings,
        }

    def _params(self, answer: Answer) -> dict[str, Any]:
        """Return the main sampling parameters, and all others that are not at their defaults."""
        params = answer.params
        shown = {name: getattr(params, name) for name in _MAIN_PARAMS}
        for name in (*SAMPLING_RANGES, "overflow", "early_stopping"):
            value = getattr(params, name)
            if value != getattr(SamplingParams, name):
                shown[name] = value
        texts = self.config.texts(self.chat_model.changes)
        shown |= {name: list(found) for name, found in texts.items() if found}
        return {**shown, "seed": answer.result.seed if answer.result else params.seed}


class JsonAnswers:
    """The JSON of several answers: numbered lines with --stream-json, else one object."""

    def __init__(self, config: ChatConfig) -> None:
        self._is_stream, self._is_json = config.stream_json, config.json
        self._reports: list[dict[str, Any]] = []

    def output_of(self, number: int) -> PrintJson:
        """Return what receives the objects of one answer."""
        if self._is_stream:
            return lambda event: print_json({"index": number, **event})
        return self._reports.append

    def fail(self, number: int, model: str, error: dict[str, Any]) -> None:
        """Add the error of an answer, which may have begun."""
        if self._is_stream:
            event = {"event": "error", "model": {"id": model}, "error": error}
            print_json({"index": number, **event})
        elif len(self._reports) > number:
            self._reports[number]["error"] = error
        else:
            failed = {"model": {"id": model}, "content": None, "finish_reason": "error"}
            self._reports.append({**failed, "error": error})

    def print(self) -> None:
        """Print the object of all answers."""
        if self._is_json:
            answers = [{**report, "error": report.get("error")} for report in self._reports]
            print_json({"schema": SCHEMA, "answers": answers})
