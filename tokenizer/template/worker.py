"""The process that renders a chat template which is not provably bounded.

It reads lines of JSON from stdin: first `{source}`, then tasks
`{inputs, places, own, words, now, seconds}`. It answers each task with a line on stdout:
`{text, ranges}`, with the ranges that the template wrote, or `{error}`, or `{exceeded}` for a
limit. It ends with its stdin, and by a signal when a task takes more than `seconds` of processor
time.
"""

import json
import resource
import signal
import sys
from datetime import datetime
from typing import Any

import jinja2

from swiftchat.tokenizer.template.own_text import own_ranges
from swiftchat.tokenizer.template.sandbox import (
    TEMPLATE_ERRORS,
    TemplateLimitExceeded,
    compile_template,
    render,
)
from swiftchat.tokenizer.template.variables import restore_own_places, variables_with_own

TIME_LIMIT_SIGNAL = signal.SIGPROF
_MEMORY_BYTES = 1 << 30


class _Renderer:
    """A template, compiled by the first task: compiling can take unbounded time."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._now = datetime.now()
        self._template: jinja2.Template | None = None

    def render(self, task: dict[str, Any]) -> dict[str, Any]:
        self._now = datetime.fromisoformat(task["now"])
        try:
            if self._template is None:
                self._template = compile_template(self._source, lambda: self._now)
            restore_own_places(task["inputs"], task["places"])
            variables = variables_with_own(task["inputs"], task["own"], task["words"])
            text = render(self._template, variables, task["seconds"], may_join_lists=True)
        except TemplateLimitExceeded as error:
            return {"exceeded": str(error)}
        except TEMPLATE_ERRORS as error:
            return {"error": str(error) or type(error).__name__}
        return {"text": text, "ranges": own_ranges(text)}


def main() -> None:
    """Render until stdin ends."""
    # Ctrl-C is for the parent, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    renderer = _Renderer(json.loads(sys.stdin.readline())["source"])
    for line in sys.stdin:
        task = json.loads(line)
        # When this processor time is over, the signal ends the process.
        signal.setitimer(signal.ITIMER_PROF, task["seconds"])
        answer = renderer.render(task)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
