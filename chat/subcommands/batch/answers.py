"""Answers of a batch: many at a time, each reported when it is finished."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Queue
from types import ModuleType
from typing import TYPE_CHECKING, Any

from swiftchat.chat.model.answer_group import AnswerGroup
from swiftchat.chat.model.context_budget import message_versions
from swiftchat.chat.options.chat_options import BEAM_PARAMETERS
from swiftchat.chat.options.extras import needing_extra
from swiftchat.chat.render.logprobs import as_json, cumulative_logprob
from swiftchat.chat.subcommands.batch.lines import Line, Request, parse_line
from swiftchat.errors import (
    BadModelFile,
    ContextOverflow,
    OutOfMemory,
    SwiftchatError,
    UsageError,
)

if TYPE_CHECKING:
    from swiftchat.chat.model.answer import Answer
    from swiftchat.chat.model.chat_model import ChatModel

# The engine has the next prompts before an answer ends.
_NUM_WAITING = 4
# Errors of one line; any other one ends the batch. Logits may be NaN (BadModelFile) for one prompt.
_LINE_ERRORS = (UsageError, ContextOverflow, OutOfMemory, BadModelFile)

Record = dict[str, Any]


@dataclass
class _InFlight:
    """The answers of a line, of which `num_running` have not ended, and the first error.

    `record` returns what is reported of them.
    """

    group: AnswerGroup
    record: Callable[[AnswerGroup], Record]
    num_running: int
    error: SwiftchatError | None = None


def answer_lines(
    chat_model: "ChatModel", lines: Iterator[Line], system: str | None, num_parallel: int
) -> Iterator[tuple[Line, Record]]:
    """Yield lines with their answers, or their errors, as they are finished.

    Raises the error that ended the engine. When it is closed, answers in progress are canceled.
    """
    in_flight: dict[Line, _InFlight] = {}
    finished: Queue[tuple[Line, BaseException | None]] = Queue()
    try:
        while True:
            while sum(one.num_running for one in in_flight.values()) < num_parallel + _NUM_WAITING:
                line = next(lines, None)
                if line is None:
                    break
                try:
                    group, record = _start(chat_model, line, system)
                except _LINE_ERRORS as error:
                    yield line, error_record(line, error)
                    continue
                in_flight[line] = _InFlight(group, record, len(group.started))
                for answer in group.started:
                    arguments = (line, answer, finished)
                    threading.Thread(target=_consume, args=arguments, daemon=True).start()
            if not in_flight:
                return
            line, failure = finished.get()
            one = in_flight[line]
            one.num_running -= 1
            if isinstance(failure, _LINE_ERRORS):
                one.error = one.error or failure
                one.group.cancel()
            elif failure is not None:
                raise failure
            if one.num_running:
                continue
            del in_flight[line]
            if one.error is not None:
                yield line, error_record(line, one.error)
            else:
                yield line, one.record(one.group)
    finally:
        for one in in_flight.values():
            for answer in one.group.started:
                answer.interrupt()


def error_record(line: Line, error: SwiftchatError) -> Record:
    found = {"message": error.message, "hint": error.hint, "exit_code": error.exit_code}
    if not line.is_openai:
        return {**_identity(line), "error": found}
    api_lines = _api_lines()
    return {**api_lines.openai_error(line, error), **_place(line)}


def num_tokens(record: Record) -> int:
    """Return how many tokens an answered line has generated."""
    whole = record["response"]["body"] if "response" in record else record
    count: int = whole["usage"]["completion_tokens"]
    return count


def _start(
    chat_model: "ChatModel", line: Line, system: str | None
) -> tuple[AnswerGroup, Callable[[AnswerGroup], Record]]:
    """Start the answers of a line; also return the function that makes their record."""
    request = parse_line(line, system)
    if isinstance(request, Request):
        group = _start_own(chat_model, request)
        return group, lambda group: _record(chat_model, line, group)
    api_lines = _api_lines()
    found = api_lines.ApiRequest(chat_model, line, request, system)
    return found.start(), lambda group: {**found.record(group), **_place(line)}


def _api_lines() -> ModuleType:
    """Return the reader of requests of the HTTP API; raises `UsageError` without its packages."""
    with needing_extra("the line"):
        from swiftchat.chat.subcommands.batch import api_lines
    return api_lines


def _start_own(chat_model: "ChatModel", request: Request) -> AnswerGroup:
    changes = chat_model.changes | request.options
    params = chat_model.params_with(changes)
    for name in BEAM_PARAMETERS:
        if params.beams is None and name in request.options:
            raise UsageError(f"{name} is for a beam search", "add beams to the line")
    stops = chat_model.config.texts(changes)["stop"]
    num_samples = request.options.get("samples") or chat_model.config.samples
    if request.api is not None:
        if chat_model.config.no_template:
            raise UsageError("the line needs the chat template", "leave out --no-template")
        body = {"messages": request.messages, **request.api}
        start = _api_lines().start_with_fields
        group: AnswerGroup = start(chat_model, body, params, stops, num_samples)
        return group
    output_format, tuning = chat_model.output_format, chat_model.adapters.tuning
    how: Any = {"output_format": output_format, "tuning": tuning}
    if chat_model.config.no_template:
        text = "".join(message["content"] for message in request.messages)
        return chat_model.complete([text], params, stops, num_samples, **how)
    versions, encode = message_versions(request.messages), chat_model.prompts.encoder()
    if output_format is not None:
        encode = output_format.instructed(encode)
    return chat_model.start_answers(versions, encode, params, stops, num_samples, **how)


def _consume(
    line: Line, answer: "Answer", finished: Queue[tuple[Line, BaseException | None]]
) -> None:
    try:
        answer.complete()
    except BaseException as error:  # noqa: BLE001  (raised by the main thread)
        finished.put((line, error))
    else:
        finished.put((line, None))


def _record(chat_model: "ChatModel", line: Line, group: AnswerGroup) -> Record:
    answers = list(group)
    for answer in answers:
        answer.complete()  # the further beams of a search
    found = [_answer_record(chat_model, answer) for answer in answers]
    if group.count == 1:
        return {**_identity(line), **found[0]}
    # The prompt is the same and counts once.
    usage = dict(found[0]["usage"])
    for name in ("completion_tokens", "reasoning_tokens"):
        usage[name] = sum(one["usage"][name] for one in found)
    return {**_identity(line), "answers": found, "usage": usage}


def _answer_record(chat_model: "ChatModel", answer: "Answer") -> Record:
    result = answer.result
    record: Record = {
        "content": answer.text,
        "reasoning": answer.reasoning,
        "finish_reason": answer.finish_reason,
        "usage": {
            "prompt_tokens": answer.num_prompt_tokens,
            "cached_tokens": result.cached_tokens if result else 0,
            "completion_tokens": answer.num_tokens,
            "reasoning_tokens": answer.num_reasoning_tokens,
            "dropped_tokens": answer.num_left_out + answer.num_slid,
        },
        "seed": result.seed if result else answer.params.seed,
    }
    if answer.tool_calls:
        record["tool_calls"] = [call.as_object() for call in answer.tool_calls]
    if answer.params.logprobs is not None:
        record["logprobs"] = as_json(answer, chat_model.tokenizer)
        record["cumulative_logprob"] = cumulative_logprob(answer)
    if answer.beam_score is not None:
        record["beam_score"] = answer.beam_score
    return record


def _identity(line: Line) -> Record:
    return _place(line) if line.id is None else {"id": line.id, **_place(line)}


def _place(line: Line) -> Record:
    return {"line": line.number, "key": line.key}
