"""One prompt, one answer: `swiftchat -p`, pipes and JSON."""

import json
import os
import sys
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from swiftchat.chat.attachments.files import read_attachments
from swiftchat.chat.attachments.user_text import read_stdin_text
from swiftchat.chat.history.autosave import Autosave
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.answer_saver import AnswerSaver
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.model.reasoning import ReasoningText
from swiftchat.chat.model.tools import max_result_characters
from swiftchat.chat.options.config import ChatConfig, without_lengths
from swiftchat.chat.render.logprobs import (
    as_json,
    as_terminal_text,
    cumulative_logprob,
    prompt_as_json,
)
from swiftchat.chat.render.stats import (
    rounded,
    slid_text,
    speculation_json,
    speeds,
    stats_line,
    timeline,
)
from swiftchat.chat.render.style import choose_style, is_accessible
from swiftchat.chat.render.view import AnswerView, open_view, preload
from swiftchat.chat.terminal.output import print_notice, write
from swiftchat.chat.terminal.process_age import process_age_s
from swiftchat.chat.terminal.sanitize import sanitize, sanitize_prose
from swiftchat.chat.terminal.status_line import StatusLine
from swiftchat.chat.tools.reported_calls import ReportedCalls
from swiftchat.chat.tools.rounds import ToolRounds
from swiftchat.chat.tools.toolbox import Toolbox
from swiftchat.engine.api.params import SAMPLING_RANGES, SamplingParams
from swiftchat.engine.api.protocol import EngineInfo, Prefill, Searching, Wait
from swiftchat.errors import ContextOverflow, SwiftchatError, UsageError

SCHEMA = 1
StartAnswer = Callable[[Conversation, Callable[[int], None], Callable[[Wait], None]], Answer]
_MAIN_PARAMS = ("temperature", "top_k", "top_p", "min_p")


def prompt_text(config: ChatConfig) -> str:
    """Return files, stdin, the role's prompt and `-p`, separated by blank lines.

    stdin is read with `-p -` and when it is not a terminal. Raises `UsageError` if there is no
    text.
    """
    attachments = read_attachments(config.file, offline=config.offline)
    for note in (note for attachment in attachments for note in attachment.notes):
        print_notice(f"warning: {note}")
    parts = [attachment.fenced for attachment in attachments]
    reads_stdin = config.prompt == "-" or (config.prompt is None and not config.opening)
    if reads_stdin or not sys.stdin.isatty():
        piped = read_stdin_text(may_be_missing=not reads_stdin).told()
        parts.append(piped.rstrip("\n") if piped.strip() else "")
    parts.append(config.opening)
    if config.prompt not in (None, "-"):
        parts.append(config.prompt)
    text = "\n\n".join(part for part in parts if part)
    if not text.strip():
        raise UsageError("the prompt is empty", 'try: swiftchat -p "Why is the sky blue?"')
    return text


