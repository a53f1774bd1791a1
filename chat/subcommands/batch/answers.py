"""Answers of a batch: many at a time, each reported when it is finished."""

import threading
from collections.abc import Iterator
from queue import Queue
from typing import TYPE_CHECKING, Any

from swiftchat.chat.render.logprobs import as_json, cumulative_logprob
from swiftchat.chat.subcommands.batch.lines import Line, parse_request
from swiftchat.errors import ContextOverflow, OutOfMemory, SwiftchatError, UsageError

if TYPE_CHECKING:
    from swiftchat.chat.model.answer import Answer
    from swiftchat.chat.model.chat_model import ChatModel

# The engine has the next prompts before an answer ends.
_NUM_WAITING = 4
# Errors of one line; any other one ends the batch.
_LINE_ERRORS = (UsageError, ContextOverflow, OutOfMemory)

Record = dict[str, Any]


def answer_lines(
    chat_model: "ChatModel", lines: Iterator[Line], system: str | None, num_parallel: int
) -> Iterator[tuple[Line, Record]]:
    """Yield lines with their answers, or their errors, as they are finished.

    Raises the error that ended the engine. When it is closed, answers in progress are canceled.
    """
    in_flight: dict[Line, Answer] = {}
    finished: Queue[tuple[Line, Answer | BaseException]] = Queue()
    try:
        while True:
            while len(in_flight) < num_parallel + _NUM_WAITING:
                line = next(lines, None)
                if line is None:
                    break
                try:
                    answer = _start(chat_model, line, system)
                except _LINE_ERRORS as error:
                    yield line, error_record(line, error)
                    continue
                in_flight[line] = answer
                arguments = (line, answer, finished)
                threading.Thread(target=_consume, args=arguments, daemon=True).start()
            if not in_flight:
                return
            line, result = finished.get()
            del in_flight[line]
            if isinstance(result, _LINE_ERRORS):
                yield line, error_record(line, result)
            elif isinstance(result, BaseException):
                raise result
            else:
                yield line, _record(chat_model, line, result)
    finally:
        for answer in in_flight.values():
            answer.interrupt()


def error_record(line: Line, error: SwiftchatError) -> Record:
    return {
        **_identity(line),
        "error": {"message": error.message, "hint": error.hint, "exit_code": error.exit_code},
    }


def _start(chat_model: "ChatModel", line: Line, system: str | None) -> "Answer":
    request = parse_request(line, system)
    changes = chat_model.changes | request.options
    params = chat_model.params_with(changes)
    stops = chat_model.config.texts(changes)["stop"]
    if chat_model.config.no_template:
        return chat_model.complete(
            "".join(message["content"] for message in request.messages), params, stops
        )
    prompt = chat_model.encoder()(request.messages)
    chat_model.check_fits(prompt)
    return chat_model.start_answer(prompt, params, stops)


def _consume(
    line: Line, answer: "Answer", finished: "Queue[tuple[Line, Answer | BaseException]]"
) -> None:
    try:
        for _ in answer:
            pass
    except BaseException as error:  # noqa: BLE001  (raised by the main thread)
        finished.put((line, error))
    else:
        finished.put((line, answer))


def _record(chat_model: "ChatModel", line: Line, answer: "Answer") -> Record:
    result = answer.result
    record = {
        **_identity(line),
        "content": answer.text,
        "reasoning": answer.reasoning,
        "finish_reason": answer.finish_reason,
        "usage": {
            "prompt_tokens": answer.num_prompt_tokens,
            "cached_tokens": result.cached_tokens if result else 0,
            "completion_tokens": answer.num_tokens,
        },
        "seed": result.seed if result else answer.params.seed,
    }
    if answer.params.logprobs is not None:
        record["logprobs"] = as_json(answer, chat_model.tokenizer)
        record["cumulative_logprob"] = cumulative_logprob(answer)
    return record


def _identity(line: Line) -> Record:
    found = {"line": line.number, "key": line.key}
    return found if line.id is None else {"id": line.id, **found}
