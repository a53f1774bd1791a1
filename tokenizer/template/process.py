"""A process that renders chat templates, within limits on processor time and memory."""

import json
import signal
import subprocess
import threading
import weakref
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.errors.interpreter import child_folder, python_module
from swiftchat.tokenizer.template.own_text import OwnText
from swiftchat.tokenizer.template.variables import own_places

_MAX_SOURCE_CHARACTERS = 1 << 18
_SECONDS = 1.7  # of processor time: a busy machine does not reject a template
# The worker limits its processor time itself. This limit of real time leaves room for a busy
# machine.
_REAL_TIME_FACTOR = 10.0
_MIN_REAL_S = 10.0  # to start
_MAX_END_S = 10.0


class TemplateStopped(BadModelFile):
    """A template exceeded its limit of time or output."""


class TemplateProcess:
    """Renders untrusted templates in a process of its own, where they cannot reach Python.

    The process starts with `start` or the first rendering, ends with this object, and is replaced
    after it was ended by a limit.
    """

    def __init__(self) -> None:
        self._worker: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, so that the first rendering need not wait for it."""
        self._worker = self._worker or self._started()

    def render(
        self,
        source: str,
        inputs: Mapping[str, Any],
        own: Mapping[str, Any],
        words: Collection[str],
        seconds: float | None = None,
    ) -> str:
        """Return the text that a template writes, an `OwnText`.

        `inputs` are the caller's variables, `own` the template's, of JSON types. Names of `inputs`
        in `words` count as the template's. `seconds` limits the processor time. Raises
        `BadModelFile` if the template fails, `TemplateStopped` for a limit.
        """
        if len(source) > _MAX_SOURCE_CHARACTERS:
            raise BadModelFile(
                f"the chat template is longer than {_MAX_SOURCE_CHARACTERS} characters"
            )
        worker = self._worker or self._started()
        self._worker = None  # until it has answered: an interrupted worker cannot be used again
        task = {
            "source": source,
            "inputs": inputs,
            "places": list(own_places(inputs)),
            "own": own,
            "words": list(words),
            "now": datetime.now().isoformat(),
            "seconds": _SECONDS if seconds is None else seconds,
        }
        line = _exchange(worker, task)
        try:
            answer = json.loads(line)
        except ValueError:
            with suppress(subprocess.TimeoutExpired):  # it has closed its output, so it ends itself
                worker.wait(_MAX_END_S)
            status = _end(worker)
            if status in (-signal.SIGPROF, -signal.SIGKILL):  # the worker's limit, and ours
                answer = {"exceeded": "it exceeds its time limit"}
            else:
                answer = {"error": f"its process ended with status {status}"}
        else:
            self._worker = worker
        if "exceeded" in answer:
            raise TemplateStopped(*_rejection(answer["exceeded"]))
        if "error" in answer:
            raise BadModelFile(*_rejection(answer["error"]))
        return OwnText(answer["text"], [(low, high) for low, high in answer["ranges"]])

    def _started(self) -> subprocess.Popen[bytes]:
        worker = subprocess.Popen(
            python_module("swiftchat.tokenizer.template.worker"),
            cwd=child_folder(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        weakref.finalize(self, _end, worker)
        return worker


def _rejection(reason: str) -> tuple[str, str]:
    """Return the message and the hint."""
    return (
        f"the chat template cannot be used: {reason[:300]}",
        "choose another with --template, or use --no-template to complete plain text",
    )


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