class OneShot:
    """Answers one prompt on stdout, as text, JSON or code blocks.

    A pipe receives the exact text of the answer and a final newline, a terminal rendered Markdown.
    `print_json` receives what --json and --stream-json print; `before_answer` is called before the
    text of the answer is shown. `start_answer` starts an answer to a conversation, by default
    `ChatModel.answer`.
    """

    def __init__(
        self,
        chat_model: ChatModel,
        config: ChatConfig,
        autosave: Autosave,
        print_json: Callable[[dict[str, Any]], None] | None = None,
        before_answer: Callable[[], None] | None = None,
        toolbox: Toolbox | None = None,
        start_answer: StartAnswer | None = None,
    ) -> None:
        self.chat_model = chat_model
        self._start_answer = start_answer or chat_model.answer
        self.config = config
        self.autosave = autosave
        self._print_json = print_json or _print_json
        self._before_answer = before_answer
        self.toolbox = toolbox or Toolbox([])
        self.warnings: list[str] = []
        self._tool_calls = ReportedCalls(self._print_event, self._warn, config.quiet)
        self._session_id: str | None = None
        self._age_s = 0.0  # of the process when it requested the answer
        self._view: AnswerView | None = None
        self._status = StatusLine(not is_accessible(config, os.environ), config.quiet)

    def run(self, conversation: Conversation) -> int:
        """Answer the last message, add the answer to the conversation, return the exit code."""
        started = time.perf_counter()
        self.chat_model.prepare()
        conversation.settings = without_lengths(self.chat_model.settings, conversation.settings)
        self.autosave.open()  # while the engine loads
        self._style = choose_style(self.config, os.environ, sys.stdout.isatty())
        preload(self._style)  # while the engine loads
        with self._status.waiting("loading the model"):
            info = self.chat_model.wait_ready(
                lambda one: self._status.show(one.label, one.done, one.total)
            )
        self.chat_model.tell_notes()
        load_s = time.perf_counter() - started
        self._print_event({"event": "start", "model": self._model(info)})
        answer, reason, exit_code = self._answer_with_tools(conversation, info, load_s)
        self._close_view(answer)  # a part of the answer may wait there to be rendered
        exit_code = exit_code or self._warn_limit(answer, info)
        for warning in answer.result.warnings if answer.result else ():
            self._warn(warning)
        self._end(answer, info, load_s, reason)
        if self.config.stats:
            print_notice(stats_line(answer, info, load_s, self._age_s))
        if self.config.debug:
            began = time.perf_counter() - process_age_s()
            phases = [*self.chat_model.engine.phases, *answer.phases]
            print(timeline(phases, began), file=sys.stderr)
        return exit_code

    def _answer_with_tools(
        self, conversation: Conversation, info: EngineInfo, load_s: float
    ) -> tuple[Answer, str, int]:
        """Answer until no tool is called; return the last answer, its finish reason, exit code."""
        limits = self.config.max_tool_rounds, partial(max_result_characters, self.chat_model)
        rounds = ToolRounds(self.toolbox, conversation, self._tool_calls, *limits)
        while True:
            answer, exit_code = self._answer(conversation, info, load_s)
            if exit_code or not answer.tool_calls:
                return answer, answer.finish_reason or "interrupt", exit_code
            if self._view is not None and answer.text:
                self._view.close()
            goes_on = rounds.run(answer.tool_calls)
            self.chat_model.tools = self.toolbox.specs  # a server may have ended
            if not goes_on:
                reason = "length" if rounds.is_at_limit else "interrupt"
                if rounds.is_at_limit:
                    self._warn(f"the limit of --max-tool-rounds {rounds.max_rounds} is reached")
                conversation.add("assistant", "", reason)
                self.autosave.save(conversation)
                return answer, reason, 0 if rounds.is_at_limit else 130

    def _answer(
        self, conversation: Conversation, info: EngineInfo, load_s: float
    ) -> tuple[Answer, int]:
        """Show and save one answer; return it and the exit code."""
        with self._status.waiting("encoding the prompt"):
            answer = self._start_answer(conversation, self._warn_dropped, self._show_wait)
        self._age_s = process_age_s()
        saver = AnswerSaver(self.autosave, conversation, answer)
        if not (self._prints_events or self.config.extract or self._is_json):
            if self._before_answer is not None and self._view is None:
                self._before_answer()
            self._view = open_view(self._style, answer, self.chat_model.name)
        exit_code = 0
        self._status.show("waiting for the engine")
        try:
            for piece in saver:
                self._show(piece)
        except KeyboardInterrupt:
            self._show(answer.interrupt())
            exit_code = 130
        except SwiftchatError as error:
            self._status.clear()
            self._close_view(answer)
            self._save(conversation, answer, saver, "error")
            self._end(answer, info, load_s, "error")
            raise error
        finally:
            self._status.clear()
        self._save(conversation, answer, saver, answer.finish_reason)
        return answer, exit_code

    @property
    def _prints_events(self) -> bool:
        return self.config.json or self.config.stream_json

    @property
    def _is_json(self) -> bool:
        """Whether the answer is a JSON document, which is printed only when it is complete."""
        form = self.chat_model.output_format
        return form is not None and form.is_json

    def pause(self) -> None:
        """Erase temporary output before the program is suspended."""
        self._status.clear()
        if self._view is not None:
            self._view.pause()

    def _save(
        self, conversation: Conversation, answer: Answer, saver: AnswerSaver, reason: str | None
    ) -> None:
        """Save the answer, unless it has failed or was interrupted before its first text."""
        if reason in ("stop", "length") or answer.text or answer.reasoning:
            saver.finish(reason)
            self._session_id = conversation.id if self.autosave.is_saving else None

    def _warn_limit(self, answer: Answer, info: EngineInfo) -> int:
        """Print a warning if the context slid or the answer was cut; return the exit code."""
        if answer.num_slid:
            self._warn(slid_text(answer))
        if answer.limit is None:
            return 0
        if answer.limit == "max_tokens":
            self._warn(f"answer ended at its token limit (-n {answer.params.max_tokens})")
            return ContextOverflow.exit_code if self._is_json else 0
        size = info.ctx_size_tokens
        self._warn(f"answer ended at the context limit of {size} tokens; --ctx-size N changes it")
        return ContextOverflow.exit_code

    def _show(self, piece: str) -> None:
        self._status.clear()
        if self._view is not None:
            self._view.push(piece)
        elif piece:
            kind = "reasoning" if isinstance(piece, ReasoningText) else "delta"
            self._print_event({"event": kind, "content": piece})

    def _end(self, answer: Answer, info: EngineInfo, load_s: float, reason: str) -> None:
        if self._prints_events:
            self._print_json(self._report(answer, info, load_s, reason))
        elif self.config.extract:
            from swiftchat.chat.render.parse import code_blocks

            code = [block.code for block in code_blocks(answer.text)]
            write("".join(code))
            if not code:
                print_notice("warning: the answer has no code block")
        elif self._is_json:
            if reason == "stop":
                is_exact = self._style.mode == "exact"
                write((answer.text if is_exact else sanitize_prose(answer.text)) + "\n")
            else:
                print(f"incomplete answer: {sanitize(answer.text)}", file=sys.stderr)

    def _close_view(self, answer: Answer) -> None:
        """Show what is left of the answer, and its logprobs if they were requested."""
        if self._view is None:
            return
        self._view.close()
        if answer.logprobs:
            text = as_terminal_text(answer, self.chat_model.tokenizer, self._style)
            print(text, end="", file=sys.stderr)

    def _show_wait(self, wait: Wait) -> None:
        if not self.config.stream_json:
            self._status.show_wait(wait)
        match wait:
            case Prefill(done, total):
                self._print_event({"event": "prefill", "done": done, "total": total})
            case Searching(num_tokens):
                self._print_event({"event": "search", "tokens": num_tokens})

    def _warn_dropped(self, num_messages: int) -> None:
        self._warn(f"the context is full: the oldest {num_messages} messages were left out")

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        self._status.clear()
        print_notice(f"warning: {text}")

    def _print_event(self, event: dict[str, Any]) -> None:
        if self.config.stream_json:
            self._status.clear()
            self._print_json(event)

    def _model(self, info: EngineInfo) -> dict[str, Any]:
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

    def _report(
        self, answer: Answer, info: EngineInfo, load_s: float, reason: str
    ) -> dict[str, Any]:
        result = answer.result
        used = answer.num_prompt_tokens + answer.num_tokens - answer.num_slid
        report = {
            "schema": SCHEMA,
            "id": uuid.uuid4().hex,
            "session_id": self._session_id,
            "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "model": self._model(info),
            "content": answer.text,
            "reasoning": answer.reasoning,
            "finish_reason": reason,
            "logprobs": as_json(answer, self.chat_model.tokenizer),
            "cumulative_logprob": cumulative_logprob(answer),
            "beam_score": answer.beam_score,
            "prompt_logprobs": prompt_as_json(answer, self.chat_model.tokenizer),
            "usage": {
                "prompt_tokens": answer.num_prompt_tokens,
                "cached_tokens": result.cached_tokens if result else 0,
                "restored_tokens": result.restored_tokens if result else 0,
                "swapped_tokens": result.swapped_tokens if result else 0,
                "completion_tokens": answer.num_tokens,
                "dropped_tokens": answer.num_left_out + answer.num_slid,
                "context_used": used,
                "context_size": info.ctx_size_tokens,
            },
            "timings": {
                "load_s": round(load_s, 4),
                "ttft_s": rounded(answer.ttft_s),
                "first_token_s": rounded(answer.ttft_s and self._age_s + answer.ttft_s),
                **speeds(answer),
            },
            "speculation": speculation_json(answer),
            "params": self._params(answer),
            **({"tool_calls": self._tool_calls.found} if self.toolbox.has_servers else {}),
            "warnings": self.warnings,
        }
        return {"event": "end", **report} if self.config.stream_json else report

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


def _print_json(value: dict[str, Any]) -> None:
    write(json.dumps(value, ensure_ascii=False) + "\n")
