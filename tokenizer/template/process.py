"""A process that renders one chat template, within limits on processor time and memory."""

import json
import signal
import subprocess
import threading
import weakref
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from swiftchat.errors.interpreter import child_folder, python_module
from swiftchat.tokenizer.template.own_text import OwnText
from swiftchat.tokenizer.template.sandbox import TemplateLimitExceeded
from swiftchat.tokenizer.template.variables import own_places
from swiftchat.tokenizer.template.worker import TIME_LIMIT_SIGNAL

# The worker limits its processor time itself. This limit of real time leaves room for a busy
# machine.
_REAL_TIME_FACTOR = 10.0
_MIN_REAL_S = 10.0  # to start
_MAX_END_S = 10.0


class TemplateProcessError(Exception):
    """The template failed."""


class TemplateProcess:
    """Renders a template in a process of its own, which stays for later renderings.

    The process starts with the first rendering, ends with this object, and is replaced after it
    was ended by a limit.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._worker: subprocess.Popen[bytes] | None = None

    def render(
        self,
        inputs: Mapping[str, Any],
        own: Mapping[str, Any],
        words: Collection[str],
        now: datetime,
        seconds: float,
    ) -> str:
        """Return the text, as `ChatTemplate.render` does.

        `seconds` limits the processor time. Raises `TemplateProcessError`, or
        `TemplateLimitExceeded` for a limit.
        """
        worker = self._worker or self._start()
        self._worker = None  # until it has answered: an interrupted worker cannot be used again
        places = list(own_places(inputs))
        variables = {"inputs": inputs, "places": places, "own": own, "words": list(words)}
        line = _exchange(worker, {**variables, "now": now.isoformat(), "seconds": seconds})
        try:
            answer = json.loads(line)
        except ValueError:
            with suppress(subprocess.TimeoutExpired):  # it has closed its output, so it ends itself
                worker.wait(_MAX_END_S)
            status = _end(worker)
            if status in (-TIME_LIMIT_SIGNAL, -signal.SIGKILL):  # the worker's limit, and ours
                raise TemplateLimitExceeded("it exceeds its time limit") from None
            raise TemplateProcessError(f"its process ended with status {status}") from None
        self._worker = worker
        if "exceeded" in answer:
            raise TemplateLimitExceeded(answer["exceeded"])
        if "error" in answer:
            raise TemplateProcessError(answer["error"])
        return OwnText(answer["text"], [(low, high) for low, high in answer["ranges"]])

    def _start(self) -> subprocess.Popen[bytes]:
        worker = subprocess.Popen(
            python_module("swiftchat.tokenizer.template.worker"),
            cwd=child_folder(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        weakref.finalize(self, _end, worker)
        _send(worker, {"source": self._source})
        return worker


def _exchange(worker: subprocess.Popen[bytes], task: dict[str, Any]) -> bytes:
    """Send a task and return the line of the answer, empty if the worker has ended."""
    assert worker.stdout is not None
    killer = threading.Timer(_MIN_REAL_S + _REAL_TIME_FACTOR * task["seconds"], worker.kill)
    killer.daemon = True
    killer.start()
    try:
        _send(worker, task)
        return worker.stdout.readline()
    except BaseException:
        worker.kill()
        raise
    finally:
        killer.cancel()


def _send(worker: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
    assert worker.stdin is not None
    with suppress(BrokenPipeError):  # it has ended, so there will be no answer
        worker.stdin.write(json.dumps(message).encode() + b"\n")
        worker.stdin.flush()


def _end(worker: subprocess.Popen[bytes]) -> int:
    """End the worker unless it has ended; return its exit status."""
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdout.close()
    with suppress(BrokenPipeError):  # of a task that it has not read
        worker.stdin.close()
    worker.kill()
    return worker.wait()
