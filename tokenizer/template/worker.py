"""The process that renders chat templates, which are untrusted.

It reads tasks from stdin, lines of JSON: `{source, inputs, places, own, words, now, seconds}`. It
answers each with a line on stdout: `{text, ranges}`, with the ranges that the template wrote, or
`{error}`, or `{exceeded}` for a limit. It ends with its stdin, and by SIGPROF when a task takes
more than `seconds` of processor time.
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

_MEMORY_BYTES = 1 << 30


class Renderer:
    """Renders templates; a task compiles its template first, which can take unbounded time."""

    def __init__(self) -> None:
        self._now = datetime.now()
        self._templates: dict[str, jinja2.Template] = {}

    def render(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a task, see above."""
        self._now = datetime.fromisoformat(task["now"])
        source = task["source"]
        try:
            if source not in self._templates:
                self._templates[source] = compile_template(source, lambda: self._now)
            restore_own_places(task["inputs"], task["places"])
            variables = variables_with_own(task["inputs"], task["own"], task["words"])
            text = render(self._templates[source], variables, task["seconds"])
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
    renderer = Renderer()
    for line in sys.stdin:
        task = json.loads(line)
        # When this processor time is over, SIGPROF ends the process.
        signal.setitimer(signal.ITIMER_PROF, task["seconds"])
        answer = renderer.render(task)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
